"""The only code that permutes anything: gathering along the axes of a tree's leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from onebasin.symmetry.layout import Layout, Layouts, gather_index, moves
from onebasin.threads import available_cores, pool
from onebasin.trees import PyTree, path_name

BLOCK_BYTES = 1 << 20  # so large that threads rarely wait for the GIL, and still in the cache
PARALLEL_BYTES = 1 << 20  # below this, threads cost more than they save


def move_tree(
    tree: PyTree,
    lead: int,
    layouts: Layouts,
    indices: Mapping[str, np.ndarray],
    *,
    draws_stay_in_file: bool = False,
) -> PyTree:
    """Every leaf gathered along its axes by the groups' indices, after `lead` leading axes.

    With `draws_stay_in_file`, memory-mapped draws become `MovedDraws`.
    """
    if lead == 0 and any(index.ndim == 2 for index in indices.values()):
        raise ValueError(
            "a stacked permutation moves the draws of Samples; take one with .draw(index)"
        )
    cache: dict[Layout, np.ndarray] = {}

    def index_of(layout: Layout) -> np.ndarray:
        if layout not in cache:
            # NumPy would convert any other integer type again for every block.
            cache[layout] = gather_index(layout, indices).astype(np.intp)
        return cache[layout]

    def move(path: Any, leaf: Any) -> Any:
        by_axis = {
            axis + lead: index_of(layout)
            for axis, layout in enumerate(layouts.get(path_name(path), ()))
            if moves(layout)
        }
        if not by_axis:
            return leaf
        in_file = draws_stay_in_file and lead == 1 and isinstance(leaf, np.memmap | MovedDraws)
        return MovedDraws(leaf, by_axis) if in_file else gather(leaf, by_axis)

    return jax.tree_util.tree_map_with_path(move, tree)


@dataclass(frozen=True, eq=False)
class MovedDraws:
    """Draws in a file, moved when they are read: slices and single draws are gathered.

    So draws larger than memory can be permuted, and saved or summarised block by block.
    `np.asarray` reads and moves all of them.
    """

    draws: "np.memmap | MovedDraws"
    by_axis: Mapping[int, np.ndarray]

    def __post_init__(self) -> None:
        _check_stack(self.by_axis, self.draws)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.draws.shape

    @property
    def dtype(self) -> np.dtype:
        return self.draws.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.draws.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> np.ndarray:
        if isinstance(which, int | np.integer):
            return self[which : which + 1 or None][0]
        own = {axis: p[which] if p.ndim == 2 else p for axis, p in self.by_axis.items()}
        return gather(self.draws[which], own)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return self[:].astype(dtype or self.dtype, copy=False)


def _check_stack(by_axis: Mapping[int, np.ndarray], array: Any) -> int | None:
    """The number of draws of a stacked permutation, which must be those of the array."""
    draws = next((len(index) for index in by_axis.values() if index.ndim == 2), None)
    if draws is not None and draws != array.shape[0]:
        raise ValueError(
            f"the permutation is a stack of {draws} but there are {array.shape[0]} draws; "
            "take one for each draw"
        )
    return draws


def gather(array: Any, by_axis: Mapping[int, np.ndarray]) -> Any:
    """new[..., i, ...] = old[..., index[i], ...] along each of the given axes.

    An index [draws, n] moves each entry of the leading axis by its own row.
    """
    draws = _check_stack(by_axis, array)
    if isinstance(array, Tracer) or not _on_host(array):
        if draws is None:
            return _gather_traced(jnp.asarray(array), by_axis)
        rows = {
            axis - 1: jnp.asarray(np.broadcast_to(index, (draws, index.shape[-1])))
            for axis, index in by_axis.items()
        }
        return jax.vmap(_gather_traced)(jnp.asarray(array), rows)
    host = np.asarray(array)
    moved = _empty_aligned(host)
    if draws is not None:
        for i, (out, draw) in enumerate(zip(moved, host, strict=True)):
            _take(out, draw, {a - 1: p[i] if p.ndim == 2 else p for a, p in by_axis.items()})
    else:
        _take(moved, host, by_axis)
    if not isinstance(array, jax.Array):
        return moved
    if moved.dtype.itemsize < 8:
        return jax.device_put(moved, may_alias=True)
    with jax.enable_x64(True):  # otherwise double precision would become single
        return jax.device_put(moved, may_alias=True)


def _take(out: np.ndarray, array: np.ndarray, by_axis: Mapping[int, np.ndarray]) -> None:
    """Gather on the host, a block of the first axis at a time.

    XLA's gather on the CPU costs several times as much as a copy. Here whole rows are copied for
    the first axis, and the block is still in the cache when its other axes are gathered. Blocks
    are independent, so large arrays use all cores (NumPy's take releases the GIL).
    """
    others = [axis for axis in by_axis if axis != 0]
    rows = max(1, BLOCK_BYTES // max(array[:1].nbytes, 1))

    def blocks(starts: range) -> None:
        for start in starts:
            stop = min(start + rows, len(array))
            part = array[by_axis[0][start:stop]] if 0 in by_axis else array[start:stop]
            for axis in others[:-1]:
                part = part.take(by_axis[axis], axis=axis)
            if others:
                part.take(by_axis[others[-1]], axis=others[-1], out=out[start:stop], mode="clip")
            else:
                out[start:stop] = part

    starts = range(0, len(array), rows)
    workers = len(available_cores())
    if array.nbytes < PARALLEL_BYTES or len(starts) < 2 * workers:
        blocks(starts)
    else:
        # One task for each core: starting a task costs as much as moving several blocks.
        share = -(-len(starts) // workers)
        list(pool().map(blocks, [starts[i : i + share] for i in range(0, len(starts), share)]))


def _empty_aligned(like: np.ndarray) -> np.ndarray:
    """Uninitialised memory, 64-byte aligned so that JAX can take it over without a copy."""
    buffer = np.empty(like.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


def _on_host(array: Any) -> bool:
    if not isinstance(array, jax.Array):
        return True
    on_cpu = all(device.platform == "cpu" for device in array.devices())
    return on_cpu and array.is_fully_addressable and len(array.devices()) == 1


def _gather_traced(array: jax.Array, by_axis: Mapping[int, np.ndarray | jax.Array]) -> jax.Array:
    for axis, index in by_axis.items():
        array = jnp.take(array, index, axis=axis, unique_indices=True, mode="clip")
    return array
