"""What a method provides to the loop: pure functions for one replica.

A replica is one independent computation: a variational fit, an ensemble member or a chain. The
loop runs all of them at once (runs × members or chains), so a program knows nothing of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from onebasin.posterior import Posterior
from onebasin.trees import PyTree

Info: TypeAlias = dict[str, jax.Array]
Summary: TypeAlias = Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]]


@dataclass(frozen=True)
class DrawPlan:
    """The steps that produce a draw, and how to read it from the state.

    With `cycle`, all begins again after as many steps.
    """

    per_replica: int
    first: int  # the step that ends with the first draw
    every: int  # steps between two draws
    read: Callable[[PyTree], PyTree]
    cycle: int | None = None

    @property
    def per_cycle(self) -> int:
        """The number of draws of one cycle."""
        return self.per_replica if self.cycle is None else self._within(self.cycle)

    def keeps(self, t: jax.Array) -> jax.Array:
        since = (t if self.cycle is None else t % self.cycle) - self.first
        return (since >= 0) & (since % self.every == 0)

    def kept_before(self, t: int) -> int:
        """The number of draws from steps 0 … t−1."""
        cycles, place = (0, t) if self.cycle is None else divmod(t, self.cycle)
        before = cycles * self.per_cycle if cycles else 0
        return min(before + self._within(place), self.per_replica)

    def _within(self, t: int) -> int:
        return 0 if t <= self.first else (t - self.first - 1) // self.every + 1


def mean_per_step(sums: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    return {name: total / steps for name, total in sums.items()}


@dataclass(frozen=True)
class Program:
    """A method applied to a problem.

    `init(key, data)` returns the state of a replica; `step(state, key, t, data)` returns the next
    state and the scalars named in `reports`, of which "loss" must stay finite. The state is what
    the next step needs and what a checkpoint holds; all else follows from (key, t). `finish` turns
    the last states of the replicas of one run into a posterior; without it the draws are the
    posterior. `summarise` turns the sums of the reported scalars over a chunk into a row of the
    history.
    """

    replicas: int
    uses_run_key: bool  # the only replica uses the key of the run itself
    steps: int
    data: PyTree
    reports: tuple[str, ...]
    init: Callable[[jax.Array, PyTree], PyTree]
    step: Callable[[PyTree, jax.Array, jax.Array, PyTree], tuple[PyTree, Info]]
    seconds_per_step: float
    likely_cause: str
    finish: Callable[[PyTree], Posterior] | None = None
    statistics: Callable[[PyTree], dict[str, Any]] | None = None
    steps_per_epoch: int | None = None
    draws: DrawPlan | None = None
    summarise: Summary = mean_per_step
    measures_state: bool = False  # on the training data, once the posterior is known
    splits_data: bool = False  # with data shards: between the devices, along the leading axis
    posterior_trees: int = 2  # params-sized trees in the file of a replica's posterior


def seconds_per_step(flops: float, num_params: int) -> float:
    """A nominal duration, which only determines the length of a chunk.

    The rates are constants rather than measurements, so that a repeated fit has the same chunks.
    """
    rate, memory, overhead = {
        "cpu": (1e11, 1e10, 5e-5),
        "gpu": (1e13, 1e12, 2e-5),
        "tpu": (5e13, 1e12, 2e-5),
    }.get(jax.default_backend(), (1e11, 1e10, 5e-5))
    return flops / rate + 40 * num_params / memory + overhead
