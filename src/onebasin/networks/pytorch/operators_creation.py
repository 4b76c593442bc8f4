"""Operators that make new arrays."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from onebasin.networks.pytorch.registry import operator


@operator("full")
def full(shape: Sequence[int], value: Any, *, dtype: Any = None) -> jax.Array:
    return jnp.full(shape, value, dtype)


@operator("full_like")
def full_like(x: jax.Array, value: Any, *, dtype: Any = None) -> jax.Array:
    return jnp.full(x.shape, value, dtype or x.dtype)


@operator("zeros", "empty")
def zeros(shape: Sequence[int], *, dtype: Any = None) -> jax.Array:
    return jnp.zeros(shape, dtype)


@operator("ones")
def ones(shape: Sequence[int], *, dtype: Any = None) -> jax.Array:
    return jnp.ones(shape, dtype)


@operator("zeros_like", "empty_like")
def zeros_like(x: jax.Array, *, dtype: Any = None) -> jax.Array:
    return jnp.zeros(x.shape, dtype or x.dtype)


@operator("ones_like")
def ones_like(x: jax.Array, *, dtype: Any = None) -> jax.Array:
    return jnp.ones(x.shape, dtype or x.dtype)


@operator("new_zeros", "new_empty")
def new_zeros(x: jax.Array, shape: Sequence[int], *, dtype: Any = None) -> jax.Array:
    return jnp.zeros(shape, dtype or x.dtype)


@operator("new_ones")
def new_ones(x: jax.Array, shape: Sequence[int], *, dtype: Any = None) -> jax.Array:
    return jnp.ones(shape, dtype or x.dtype)


@operator("new_full")
def new_full(x: jax.Array, shape: Sequence[int], value: Any, *, dtype: Any = None) -> jax.Array:
    return jnp.full(shape, value, dtype or x.dtype)


@operator("arange")
def arange(*bounds: Any, dtype: Any = None) -> jax.Array:
    return jnp.arange(*bounds, dtype=dtype)


@operator("scalar_tensor")
def scalar(value: Any, *, dtype: Any = None) -> jax.Array:
    return jnp.asarray(value, dtype)
