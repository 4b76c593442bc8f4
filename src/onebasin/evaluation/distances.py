"""Distances between posteriors over the same params."""

from typing import NamedTuple

import jax
import numpy as np

from onebasin.paths.ends import check_ends
from onebasin.paths.pairing import cross_gram, squared_distances
from onebasin.posterior import LowRank, MeanField, Posterior, Samples
from onebasin.symmetry import Permutation, Symmetry, Transpositions, transpositions
from onebasin.trees import PyTree, leaves_by_path


class AlignedDistance(NamedTuple):
    """The pair of Xiao et al.: the distance of the weights, and the number of transpositions."""

    squared: float
    transpositions: Transpositions

    @property
    def distance(self) -> float:
        return float(np.sqrt(self.squared))


def wasserstein(q0: Posterior, q1: Posterior) -> float:
    """The 2-Wasserstein distance W2(q0, q1).

    Two MeanFields: √(‖m0 − m1‖² + ‖s0 − s1‖²). Two Samples: the root mean squared distance of the
    optimal pairing (the larger set is thinned evenly to the size of the smaller). With a LowRank:
    the cost of shared noise after rotating the factors, √(‖m0 − m1‖² + ‖s0 − s1‖² +
    min_R ‖F0 − F1R‖²), an upper bound that is exact if the covariances commute.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q0 = ob.MeanField({"w": jnp.array([0.0, 0.0])}, {"w": jnp.ones(2)})
    >>> q1 = ob.MeanField({"w": jnp.array([3.0, 4.0])}, {"w": jnp.ones(2)})
    >>> ob.wasserstein(q0, q1)
    5.0
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
    squared = squared_distance(q0.mean, q1.mean) + squared_distance(q0.std, q1.std)
    return float(np.sqrt(squared + _factor_cost(q0, q1)))


def l2(q0: Posterior, q1: Posterior) -> float:
    """‖E θ0 − E θ1‖, the distance between the means."""
    check_ends(q0, q1)
    return float(np.sqrt(squared_distance(q0.moments()[0], q1.moments()[0])))


def aligned_distance(
    q0: Posterior, q1: Posterior, permutation: Permutation, symmetry: Symmetry
) -> AlignedDistance:
    """(‖E θ0 − P E θ1‖², NoT(P)); P is applied here, so give q1 as it was fitted."""
    moved = symmetry.act(permutation, q1.moments()[0])
    squared = squared_distance(q0.moments()[0], moved)
    return AlignedDistance(squared, transpositions(permutation))


def squared_distance(a: PyTree, b: PyTree) -> float:
    """‖a − b‖² over all leaves of two params trees."""
    pairs = zip(jax.tree.leaves(a), _in_order(a, b), strict=True)
    return float(
        sum(np.sum((np.asarray(x, np.float64) - np.asarray(y, np.float64)) ** 2) for x, y in pairs)
    )


def _factor_cost(q0: MeanField | LowRank, q1: MeanField | LowRank) -> float:
    """min over rotations R of ‖F0 − F1R‖² = ‖F0‖² + ‖F1‖² − 2·(sum of singular values of F0ᵀF1)."""
    factors = [q.factors for q in (q0, q1) if isinstance(q, LowRank) and q.rank > 0]
    norms = sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(factors))
    if len(factors) < 2:
        return float(norms)
    gram = cross_gram(factors[0], _in_order(factors[0], factors[1]))
    return float(max(norms - 2 * np.linalg.svd(gram, compute_uv=False).sum(), 0.0))


def _in_order(like: PyTree, tree: PyTree) -> list[jax.Array]:
    """The leaves of `tree` in the order of the key paths of `like`."""
    named = leaves_by_path(tree)
    return [named[name] for name in leaves_by_path(like)]
