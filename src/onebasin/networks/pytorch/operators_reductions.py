"""Operators that combine the positions of an axis."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from onebasin.networks.pytorch.registry import axes_of, operator

Dims = int | Sequence[int] | None


@operator("sum")
def total(x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    return jnp.sum(x, axes_of(dim, x.ndim), keepdims=keepdim, dtype=dtype)


@operator("mean")
def mean(x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    return jnp.mean(x, axes_of(dim, x.ndim), keepdims=keepdim, dtype=dtype)


@operator("var")
def variance(
    x: jax.Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> jax.Array:
    axes = axes_of(dim, x.ndim)
    count = math.prod(x.shape[axis] for axis in axes)
    squares = jnp.square(x - jnp.mean(x, axes, keepdims=True))
    return jnp.sum(squares, axes, keepdims=keepdim) / (
        count - (1 if correction is None else correction)
    )


@operator("prod")
def product(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> jax.Array:
    return jnp.prod(x, axes_of(dim, x.ndim), keepdims=keepdim, dtype=dtype)


@operator("any")
def any_of(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return jnp.any(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operator("all")
def all_of(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return jnp.all(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operator("amax")
def largest(x: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
    return jnp.max(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operator("amin")
def smallest(x: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
    return jnp.min(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operator("max.dim")
def largest_and_where(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return jnp.max(x, dim, keepdims=keepdim), jnp.argmax(x, dim, keepdims=keepdim)


@operator("min.dim")
def smallest_and_where(
    x: jax.Array, dim: int, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    return jnp.min(x, dim, keepdims=keepdim), jnp.argmin(x, dim, keepdims=keepdim)


@operator("argmax")
def argmax(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    return jnp.argmax(x, dim, keepdims=keepdim)


@operator("argmin")
def argmin(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    return jnp.argmin(x, dim, keepdims=keepdim)


@operator("cumsum")
def cumulative_sum(x: jax.Array, dim: int, *, dtype: Any = None) -> jax.Array:
    x = x.astype(int) if x.dtype == bool else x
    return jnp.cumsum(x, dim, dtype=dtype)


@operator("_softmax")
def softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    del half_to_float
    return jax.nn.softmax(x, dim)


@operator("_log_softmax")
def log_softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    del half_to_float
    return jax.nn.log_softmax(x, dim)


@operator("_safe_softmax", keep=True)
def safe_softmax(x: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
    """The softmax, and zeros where every score is −∞."""
    x = x if dtype is None else x.astype(dtype)
    powers = safe_powers(x, dim)
    sums = jnp.sum(powers, dim, keepdims=True)
    return powers / jnp.where(sums == 0, 1, sums)


def safe_powers(x: jax.Array, dim: int) -> jax.Array:
    """exp(x) up to a factor that keeps the largest finite; zeros where every x is −∞."""
    peak = jax.lax.stop_gradient(jnp.max(x, dim, keepdims=True))
    return jnp.exp(x - jnp.where(jnp.isfinite(peak), peak, 0))


@operator("linalg_vector_norm")
def vector_norm(
    x: jax.Array, order: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> jax.Array:
    x = x if dtype is None else x.astype(dtype)
    axes = axes_of(dim, x.ndim)
    if order == 2:
        return jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=keepdim))
    if math.isinf(order):
        return (jnp.max if order > 0 else jnp.min)(jnp.abs(x), axes, keepdims=keepdim)
    if order == 0:
        return jnp.sum(x != 0, axes, keepdims=keepdim).astype(x.dtype)
    return jnp.sum(jnp.abs(x) ** order, axes, keepdims=keepdim) ** (1 / order)
