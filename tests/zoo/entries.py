"""How an entry of the zoo is written.

A place is `at(leaf, axis)`. If the units have only a part of the axis, the positions of unit u are
start + b·step + u·after + a for b < before and a < after.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from onebasin.networks import Network, from_linen


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


@dataclass(frozen=True)
class Entry:
    name: str
    build: Callable[[], tuple[Network, Any]]
    groups: list[tuple[int, list[At]]]
    inert: frozenset[str]  # leaves in which the order does not affect the function


at = At
ZOO: list[Entry] = []


Build = Callable[[], tuple[Network, Any]]


def entry(groups: list[tuple[int, list[At]]], inert: str = "") -> Callable[[Build], Build]:
    """Add the network that a function builds to the zoo, with its groups and inert leaves."""

    def register(build: Build) -> Build:
        ZOO.append(Entry(build.__name__, build, groups, frozenset(inert.split())))
        return build

    return register


def normal(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def variables_of(module: nn.Module, x: Any) -> Any:
    """Random variables of the module's shapes, without the cost of compiling its `init`."""
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
    """The groups of a stack of Flax layers: kernel, bias, next kernel."""
    return [
        (size, [at(f"{a}/kernel", 1), at(f"{a}/bias", 0), at(f"{b}/kernel", 0)])
        for a, b in pairwise(names)
    ]
