"""How a network of the zoo is written down.

A place is `at(leaf, axis)`, or, for units on a part of an axis, the positions that belong to
each unit: start + b·step + u·after + a for b < before and a < after.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from onebasin.networks import (
    Network,
    from_linen,
)


@dataclass(frozen=True)
class At:
    leaf: str
    axis: int
    start: int = 0
    before: int = 1
    after: int = 1
    step: int | None = None

    def positions(self, size: int) -> np.ndarray:
        step = size * self.after if self.step is None else self.step
        unit = np.arange(size)[:, None, None] * self.after
        outer = np.arange(self.before)[None, :, None] * step
        return (self.start + outer + unit + np.arange(self.after)).reshape(size, -1)


def at(leaf: str, axis: int, start: int = 0, before: int = 1, after: int = 1, step=None) -> At:
    return At(leaf, axis, start, before, after, step)


@dataclass(frozen=True)
class Entry:
    name: str
    build: Callable[[], tuple[Network, Any]]
    groups: list[tuple[int, list[At]]]
    inert: frozenset[str]  # leaves whose order cannot matter to the function


ZOO: list[Entry] = []


def entry(groups: list[tuple[int, list[At]]], inert: str = ""):
    def register(build: Callable[[], tuple[Network, Any]]):
        ZOO.append(Entry(build.__name__, build, groups, frozenset(inert.split())))
        return build

    return register


def normal(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def variables_of(module: nn.Module, x: Any) -> Any:
    """Variables of the module's own shapes; drawing them here saves compiling its init."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    rng = np.random.default_rng(0)

    def draw(path: Any, leaf: Any) -> jax.Array:
        fan_in = max(1, int(np.prod(leaf.shape[:-1])))
        values = rng.standard_normal(leaf.shape) / np.sqrt(fan_in)
        return jnp.asarray(abs(values) if path[0].key == "batch_stats" else values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def linen(module: nn.Module, x: Any) -> tuple[Network, Any]:
    return from_linen(module, variables_of(module, x)), x


def dense_chain(*names: str, size: int) -> list[tuple[int, list[At]]]:
    """The groups of a plain stack of Flax layers: kernel, bias, next kernel."""
    return [
        (size, [at(f"{a}/kernel", 1), at(f"{a}/bias", 0), at(f"{b}/kernel", 0)])
        for a, b in pairwise(names)
    ]
