"""Couplings: which draw of one end belongs to which of the other, and how factors are rotated."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.posterior import LowRank, Samples
from onebasin.trees import PyTree


def pair_draws(q0: Samples, q1: Samples) -> tuple[Samples, Samples, str]:
    """Both sets with their draws in the order of an optimal pairing, and a note on any thinning.

    The pairing minimises the summed squared distance (a linear assignment). Sets of different
    size have no pairing: the larger is thinned evenly to the size of the smaller, which needs no
    key and covers the whole length of a chain.
    """
    from scipy.optimize import linear_sum_assignment

    count = min(q0.num_draws, q1.num_draws)
    note = ""
    if q0.num_draws != q1.num_draws:
        larger = max(q0.num_draws, q1.num_draws)
        note = f"the larger set was thinned evenly from {larger} to {count} draws"
    q0, q1 = q0.thin(count), q1.thin(count)
    _, columns = linear_sum_assignment(squared_distances(q0.draws, q1.draws))  # rows are in order
    paired = q1.take(columns)
    return q0, Samples(paired.draws, q0.chain, paired.state), note


def squared_distances(draws0: PyTree, draws1: PyTree) -> np.ndarray:
    """‖a_i − b_j‖² for all pairs of draws, by one matrix product per leaf.

    Both sides are first centred by the same point, so that little precision is lost to
    cancellation in ‖a‖² + ‖b‖² − 2⟨a, b⟩.
    """
    total = np.zeros(())
    for a, b in _matrices(draws0, draws1):
        centre = 0.5 * (a.mean(0) + b.mean(0))
        a, b = a - centre, b - centre
        total = total + (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.maximum(total, 0.0)


def rotate_factors(q0: LowRank, q1: LowRank) -> LowRank:
    """q1 with its factors rotated onto those of q0 (orthogonal Procrustes).

    z is isotropic, so F₁ and F₁R give the same Gaussian for any orthogonal R; the R that
    minimises ‖F₀ − F₁R‖² is UVᵀ for the singular vectors of F₁ᵀF₀. Leaves hold the columns
    of F as rows, so the rotated rows are Rᵀ times the rows.
    """
    if q0.rank == 0:
        return q1
    left, _, right = np.linalg.svd(cross_gram(q1.factors, q0.factors))
    rotation = left @ right
    rotated = jax.tree.map(
        lambda f: jnp.asarray(np.tensordot(rotation.T, np.asarray(f), axes=1), f.dtype), q1.factors
    )
    return LowRank(q1.mean, q1.std, rotated, q1.state)


def cross_gram(factors0: PyTree, factors1: PyTree) -> np.ndarray:
    """F₀ᵀF₁, [rank₀, rank₁]."""
    total = np.zeros(())
    for a, b in _matrices(factors0, factors1):
        total = total + a @ b.T
    return total


def _matrices(first: PyTree, second: PyTree) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The leaves of two trees in pairs, as float64 matrices [leading axis, the rest]."""
    for pair in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        a, b = (np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in pair)
        yield a, b
