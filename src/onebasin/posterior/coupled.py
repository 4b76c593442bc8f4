"""Draws of several posteriors that share their noise, made one at a time.

The s-th draw is made from the s-th key, whatever else is asked for, so posteriors over the same
params that are sampled with one key are coupled (common random numbers).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import numpy as np

from onebasin.posterior.protocol import Posterior
from onebasin.posterior.samples import Samples
from onebasin.trees import PyTree, take_entry

Draw: TypeAlias = tuple[PyTree, PyTree]  # params and running statistics


@dataclass(frozen=True)
class CoupledDraws:
    """The s-th draw of each of some posteriors, with its running statistics."""

    count: int
    make: Callable[[int], tuple[Draw, ...]]

    def __call__(self, s: int) -> tuple[Draw, ...]:
        return self.make(s)


def coupled_draws(
    posteriors: tuple[Posterior, ...], num_samples: int, *, key: jax.Array
) -> CoupledDraws:
    """Coupled draws: of Gaussians with one noise, of Samples with one index."""
    first = posteriors[0]
    if isinstance(first, Samples):
        # Never the same draw twice: with all of them in, the average over the set is exact.
        if num_samples >= first.num_draws:
            order = np.arange(first.num_draws)
        else:
            order = np.asarray(jax.random.permutation(key, first.num_draws))[:num_samples]
        return CoupledDraws(len(order), lambda s: _pick(posteriors, order[s]))
    return CoupledDraws(num_samples, lambda s: _sample(posteriors, key, s))


@jax.jit
def _sample(posteriors: tuple[Posterior, ...], key: jax.Array, index: int):
    own = jax.random.fold_in(key, index)
    return tuple((q.sample(key=own), q.states(key=own)) for q in posteriors)


@jax.jit
def _pick(posteriors: tuple[Samples, ...], index: int):
    return tuple((take_entry(q.draws, index), take_entry(q.state, index)) for q in posteriors)
