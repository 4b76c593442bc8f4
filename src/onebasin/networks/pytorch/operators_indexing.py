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
