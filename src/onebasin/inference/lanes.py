"""Lanes over devices: independent computations side by side, without communication.

Each device holds the same number of lanes, so a few are added when the division leaves a rest:
with `count` lanes on d devices each device holds k = ⌈count/d⌉, on ⌈count/k⌉ devices. The added
lanes repeat the last key and are dropped at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from onebasin.trees import PyTree

AXIS = "lanes"


@dataclass(frozen=True)
class Lanes:
    """How `count` lanes lie on the devices."""

    count: int
    in_turn: bool = False
    per_device: int = field(init=False)
    mesh: Mesh = field(init=False)

    def __post_init__(self) -> None:
        devices = jax.devices()
        per_device = -(-self.count // len(devices))
        used = -(-self.count // per_device)
        object.__setattr__(self, "per_device", per_device)
        object.__setattr__(self, "mesh", Mesh(np.array(devices[:used]), (AXIS,)))

    @property
    def padded(self) -> int:
        return self.per_device * self.mesh.size

    @property
    def split(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def place_keys(self, keys: jax.Array) -> jax.Array:
        """One key per lane, the last repeated for the lanes that were added."""
        picks = np.minimum(np.arange(self.padded), self.count - 1)
        return jax.device_put(keys[picks], self.split)

    def place(self, states: PyTree) -> PyTree:
        return jax.device_put(states, self.split)

    def replicate(self, data: PyTree) -> PyTree:
        return jax.device_put(data, self.everywhere)

    def each(self, function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Any:
        """The function over the lanes of one device: vmapped, in turn, or plain if there is one.

        A batch axis of one costs nothing in arithmetic, but XLA takes other (slower) kernels for
        batched operations, so it is left away. On a CPU the same holds for large matrix products
        of several lanes (a fifth slower than one lane after the other, which each fill the cores
        anyway), so heavy lanes go `in_turn` there.
        """
        if self.per_device > 1 and self.in_turn:
            return partial(_in_turn, function, in_axes)
        if self.per_device > 1:
            return jax.vmap(function, in_axes=in_axes)

        def alone(*args: Any) -> Any:
            own = [
                arg if axis is None else jax.tree.map(lambda leaf: leaf[0], arg)
                for arg, axis in zip(args, in_axes, strict=True)
            ]
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*own))

        return alone

    def on_devices(self, function: Callable[..., Any], split: tuple[bool, ...]) -> Any:
        """The function once per device on its own lanes; `split` says which arguments have lanes.

        Every result has a leading axis of lanes.
        """
        specs = tuple(PartitionSpec(AXIS) if s else PartitionSpec() for s in split)
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=specs,
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )

    def real(self, states: PyTree) -> PyTree:
        """Host copies of all lanes but the added ones."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: self.count], states)


def _in_turn(function: Callable[..., Any], in_axes: tuple[int | None, ...], *args: Any) -> Any:
    split = [arg for arg, axis in zip(args, in_axes, strict=True) if axis is not None]

    def one(own: list[Any]) -> Any:
        mine = iter(own)
        return function(
            *(arg if axis is None else next(mine) for arg, axis in zip(args, in_axes, strict=True))
        )

    return jax.lax.map(one, split)
