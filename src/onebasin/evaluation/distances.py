"""Distances between posteriors over the same params."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from onebasin.paths.ends import check_ends
from onebasin.paths.pairing import cross_gram, squared_distances
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.symmetry import Permutation, Symmetry, Transpositions, transpositions
from onebasin.trees import PyTree, leaves_by_path


@dataclass(frozen=True)
class AlignedDistance:
    """The pair of Xiao et al.: how far apart in weights, and in transpositions."""

    squared: float
    transpositions: Transpositions

    @property
    def distance(self) -> float:
        return float(np.sqrt(self.squared))


def wasserstein(q0: Any, q1: Any) -> float:
    """The 2-Wasserstein distance W2(q0, q1).

    Two MeanFields: √(‖m0 − m1‖² + ‖s0 − s1‖²). Two Samples: the mean squared distance of the
    optimal pairing (the larger set is thinned evenly if they differ in size). With a LowRank:
    the cost of shared noise with the factors rotated onto each other, √(‖m0 − m1‖² +
    ‖s0 − s1‖² + min_R ‖F0 − F1R‖²), an upper bound, exact where the covariances commute.
    """
    check_ends(q0, q1)
    if isinstance(q0, Samples) and isinstance(q1, Samples):
        from scipy.optimize import linear_sum_assignment

        count = min(q0.num_draws, q1.num_draws)
        draws = _in_order(q0.like, q1.thin(count).draws)
        cost = squared_distances(q0.thin(count).draws, draws)
        return float(np.sqrt(cost[linear_sum_assignment(cost)].mean()))
    if not (isinstance(q0, MeanField | LowRank) and isinstance(q1, MeanField | LowRank)):
        raise ValueError(
            f"there is no closed form for W2 between a {type(q0).__name__} and a "
            f"{type(q1).__name__}; compare two Gaussians or two Samples"
        )
    squared = _squared(q0.mean, q1.mean) + _squared(q0.std, q1.std)
    return float(np.sqrt(squared + _factor_cost(q0, q1)))


def l2(q0: Any, q1: Any) -> float:
    """‖E θ0 − E θ1‖, the distance between the means."""
    check_ends(q0, q1)
    return float(np.sqrt(_squared(q0.moments()[0], q1.moments()[0])))


def aligned_distance(q0: Any, q1: Any, permutation: Permutation, symmetry: Symmetry):
    """(‖E θ0 − P E θ1‖², NoT(P)): q1 is moved by P here, so give it as it was fitted."""
    moved = symmetry.act(permutation, q1.moments()[0])
    squared = _squared(q0.moments()[0], moved)
    return AlignedDistance(squared, transpositions(permutation))


def _squared(a: PyTree, b: PyTree) -> float:
    first, second = leaves_by_path(a), leaves_by_path(b)
    return float(
        sum(
            np.sum((np.asarray(leaf, np.float64) - np.asarray(second[name], np.float64)) ** 2)
            for name, leaf in first.items()
        )
    )


def _factor_cost(q0: MeanField | LowRank, q1: MeanField | LowRank) -> float:
    """min over rotations R of ‖F0 − F1R‖² = ‖F0‖² + ‖F1‖² − 2·(sum of singular values of F0ᵀF1)."""
    factors = [q.factors for q in (q0, q1) if isinstance(q, LowRank) and q.rank > 0]
    norms = sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(factors))
    if len(factors) < 2:
        return float(norms)
    gram = cross_gram(factors[0], _in_order(factors[0], factors[1]))
    return float(max(norms - 2 * np.linalg.svd(gram, compute_uv=False).sum(), 0.0))


def _in_order(like: PyTree, tree: PyTree) -> list[Any]:
    """The leaves of `tree` in the order of the key paths of `like`."""
    named = leaves_by_path(tree)
    return [named[name] for name in leaves_by_path(like)]
