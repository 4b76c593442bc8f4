"""Directions of the draws that carry the variance of the network's outputs.

Predictions do not vary along the leading directions of the weights. Let yᵢ be the centred outputs
of the n members on some inputs, and V the eigenvectors of the n × n matrix yyᵀ with the largest
eigenvalues λ. To first order in the weights, F = Vᵀx/√n are the `rank` directions in the span of
the members that keep the most output variance, Σ_{r ≤ rank} λ_r of Σ λ_r. Scaled by
τ = √(Σ λ / Σ_{r ≤ rank} λ) they carry all of it. Independent noise on the weights would only add
to it, so the diagonal is left at its floor. Outputs of different kinds, such as a mean and a log
std, are weighed by the square root of their Fisher information, so that equal differences are
equally easy to see in the targets; logits count as they are.
"""

import jax
import numpy as np
from scipy.sparse.linalg import eigsh

from onebasin.alignment.members import Members
from onebasin.likelihoods import Likelihood, Regression
from onebasin.networks.network import Apply, forward
from onebasin.trees import PyTree

INPUTS = 1000  # of the batch, at most


def leading(gram: np.ndarray, rank: int) -> np.ndarray:
    """The eigenvectors of the largest eigenvalues, by Lanczos iteration where it pays."""
    if 8 * rank > len(gram):
        return np.linalg.eigh(gram)[1][:, : -rank - 1 : -1]
    start = np.random.default_rng(0).standard_normal(len(gram))
    return eigsh(gram, rank, v0=start)[1][:, ::-1]


def output_directions(
    members: Members, rank: int, apply: Apply, x: PyTree, likelihood: Likelihood
) -> tuple[np.ndarray, float]:
    """V [members, rank], and τ."""
    x = jax.tree.map(lambda leaf: np.asarray(leaf[:INPUTS]), x)

    @jax.jit
    def outputs(params: PyTree, state: PyTree | None) -> jax.Array:
        found = jax.tree.leaves(forward(apply, params, x, state))
        return jax.numpy.concatenate([leaf.reshape(-1) for leaf in found])

    rows = [np.asarray(outputs(*members.point(i))) for i in range(len(members))]
    middle = np.mean(rows, axis=0)
    centred = np.stack(rows) - middle
    if isinstance(likelihood, Regression):
        by_example = jax.numpy.asarray(middle.reshape(len(jax.tree.leaves(x)[0]), -1))
        centred = centred * np.sqrt(np.asarray(likelihood.information(by_example))).reshape(-1)
    gram = (centred @ centred.T).astype(np.float64)
    directions = leading(gram, rank)
    kept = float(np.einsum("ir,ij,jr->", directions, gram, directions))
    if not kept > 0:
        raise ValueError("the outputs of all members are the same on x; give other inputs")
    return directions, float(np.sqrt(np.trace(gram) / kept))
