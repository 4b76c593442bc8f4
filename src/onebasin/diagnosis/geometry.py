"""Draws in the space of weights: how they lie to each other, seen through their inner products.

All is worked out from the n × n matrix of inner products of the centred draws, one matrix product
for each leaf: nothing of the size (weights)² is ever made.
"""

from dataclasses import dataclass, field

import jax
import numpy as np

from onebasin.posterior import Samples

BLOCK = 1 << 16  # weights at once: draws may be most of what fits in memory


@dataclass(frozen=True, eq=False)
class Geometry:
    """Where the draws lie in their principal directions, and how far chains are apart."""

    scores: np.ndarray = field(repr=False)
    """Coordinates [draws, directions] in the directions of greatest variance."""
    explained: np.ndarray
    """The share of the variance of the distinct draws that each of the directions explains."""
    between: float
    """The share of all variance that lies between the means of chains."""
    between_expected: float
    """What `between` is on average if all draws are independent and from one law."""


def geometry(samples: Samples, directions: int = 2) -> Geometry:
    """Principal coordinates of the draws, and the variance between chains.

    With the centred draws as rows X and XXᵀ = U diag(λ) Uᵀ, the coordinates are U √λ, as those of
    a principal component analysis. Signs are chosen so that the largest coordinate is positive.
    A draw that a chain repeats (HMC does when it rejects) counts once for the directions: among
    many weights that only the prior holds, one that is repeated often would be a direction itself.
    The variance between chains is Σ_c n_c ‖μ_c − μ‖², over Σ ‖θ − μ‖², of all draws.
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
    # Chains that hardly move have fewer directions than are asked for: nothing lies along the rest.
    missing = min(directions, len(chain)) - len(top)
    scores, along = np.pad(scores, ((0, 0), (0, missing))), np.pad(values[top], (0, missing))
    total, spread = float(np.trace(inner)), float(np.trace(distinct))
    between = sum(inner[np.ix_(own, own)].sum() / own.sum() for own in _members(chain))
    count, chains = len(chain), len(np.unique(chain))
    return Geometry(
        scores=scores,
        explained=np.maximum(along, 0.0) / spread if spread > 0 else np.zeros(len(along)),
        between=float(between / total) if total > 0 else 0.0,
        between_expected=(chains - 1) / max(count - 1, 1),
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
    # Centred once more: what rounding left of the mean would be a direction of its own.
    return _centred(total)


def _centred(inner: np.ndarray) -> np.ndarray:
    """Inner products about the mean of the draws, whatever point they were about."""
    inner = inner - inner.mean(0, keepdims=True)
    return inner - inner.mean(1, keepdims=True)


def _repeats(samples: Samples) -> np.ndarray:
    """For every draw the first of the equal draws of its chain that it stands in a row with."""
    chain = np.asarray(samples.chain)
    equal = chain[1:] == chain[:-1]
    for leaf in jax.tree.leaves(samples.draws):
        flat = np.asarray(leaf).reshape(samples.num_draws, -1)
        for i in np.flatnonzero(equal):
            equal[i] = np.array_equal(flat[i], flat[i + 1])
    starts = np.concatenate([[True], ~equal])
    return np.maximum.accumulate(np.where(starts, np.arange(len(chain)), 0))


def _members(chain: np.ndarray) -> list[np.ndarray]:
    return [chain == one for one in np.unique(chain)]
