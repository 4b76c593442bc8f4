"""What a method asks of the loop: pure functions for one lane.

A lane is one independent computation: a variational fit, an ensemble member, a chain. The loop
runs many at once (runs × members or chains), so nothing here knows about other lanes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree

Info = dict[str, jax.Array]


@dataclass(frozen=True)
class DrawPlan:
    """Which steps leave a draw behind, and how it is read from the state."""

    per_lane: int
    first: int  # the step that ends with the first draw
    every: int  # steps from one draw to the next
    read: Callable[[Any], PyTree]

    def keeps(self, t: jax.Array) -> jax.Array:
        since = t - self.first
        return (since >= 0) & (since % self.every == 0)

    def kept_before(self, t: int) -> int:
        """How many draws the steps 0 … t−1 have left."""
        if t <= self.first:
            return 0
        return min((t - self.first - 1) // self.every + 1, self.per_lane)


@dataclass(frozen=True)
class Program:
    """A method on a problem.

    `init(key, data)` makes a lane's state; `step(state, key, t, data)` moves it and reports the
    scalars named in `reports`, of which "loss" must stay finite. State is what the next step needs
    and what a checkpoint holds; all else follows from (key, t). `finish` turns the states of one
    run's lanes into a posterior.
    """

    lanes: int
    own_key: bool  # a single lane that takes the run's key as it is
    steps: int
    data: PyTree
    reports: tuple[str, ...]
    init: Callable[[jax.Array, PyTree], Any]
    step: Callable[[Any, jax.Array, jax.Array, PyTree], tuple[Any, Info]]
    finish: Callable[[Any, PyTree | None], Any]
    seconds_per_step: float
    steps_per_epoch: int | None
    likely_cause: str
    draws: DrawPlan | None = None
    summarise: Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]] | None = None


def seconds_per_step(flops: float, num_params: int) -> float:
    """A nominal duration, from the configuration alone: it only sets how long a chunk is.

    Fixed rates, not measured ones, so that a run and its repetition have the same chunks.
    """
    rate, memory, overhead = {
        "cpu": (1e11, 1e10, 5e-5),
        "gpu": (1e13, 1e12, 2e-5),
        "tpu": (5e13, 1e12, 2e-5),
    }.get(jax.default_backend(), (1e11, 1e10, 5e-5))
    return flops / rate + 40 * num_params / memory + overhead


def training_data(problem: Problem) -> Batch:
    return Batch(jnp.asarray(problem.x), jnp.asarray(problem.y))
