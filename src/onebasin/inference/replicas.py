"""Replicas of one computation, distributed over devices without communication.

Each device holds the same number of replicas: `count` replicas on d devices are k = ⌈count/d⌉ per
device, on ⌈count/k⌉ devices. Padding repeats the last replica and is dropped at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from onebasin.inference.program import Program
from onebasin.trees import PyTree, add_axis, take_entry

Function: TypeAlias = Callable[..., PyTree]
Axes: TypeAlias = tuple[int | None, ...]
AXIS = "replicas"
SLOW_STEP = 2e-3  # seconds


@dataclass(frozen=True)
class Replicas:
    """The distribution of `count` replicas over the devices."""

    count: int
    sequential: bool = False
    per_device: int = field(init=False)
    mesh: Mesh = field(init=False)

    def __post_init__(self) -> None:
        devices = jax.devices()
        per_device = -(-self.count // len(devices))
        used = -(-self.count // per_device)
        object.__setattr__(self, "per_device", per_device)
        object.__setattr__(self, "mesh", Mesh(np.array(devices[:used]), (AXIS,)))

    @classmethod
    def of(cls, program: Program, count: int) -> "Replicas":
        """Replicas of a program: on a CPU, those with slow steps run one after another."""
        slow = jax.default_backend() == "cpu" and program.seconds_per_step > SLOW_STEP
        return cls(count, sequential=slow)

    @property
    def padded(self) -> int:
        """The number of replicas with padding."""
        return self.per_device * self.mesh.size

    def place(self, tree: PyTree) -> PyTree:
        """A tree with a leading axis of replicas, padded and split over the devices."""
        picks = np.minimum(np.arange(self.padded), self.count - 1)
        split = NamedSharding(self.mesh, PartitionSpec(AXIS))
        return jax.device_put(take_entry(tree, picks), split)

    def copy_to_all(self, data: PyTree) -> PyTree:
        """A tree with a copy on every device."""
        return jax.device_put(data, NamedSharding(self.mesh, PartitionSpec()))

    def on_one_device(self, function: Function, in_axes: Axes) -> Function:
        """The function over the replicas of one device, in the manner of `jax.vmap`.

        XLA uses slower kernels for batched operations, so a single replica has no batch axis. On a
        CPU the same holds for large matrix products of several replicas: a batch of them takes a
        fifth longer than one after the other, each of which uses all cores. Hence `sequential`.
        """

        def one(index: int | jax.Array, args: tuple[PyTree, ...]) -> PyTree:
            paired = zip(args, in_axes, strict=True)
            return function(*(a if axis is None else take_entry(a, index) for a, axis in paired))

        if self.per_device == 1:
            return lambda *args: add_axis(jax.tree.map(jnp.asarray, one(0, args)))
        if self.sequential:
            places = jnp.arange(self.per_device)
            return lambda *args: jax.lax.map(lambda place: one(place, args), places)
        return jax.vmap(function, in_axes=in_axes)

    def on_devices(self, function: Function, in_axes: Axes) -> Function:
        """The function on every device; arguments with an axis in `in_axes` are split over them."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tuple(PartitionSpec() if a is None else PartitionSpec(AXIS) for a in in_axes),
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )

    def initial_states(self, program: Program, keys: jax.Array, data: PyTree) -> PyTree:
        """The states of all replicas before the first step."""
        init = self.on_one_device(program.init, (0, None))
        return jax.jit(self.on_devices(init, (0, None)))(keys, data)

    def to_host(self, tree: PyTree) -> PyTree:
        """Host copies of all replicas without the padding."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: self.count], tree)
