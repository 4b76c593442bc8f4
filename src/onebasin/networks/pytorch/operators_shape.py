"""Operators that rearrange positions without computing."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.pytorch.registry import axes_of, operator


@operator("view", "reshape", "_unsafe_view")
def view(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.reshape(x, shape)


@operator("permute")
def permute(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.transpose(x, [d % x.ndim for d in dims])


@operator("transpose")
def transpose(x: jax.Array, first: int, second: int) -> jax.Array:
    return jnp.swapaxes(x, first, second)


@operator("t")
def matrix_transpose(x: jax.Array) -> jax.Array:
    return x.T


@operator("expand")
def expand(x: jax.Array, sizes: Sequence[int], implicit: bool = False) -> jax.Array:
    del implicit
    x = jnp.reshape(x, (1,) * (len(sizes) - x.ndim) + x.shape)
    kept = [own if size == -1 else size for size, own in zip(sizes, x.shape, strict=True)]
    return jnp.broadcast_to(x, kept)


@operator("unsqueeze")
def unsqueeze(x: jax.Array, dim: int) -> jax.Array:
    return jnp.expand_dims(x, dim % (x.ndim + 1))


@operator("squeeze")
def squeeze(x: jax.Array, dim: int | Sequence[int] | None = None) -> jax.Array:
    return jnp.squeeze(x, tuple(d for d in axes_of(dim, x.ndim) if x.shape[d] == 1))


@operator("select")
def select(x: jax.Array, dim: int, index: int) -> jax.Array:
    return lax.index_in_dim(x, index % x.shape[dim], dim, keepdims=False)


@operator("slice")
def take_slice(
    x: jax.Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> jax.Array:
    begin, stop, step = slice(start, end, step).indices(x.shape[dim])
    return lax.slice_in_dim(x, begin, max(begin, stop), step, dim % x.ndim)


@operator("split_with_sizes")
def split_with_sizes(x: jax.Array, sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    return list(lax.split(x, sizes, dim % x.ndim))


@operator("split")
def split(x: jax.Array, size: int, dim: int = 0) -> list[jax.Array]:
    length = x.shape[dim]
    return split_with_sizes(x, [min(size, length - i) for i in range(0, length, size)], dim)


@operator("unbind")
def unbind(x: jax.Array, dim: int = 0) -> list[jax.Array]:
    return [select(x, dim, index) for index in range(x.shape[dim])]


@operator("cat")
def concatenate(arrays: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    filled = [x for x in arrays if x.shape != (0,)]  # PyTorch lets an empty vector join anything
    return jnp.concatenate(filled or arrays, dim)


@operator("stack")
def stack(arrays: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    return jnp.stack(arrays, dim)


@operator("flip")
def flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.rev(x, [d % x.ndim for d in dims])


@operator("repeat")
def repeat(x: jax.Array, counts: Sequence[int]) -> jax.Array:
    return jnp.tile(x, counts)


@operator("roll")
def roll(x: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    if dims:
        return jnp.roll(x, tuple(shifts), tuple(dims))
    return jnp.roll(x, tuple(shifts))


@operator("constant_pad_nd")
def pad(x: jax.Array, widths: Sequence[int], value: float = 0) -> jax.Array:
    """`widths` are pairs, the last axis first; a negative width takes positions away."""
    pairs = [(before, after, 0) for before, after in zip(widths[::2], widths[1::2], strict=True)]
    untouched = [(0, 0, 0)] * (x.ndim - len(pairs))
    return lax.pad(x, jnp.asarray(value, x.dtype), [*untouched, *reversed(pairs)])


@operator("copy")
def copy(x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    """What x holds after it is written over."""
    del non_blocking
    return jnp.broadcast_to(source, x.shape).astype(x.dtype)


@operator("tril")
def lower_triangle(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.tril(x, diagonal)


@operator("triu")
def upper_triangle(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.triu(x, diagonal)


@operator("diagonal")
def diagonal(x: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    return jnp.diagonal(x, offset, dim1, dim2)


@operator("sym_size")
def size(x: jax.Array, dim: int) -> int:
    return x.shape[dim]


@operator("sym_numel")
def number_of_elements(x: jax.Array) -> int:
    return x.size


@operator(
    "_assert_tensor_metadata",
    "_assert_scalar",
    "_assert_async",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)
def nothing(*_: Any, **__: Any) -> None:
    """PyTorch's assertions on what it traced."""
