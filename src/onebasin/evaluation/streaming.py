"""Running a network over data, draws and points of a path in bounded memory.

Data are processed in blocks; within a block, draws one at a time; and for each draw, all points t
in one compiled call that loops over small batches. So noise is drawn once for all t, and only the
log likelihood of every (t, draw, example) of the block and the summed class probabilities (or
means of the targets) are kept. Blocks are as large as `BLOCK_BYTES` and `INPUT_BYTES` allow. Data
may be a memory map, whose blocks are read as they are used.

With `data_shards` the rows of every batch are spread over that many devices.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from onebasin.evaluation.expectations import expectation
from onebasin.evaluation.strata import Ends
from onebasin.likelihoods import (
    Categorical,
    Classification,
    Likelihood,
    Regression,
    check_output,
)
from onebasin.networks.network import Apply, forward
from onebasin.paths.ends import lerp
from onebasin.paths.repairing import Correction
from onebasin.processes import check_shards
from onebasin.trees import PyTree

BLOCK_BYTES = 1 << 28  # log likelihoods and summed probabilities of one block of data
INPUT_BYTES = 1 << 25  # inputs of one block
BATCH_BYTES = 1 << 26  # the largest array inside the network, for one batch
LARGEST_BATCH = 2048  # rows; more do not make matrix products faster


@dataclass(frozen=True, eq=False)
class Blocks:
    """The data cut into blocks of equal shape: `batches` × `batch` rows, the last one padded."""

    x: np.ndarray
    y: np.ndarray | None
    batch: int
    batches: int
    outputs: tuple[int, ...]
    """The shape of the network's outputs for one example."""
    each: int = 1
    """Predictions that the network makes for one example: positions of a sequence."""
    sharding: NamedSharding | None = None
    """How the rows of a batch are spread over devices, if over more than one."""

    def __iter__(self) -> Iterator[tuple[jax.Array, jax.Array | None, int]]:
        """x [batches, batch, ...], y likewise, and the number of rows that are not padding."""
        for start in range(0, len(self.x), self.rows):
            rows = slice(start, start + self.rows)
            y = None if self.y is None else self._cut(self.y[rows])
            yield self._cut(self.x[rows]), y, min(self.rows, len(self.x) - start)

    def _cut(self, part: np.ndarray) -> jax.Array:
        missing = self.rows - len(part)
        if missing:
            part = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])
        batches = part.reshape(self.batches, self.batch, *part.shape[1:])
        if self.sharding is None:
            return jnp.asarray(batches)
        return jax.device_put(jnp.asarray(batches), self.sharding)

    @property
    def rows(self) -> int:
        """Examples per block."""
        return self.batch * self.batches

    @property
    def predictions(self) -> int:
        """Predictions for all examples."""
        return len(self.x) * self.each

    def __len__(self) -> int:
        return -(-len(self.x) // self.rows)


def cut(
    apply: Apply,
    params: PyTree,
    state: PyTree | None,
    x: np.ndarray,
    bytes_per_row: Callable[[int], int],
    batch_size: int | None,
    y: np.ndarray | None = None,
    likelihood: Likelihood | None = None,
    data_shards: int = 1,
) -> Blocks:
    """The data in blocks for this network.

    Shapes and labels that do not fit are refused here, before anything is computed.
    `bytes_per_row(outputs)` is the memory that one prediction takes while its block is processed.
    """
    check_shards(data_shards, len(jax.local_devices()))
    probe = jax.ShapeDtypeStruct((2, *x.shape[1:]), jnp.asarray(x[:0]).dtype)
    try:
        jaxpr, outputs = jax.make_jaxpr(lambda p, b, s: forward(apply, p, b, s), return_shape=True)(
            params, probe, state
        )
    except TypeError as error:
        raise ValueError(
            f"the network cannot be run on examples of shape {x.shape[1:]}: {error}"
        ) from error
    shape = check_output(outputs, 2)
    if y is not None and likelihood is not None:
        y = likelihood.targets(y)
        likelihood.check_outputs(shape, y)
    elif isinstance(likelihood, Classification | Regression):
        likelihood.check_shape(shape)
    each = math.prod(shape[1:-1]) if isinstance(likelihood, Categorical) else 1
    width = int(np.prod(shape[1:])) // each
    if batch_size is None:
        batch_size = max(1, min(LARGEST_BATCH, 2 * BATCH_BYTES // _largest(jaxpr.jaxpr)))
    elif batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    room = BLOCK_BYTES // max(each * bytes_per_row(width), 1), INPUT_BYTES // max(x[:1].nbytes, 1)
    rows = max(1, min(len(x), *room))
    rows = -(-len(x) // -(-len(x) // rows))  # blocks of even size
    batches = -(-rows // batch_size)
    batch = -(-rows // (batches * data_shards)) * data_shards
    sharding = None
    if data_shards > 1:
        mesh = Mesh(np.array(jax.local_devices()[:data_shards]), ("data",))
        sharding = NamedSharding(mesh, PartitionSpec(None, "data"))
    return Blocks(x, y, batch, batches, shape[1:], each, sharding)


def _largest(jaxpr: Jaxpr) -> int:
    """Bytes of the largest intermediate array of a computation."""
    sizes = [1]
    for eqn in jaxpr.eqns:
        arrays = [v.aval for v in eqn.outvars if isinstance(v.aval, ShapedArray)]
        sizes += [array.size * array.dtype.itemsize for array in arrays]
        for value in eqn.params.values():
            inner = value.jaxpr if isinstance(value, ClosedJaxpr) else value
            if isinstance(inner, Jaxpr):
                sizes.append(_largest(inner))
    return max(sizes)


@partial(jax.jit, static_argnames=("apply", "likelihood"), donate_argnames=("summed",))
def along(
    apply: Apply,
    likelihood: Likelihood,
    ends: Ends,
    ts: jax.Array,
    correction: Correction | None,
    x: jax.Array,
    y: jax.Array,
    summed: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Log likelihoods [points, predictions] of one draw at every t, and `summed` plus its
    expectations.

    `correction` is how a repaired path changes the params, or None.
    """
    params0, state0, params1, state1 = ends
    changes, part = (None, None) if correction is None else correction

    def at(_: None, point: PyTree) -> tuple[None, tuple[jax.Array, jax.Array]]:
        t, change, total = point
        params = lerp(t, params0, params1)
        if change is not None:
            scaled = params if part is None else lerp(t, *part)
            params = jax.tree.map(lambda p, m, a, b: p + ((a - 1) * m + b), params, scaled, *change)
        state = lerp(t, state0, state1)

        def batch(xy: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            outputs = forward(apply, params, xy[0], state)
            log_p = likelihood(outputs, xy[1]).astype(total.dtype)
            return log_p, expectation(likelihood, outputs).astype(total.dtype)

        log_p, expected = lax.map(batch, (x, y))
        return None, (log_p.reshape(-1), total + expected.reshape(total.shape))

    _, found = lax.scan(at, None, (ts, changes, summed))
    return found


@partial(jax.jit, static_argnames=("apply", "likelihood"))
def log_probabilities(
    apply: Apply, likelihood: Classification, params: PyTree, state: PyTree | None, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log class probabilities [predictions, classes] of one draw, and their entropies."""

    def batch(part: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_p = likelihood.log_probs(forward(apply, params, part, state))
        return log_p, -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    log_p, entropy = lax.map(batch, x)
    return log_p.reshape(-1, log_p.shape[-1]), entropy.reshape(-1)


@partial(jax.jit, static_argnames=("apply",))
def raw_outputs(apply: Apply, params: PyTree, state: PyTree | None, x: jax.Array) -> jax.Array:
    """The outputs of one draw, [rows, ...]."""
    found = lax.map(lambda part: forward(apply, params, part, state), x)
    return found.reshape(-1, *found.shape[2:])
