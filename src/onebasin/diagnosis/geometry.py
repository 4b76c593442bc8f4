"""The geometry of draws in weight space: principal directions, and variance between chains.

Everything follows from the n × n matrix of inner products of the centred draws, by one matrix
product per leaf: nothing of size (weights)² is ever computed.
"""

from dataclasses import dataclass, field

import jax
import numpy as np

from onebasin.posterior import Samples

BLOCK = 1 << 16  # weights at once, since the draws alone may nearly fill the memory


@dataclass(frozen=True, eq=False)
class Geometry:
    """Coordinates of the draws in their principal directions, and the variance between chains."""

    scores: np.ndarray = field(repr=False)
    """Coordinates [draws, directions] in the directions of greatest variance."""
    explained: np.ndarray
    """The share of the variance of the distinct draws that each direction explains."""
    between: float
    """The share of the total variance that is between the means of chains."""
    between_expected: float
    """The expectation of `between` if all draws are independent and from one distribution."""


def geometry(samples: Samples, directions: int = 2) -> Geometry:
    """Principal coordinates of the draws, and the variance between chains.

    With the centred draws as rows X and XXᵀ = U diag(λ) Uᵀ, the coordinates are U √λ, as in
    principal component analysis. Signs are chosen so that the largest coordinate is positive.
    A draw that a chain repeats (HMC does when it rejects) counts once for the directions: if most
    weights are determined by the prior alone, a draw repeated often would be a direction itself.
    The variance between chains is Σ_c n_c ‖μ_c − μ‖² / Σ ‖θ − μ‖², over all draws.
    """
    inner = gram(samples)
    chain = np.asarray(samples.chain)
    first, once = np.unique(_repeats(samples), return_inverse=True)
    distinct = _centred(inner[np.ix_(first, first)])
    values, vectors = np.linalg.eigh(distinct)
    top = np.argsort(-values)[:directions]
    scores = vectors[:, top] * np.sqrt(np.maximum(values[top], 0.0))
    flip = np.take_along_axis(scores, np.abs(scores).argmax(0)[None], axis=0) < 0
    scores = np.where(flip, -scores, scores)[once]
    # Chains that hardly move have fewer directions than requested: the rest has no variance.
    missing = min(directions, len(chain)) - len(top)
    scores, along = np.pad(scores, ((0, 0), (0, missing))), np.pad(values[top], (0, missing))
    total, variance = float(np.trace(inner)), float(np.trace(distinct))
    members = [chain == one for one in np.unique(chain)]
    between = sum(inner[np.ix_(own, own)].sum() / own.sum() for own in members)
    return Geometry(
        scores=scores,
        explained=np.maximum(along, 0.0) / variance if variance > 0 else np.zeros(len(along)),
        between=float(between / total) if total > 0 else 0.0,
        between_expected=(len(members) - 1) / max(len(chain) - 1, 1),
    )


def gram(samples: Samples) -> np.ndarray:
    """Inner products of the draws about their mean, [draws, draws]."""
    total = np.zeros((samples.num_draws,) * 2)
    for leaf in jax.tree.leaves(samples.draws):
        flat = np.asarray(leaf).reshape(samples.num_draws, -1)
        for start in range(0, flat.shape[1], BLOCK):
            rows = flat[:, start : start + BLOCK]
            rows = rows - rows.mean(0, dtype=np.float64).astype(rows.dtype)
            total += rows @ rows.T
    # Centred once more: the rounding error of the mean would be a direction of its own.
    return _centred(total)


def _centred(inner: np.ndarray) -> np.ndarray:
    """Inner products about the mean of the draws, from those about any point."""
    inner = inner - inner.mean(0, keepdims=True)
    return inner - inner.mean(1, keepdims=True)


def _repeats(samples: Samples) -> np.ndarray:
    """For every draw, the index of the first in its run of equal consecutive draws of a chain."""
    chain = np.asarray(samples.chain)
    equal = chain[1:] == chain[:-1]
    for leaf in jax.tree.leaves(samples.draws):
        flat = np.asarray(leaf).reshape(samples.num_draws, -1)
        for i in np.flatnonzero(equal):
            equal[i] = np.array_equal(flat[i], flat[i + 1])
    starts = np.concatenate([[True], ~equal])
    return np.maximum.accumulate(np.where(starts, np.arange(len(chain)), 0))
