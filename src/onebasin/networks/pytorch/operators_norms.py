"""Normalisation: by running statistics, or by those of a layer, a group or a batch."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.pytorch.layouts import ChannelsLast, Convolved
from onebasin.networks.pytorch.operators_linear import on_channels
from onebasin.networks.pytorch.registry import ANY_LAYOUT, operator

Optional = jax.Array | None


def _normalised(
    x: jax.Array, axes: Sequence[int], eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(x − mean) / √(variance + eps) over some axes, the mean and 1 / √(variance + eps)."""
    mean = jnp.mean(x, axes, keepdims=True)
    scale = lax.rsqrt(jnp.mean(jnp.square(x - mean), axes, keepdims=True) + eps)
    return (x - mean) * scale, mean, scale


def _by_channel(x: jax.Array, weight: Optional, bias: Optional) -> jax.Array:
    x = x if weight is None else x * on_channels(weight, x)
    return x if bias is None else x + on_channels(bias, x)


@operator("_native_batch_norm_legit_no_training", of=ANY_LAYOUT)
def batch_norm(
    x: jax.Array | ChannelsLast,
    weight: Optional,
    bias: Optional,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[jax.Array | ChannelsLast, None, None]:
    """By running statistics: like PyTorch, one factor and one summand for every channel."""
    del momentum
    wide = jnp.promote_types(running_var.dtype, jnp.float32)
    factor = lax.rsqrt(running_var.astype(wide) + eps)
    factor = factor if weight is None else factor * weight
    summand = -running_mean * factor
    summand = summand if bias is None else summand + bias
    if isinstance(x, Convolved) and x.dtype == factor.dtype:
        return ChannelsLast(x.scaled(factor) + summand), None, None
    if isinstance(x, ChannelsLast):
        return ChannelsLast(x.array * factor + summand), None, None
    return x * on_channels(factor, x) + on_channels(summand, x), None, None


@operator("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    x: jax.Array, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> tuple[jax.Array, None, None]:
    del training, momentum  # there are no running statistics
    out, _, _ = _normalised(x, (0, *range(2, x.ndim)), eps)
    return _by_channel(out, weight, bias), None, None


@operator("native_layer_norm")
def layer_norm(
    x: jax.Array, shape: Sequence[int], weight: Optional, bias: Optional, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    out, mean, scale = _normalised(x, range(x.ndim - len(shape), x.ndim), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, scale


@operator("native_group_norm")
def group_norm(
    x: jax.Array,
    weight: Optional,
    bias: Optional,
    n: Any,
    channels: Any,
    pixels: Any,
    groups: int,
    eps: float,
) -> tuple[jax.Array, None, None]:
    del n, channels, pixels
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    out, _, _ = _normalised(parts, range(2, parts.ndim), eps)
    return _by_channel(out.reshape(x.shape), weight, bias), None, None


@operator("rms_norm", keep=True)
def rms_norm(
    x: jax.Array, shape: Sequence[int], weight: Optional = None, eps: float | None = None
) -> jax.Array:
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    axes = range(x.ndim - len(shape), x.ndim)
    out = x * lax.rsqrt(jnp.mean(jnp.square(x), axes, keepdims=True) + eps)
    return out if weight is None else out * weight
