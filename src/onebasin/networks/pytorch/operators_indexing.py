"""Operators that read positions named by integers, and those that sort."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.pytorch.registry import operator


def _whole(index: Any) -> tuple[Any, ...]:
    """The indices of one read, with a colon where there is none."""
    return tuple(slice(None) if part is None else part for part in index)


@operator("index", "_unsafe_index")
def index(x: jax.Array, indices: Sequence[Any]) -> jax.Array:
    return x[_whole(indices)]


@operator("index_put", "_unsafe_index_put")
def index_put(
    x: jax.Array, indices: Sequence[Any], values: jax.Array, accumulate: bool = False
) -> jax.Array:
    first = indices[0]
    if len(indices) == 1 and first.dtype == bool and values.ndim == 0:
        # How many places are written depends on numbers, but not what they hold.
        chosen = first.reshape(*first.shape, *[1] * (x.ndim - first.ndim))
        return jnp.where(chosen, x + values if accumulate else values, x)
    place = x.at[_whole(indices)]
    return place.add(values) if accumulate else place.set(values)


@operator("index_select")
def index_select(x: jax.Array, dim: int, indices: jax.Array) -> jax.Array:
    return jnp.take(x, indices, axis=dim)


@operator("gather")
def gather(x: jax.Array, dim: int, indices: jax.Array, sparse_grad: bool = False) -> jax.Array:
    """x[…, indices[…, i, …], …] along `dim`; the indices may be fewer along the other axes."""
    del sparse_grad
    for axis, length in enumerate(indices.shape):
        if axis != dim % x.ndim:
            x = lax.slice_in_dim(x, 0, length, 1, axis)
    return jnp.take_along_axis(x, indices, dim)


def _along(x: jax.Array, dim: int, indices: jax.Array) -> Any:
    """The positions x[…, indices[…, i, …], …] along `dim`, to be written."""
    mesh = list(jnp.indices(indices.shape, sparse=True))
    mesh[dim % x.ndim] = indices
    return x.at[tuple(mesh)]


@operator("scatter")
def scatter(x: jax.Array, dim: int, indices: jax.Array, source: Any) -> jax.Array:
    """An array, of which as much as there are indices is written, or one number."""
    part = tuple(slice(length) for length in indices.shape)
    return _along(x, dim, indices).set(source[part] if isinstance(source, jax.Array) else source)


@operator("scatter_add")
def scatter_add(x: jax.Array, dim: int, indices: jax.Array, source: jax.Array) -> jax.Array:
    part = tuple(slice(length) for length in indices.shape)
    return _along(x, dim, indices).add(source[part])


@operator("bucketize")
def bucketize(
    x: jax.Array, bounds: jax.Array, *, out_int32: bool = False, right: bool = False
) -> jax.Array:
    del out_int32  # the graph says the data type
    return jnp.searchsorted(bounds, x, side="right" if right else "left")


@operator("median.dim")
def median(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    """The lower one of two middle values, and where it is."""
    values, order = sort(x, dim)
    middle = (x.shape[dim] - 1) // 2
    found = [lax.slice_in_dim(a, middle, middle + 1, axis=dim) for a in (values, order)]
    first, second = found if keepdim else (jnp.squeeze(a, dim) for a in found)
    return first, second


@operator("embedding")
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    del padding_idx, scale_grad_by_freq, sparse  # they concern PyTorch's gradients only
    return weight[indices]


@operator("topk")
def topk(
    x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[jax.Array, jax.Array]:
    del sorted  # sorted is one of the orders that PyTorch allows
    moved = jnp.moveaxis(x, dim, -1)
    values, indices = lax.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(indices, -1, dim)


@operator("sort")
def sort(
    x: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[jax.Array, jax.Array]:
    del stable  # stable is one of the orders that PyTorch allows
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    order = jnp.argsort(x, dim, descending=descending)
    return jnp.take_along_axis(x, order, dim), order
