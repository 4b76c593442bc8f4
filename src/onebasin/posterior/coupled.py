"""Draws of several posteriors that share their noise (common random numbers), one at a time.

Draw s depends only on the key and on s, so posteriors over the same params that are sampled with
one key are coupled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from onebasin.posterior.protocol import Posterior
from onebasin.posterior.samples import Samples
from onebasin.trees import PyTree, take_entry

Draw: TypeAlias = tuple[PyTree, PyTree]  # params and running statistics


@dataclass(frozen=True)
class CoupledDraws:
    """Draw s of each of several posteriors, with its running statistics."""

    count: int
    make: Callable[[int], tuple[Draw, ...]]

    def __call__(self, s: int) -> tuple[Draw, ...]:
        return self.make(s)


def coupled_draws(
    posteriors: tuple[Posterior, ...], num_samples: int, *, key: jax.Array
) -> CoupledDraws:
    """Coupled draws: Gaussians share the noise, `Samples` share the index."""
    first = posteriors[0]
    if isinstance(first, Samples):
        # Without replacement: the average over all draws is exact.
        if num_samples >= first.num_draws:
            order = np.arange(first.num_draws)
        else:
            order = np.asarray(jax.random.permutation(key, first.num_draws))[:num_samples]
        return CoupledDraws(len(order), lambda s: _take(posteriors, int(order[s])))
    return CoupledDraws(num_samples, lambda s: _sample(posteriors, key, s))


@jax.jit
def _sample(posteriors: tuple[Posterior, ...], key: jax.Array, index: int) -> tuple[Draw, ...]:
    key = jax.random.fold_in(key, index)
    return tuple((q.sample(key=key), q.states(key=key)) for q in posteriors)


def _take(posteriors: tuple[Any, ...], index: int) -> tuple[Draw, ...]:
    trees = tuple((q.draws, q.state) for q in posteriors)
    if all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(trees)):
        return _entry(trees, index)
    # Of draws in host memory or in a file, only the one that is used goes to the device.
    return take_entry(trees, index)


_entry = jax.jit(take_entry)
