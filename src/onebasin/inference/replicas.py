"""Replicas of one computation, distributed over the devices of all processes.

Each device holds the same number of replicas: `count` replicas on d devices are k = ⌈count/d⌉ per
device, on ⌈count/k⌉ devices (on all of them with several processes, each of which must take part).
Padding repeats the last replica and is dropped at the end. With `data_shards` s, groups of s
devices take the place of single devices: the members of a group hold the same replicas and share
their data. Nothing else is communicated between devices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from onebasin import processes
from onebasin.inference.program import Program
from onebasin.inference.shards import AXIS as DATA_AXIS
from onebasin.trees import PyTree, add_axis, take_entry

Function: TypeAlias = Callable[..., PyTree]
Axes: TypeAlias = tuple[int | None, ...]
DeviceAxes: TypeAlias = tuple[int | Literal["data"] | None, ...]
AXIS = "replicas"
SLOW_STEP = 2e-3  # seconds


@dataclass(frozen=True)
class Replicas:
    """The distribution of `count` replicas over the devices."""

    count: int
    sequential: bool = False
    data_shards: int = 1
    splits_data: bool = False
    """Whether each device of a group has a part of the data, not all of them."""
    per_device: int = field(init=False)
    mesh: Mesh = field(init=False)

    def __post_init__(self) -> None:
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        processes.check_shards(self.data_shards, len(devices))
        groups = len(devices) // self.data_shards
        per_device = -(-self.count // groups)
        used = groups if processes.several() else -(-self.count // per_device)
        grid = np.array(devices[: used * self.data_shards]).reshape(used, self.data_shards)
        mesh = Mesh(grid[:, 0], (AXIS,)) if self.data_shards == 1 else Mesh(grid, (AXIS, DATA_AXIS))
        object.__setattr__(self, "per_device", per_device)
        object.__setattr__(self, "mesh", mesh)

    @classmethod
    def of(cls, program: Program, count: int, data_shards: int = 1) -> "Replicas":
        """Replicas of a program: on a CPU, those with slow steps run one after another."""
        slow = jax.default_backend() == "cpu" and program.seconds_per_step > SLOW_STEP
        return cls(count, slow, data_shards, program.splits_data)

    @property
    def padded(self) -> int:
        """The number of replicas with padding."""
        return self.per_device * len(self.mesh.devices)

    def keeper(self, replica: int) -> int:
        """The process that keeps a replica: the one with the first device of its group."""
        return self.mesh.devices.reshape(len(self.mesh.devices), -1)[
            replica // self.per_device, 0
        ].process_index

    @property
    def own(self) -> list[int]:
        """The replicas that this process keeps, which follow one another."""
        return [i for i in range(self.count) if self.keeper(i) == jax.process_index()]

    def firsts(self) -> list[int]:
        """The first replica of every process that keeps any."""
        return [i for i in range(self.count) if i == 0 or self.keeper(i) != self.keeper(i - 1)]

    def layout(self) -> dict[str, int]:
        """On what the order of sums depends, and with it the last digits of the results."""
        return {"replicas_per_device": self.per_device, "data_shards": self.data_shards}

    def place(self, tree: PyTree) -> PyTree:
        """A tree with a leading axis of replicas, padded and split over the devices."""
        picks = np.minimum(np.arange(self.padded), self.count - 1)
        return self._put(take_entry(tree, picks), PartitionSpec(AXIS))

    def place_data(self, data: PyTree) -> PyTree:
        """The data: split over the devices of a group, or with a copy on every device."""
        return self._put(data, self._spec("data"))

    def _put(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        sharding = NamedSharding(self.mesh, spec)
        if not processes.several():
            return jax.device_put(tree, sharding)

        def put(leaf: jax.Array | np.ndarray) -> jax.Array:
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                data = put(jax.random.key_data(leaf))
                return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
            host = np.asarray(leaf)
            return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])

        return jax.tree.map(put, tree)

    def _spec(self, axis: int | Literal["data"] | None) -> PartitionSpec:
        if axis == "data":
            return PartitionSpec(DATA_AXIS) if self.splits_data else PartitionSpec()
        return PartitionSpec() if axis is None else PartitionSpec(AXIS)

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

    def on_devices(self, function: Function, in_axes: DeviceAxes) -> Function:
        """The function on every device.

        Arguments with axis 0 are split over the groups; "data" marks the data, None what all share.
        """
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tuple(map(self._spec, in_axes)),
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )

    def initialised(self, program: Program) -> Function:
        """(keys, data) → the states of all replicas before the first step."""
        init = self.on_one_device(program.init, (0, None))
        return self.on_devices(init, (0, "data"))

    def initial_states(self, program: Program, keys: jax.Array, data: PyTree) -> PyTree:
        """The states of all replicas before the first step."""
        return jax.jit(self.initialised(program))(keys, data)

    def state_shapes(self, program: Program, keys: jax.Array, data: PyTree) -> PyTree:
        """The shapes of the states, without the padding."""
        shapes = jax.eval_shape(self.initialised(program), keys, data)
        cut = lambda leaf: jax.ShapeDtypeStruct((self.count, *leaf.shape[1:]), leaf.dtype)
        return jax.tree.map(cut, shapes)

    def to_host(self, tree: PyTree) -> PyTree:
        """Host copies of the replicas that this process keeps, in order, without the padding."""
        return jax.tree.map(self._own_rows, tree)

    def _own_rows(self, leaf: jax.Array) -> np.ndarray:
        if not processes.several():
            return np.asarray(leaf)[: self.count]
        here = [shard for shard in leaf.addressable_shards if shard.replica_id == 0]
        here.sort(key=lambda shard: shard.index[0].start or 0)
        rows = [np.asarray(shard.data) for shard in here]
        empty = np.empty((0, *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([empty, *rows])[: len(self.own)]

    def to_all_hosts(self, tree: PyTree) -> PyTree:
        """Host copies of all replicas, in every process: of small arrays."""
        return jax.tree.map(lambda leaf: leaf[: self.count], processes.gathered(tree))


def change_of_layout(before: Mapping[str, int], now: Replicas) -> str:
    """What another layout than that of a checkpoint does to numbers; empty if it does nothing."""
    if not before or dict(before) == now.layout():
        return ""
    told = [
        f"{each['replicas_per_device']} replicas per device and {each['data_shards']} data shards"
        for each in (before, now.layout())
    ]
    return (
        f"the fit began with {told[0]} and goes on with {told[1]}: sums are taken in another "
        "order, so the results agree within rounding errors but not bit for bit"
    )
