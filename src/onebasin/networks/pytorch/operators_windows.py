"""Pooling."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.pytorch.registry import operator


def _for_each(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values


def _edges(
    x: jax.Array,
    sides: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    round_up: bool,
) -> list[tuple[int, int]]:
    """The padding before and after the last axes; rounding up adds to the latter."""
    edges = []
    lengths = x.shape[-len(sides) :]
    for length, side, s, p, d in zip(lengths, sides, stride, padding, dilation, strict=True):
        span = d * (side - 1) + 1
        extra = 0
        if round_up:
            count = -(-(length + 2 * p - span) // s) + 1
            count -= (count - 1) * s >= length + p  # a window begins in the input or its left edge
            extra = max(0, (count - 1) * s + span - length - 2 * p)
        edges.append((p, p + extra))
    return edges


def _reduce(
    x: jax.Array,
    sides: Sequence[int],
    stride: Sequence[int],
    edges: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    start: Any,
    combine: Any,
) -> jax.Array:
    """Reduce windows over the last axes."""
    lead = (1,) * (x.ndim - len(sides))
    return lax.reduce_window(
        x,
        start,
        combine,
        (*lead, *sides),
        (*lead, *stride),
        [*[(0, 0)] * len(lead), *edges],
        window_dilation=(*lead, *dilation),
    )


@operator("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    x: jax.Array,
    sides: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> tuple[jax.Array, None]:
    """The largest of every window; where it was is not computed."""
    n = len(sides)
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min
    strides, spread = tuple(stride) or tuple(sides), _for_each(dilation, n)
    edges = _edges(x, sides, strides, _for_each(padding, n), spread, ceil_mode)
    return _reduce(x, sides, strides, edges, spread, least, lax.max), None


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    x: jax.Array,
    sides: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    n = len(sides)
    strides, pad, spread = tuple(stride) or tuple(sides), _for_each(padding, n), (1,) * n
    edges = _edges(x, sides, strides, pad, spread, ceil_mode)
    sums = _reduce(x, sides, strides, edges, spread, 0.0, lax.add)
    if divisor_override:
        return sums / divisor_override
    if count_include_pad and not ceil_mode:
        return sums / math.prod(sides)
    counted = jnp.ones(x.shape[-n:], x.dtype)
    if count_include_pad:  # the padding counts, but not what rounding up adds beyond it
        counted = jnp.pad(counted, [(p, p) for p in pad], constant_values=1)
        edges = [(0, after - p) for (_, after), p in zip(edges, pad, strict=True)]
    return sums / _reduce(counted, sides, strides, edges, spread, 0.0, lax.add)


def _nearly_equal(x: jax.Array, size: int, axis: int) -> list[jax.Array]:
    """`size` windows of nearly equal length along an axis, from ⌊i·length/size⌋ on."""
    length = x.shape[axis]
    bounds = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
    return [lax.slice_in_dim(x, a, b, 1, axis) for a, b in bounds]


@operator("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", keep=True)
@operator("_adaptive_avg_pool3d")
def adaptive_avg_pool(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """Means of `size` windows of nearly equal length."""
    for axis, size in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
        length = x.shape[axis]
        if length % size == 0:
            x = x.reshape(*x.shape[:axis], size, length // size, *x.shape[axis + 1 :]).mean(
                axis + 1
            )
            continue
        windows = _nearly_equal(x, size, axis)
        x = jnp.concatenate([w.mean(axis, keepdims=True) for w in windows], axis)
    return x


@operator("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(x: jax.Array, sizes: Sequence[int]) -> tuple[jax.Array, None]:
    """The largest of `size` windows of nearly equal length; where it was is not computed."""
    for axis, size in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
        windows = _nearly_equal(x, size, axis)
        x = jnp.concatenate([w.max(axis, keepdims=True) for w in windows], axis)
    return x, None
