"""Operators that act on each position alone."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.pytorch.registry import POINTWISE, operator, register_all

register_all(
    {
        "abs": jnp.abs,
        "acos": jnp.arccos,
        "acosh": jnp.arccosh,
        "asin": jnp.arcsin,
        "asinh": jnp.arcsinh,
        "atan": jnp.arctan,
        "atan2": jnp.arctan2,
        "atanh": jnp.arctanh,
        "__and__": jnp.bitwise_and,
        "__or__": jnp.bitwise_or,
        "__xor__": jnp.bitwise_xor,
        "bitwise_and": jnp.bitwise_and,
        "bitwise_not": jnp.bitwise_not,
        "bitwise_or": jnp.bitwise_or,
        "bitwise_xor": jnp.bitwise_xor,
        "ceil": jnp.ceil,
        "cos": jnp.cos,
        "cosh": jnp.cosh,
        "eq": jnp.equal,
        "erf": jax.scipy.special.erf,
        "exp": jnp.exp,
        "expm1": jnp.expm1,
        "floor": jnp.floor,
        "fmod": jnp.fmod,
        "ge": jnp.greater_equal,
        "gt": jnp.greater,
        "hardsigmoid": jax.nn.hard_sigmoid,
        "hardswish": jax.nn.hard_swish,
        "isfinite": jnp.isfinite,
        "isinf": jnp.isinf,
        "isnan": jnp.isnan,
        "le": jnp.less_equal,
        "log": jnp.log,
        "log10": jnp.log10,
        "log1p": jnp.log1p,
        "log2": jnp.log2,
        "logical_and": jnp.logical_and,
        "logical_not": jnp.logical_not,
        "logical_or": jnp.logical_or,
        "logical_xor": jnp.logical_xor,
        "lt": jnp.less,
        "maximum": jnp.maximum,
        "minimum": jnp.minimum,
        "mish": jax.nn.mish,
        "mul": jnp.multiply,
        "ne": jnp.not_equal,
        "neg": jnp.negative,
        "reciprocal": lambda x: 1 / x,
        "relu": jax.nn.relu,
        "remainder": jnp.remainder,
        "round": jnp.round,
        "rsqrt": lax.rsqrt,
        "sigmoid": jax.nn.sigmoid,
        "sign": jnp.sign,
        "silu": jax.nn.silu,
        "sin": jnp.sin,
        "sinh": jnp.sinh,
        "sqrt": jnp.sqrt,
        "tan": jnp.tan,
        "tanh": jnp.tanh,
        "trunc": jnp.trunc,
        "where": jnp.where,
    },
    of=POINTWISE,
)


@operator("add", of=POINTWISE)
def add(x: Any, y: Any, *, alpha: float = 1) -> jax.Array:
    return x + (y if alpha == 1 else alpha * y)


@operator("sub", of=POINTWISE)
def subtract(x: Any, y: Any, *, alpha: float = 1) -> jax.Array:
    return x - (y if alpha == 1 else alpha * y)


@operator("rsub", of=POINTWISE)
def subtract_from(x: Any, y: Any, alpha: float = 1) -> jax.Array:
    return y - (x if alpha == 1 else alpha * x)


@operator("div", of=POINTWISE)
def divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> jax.Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    quotient = jnp.true_divide(x, y)
    return quotient if rounding_mode is None else jnp.trunc(quotient)


@operator("pow", of=POINTWISE)
def power(x: Any, exponent: Any) -> jax.Array:
    whole = isinstance(exponent, int | float) and float(exponent).is_integer()
    if whole and jnp.issubdtype(x.dtype, jnp.inexact):
        return lax.integer_pow(x, int(exponent))  # differentiable at 0, unlike the general power
    return jnp.power(x, exponent)


@operator("clamp", "hardtanh", of=POINTWISE)
def clamp(x: jax.Array, least: Any = None, most: Any = None) -> jax.Array:
    return jnp.clip(x, least, most)


@operator("gelu", of=POINTWISE)
def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    if approximate == "tanh":
        return jax.nn.gelu(x, approximate=True)
    # As PyTorch computes it. With erfc, which is exact far below zero too, XLA takes twice as long.
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@operator("leaky_relu", of=POINTWISE)
def leaky_relu(x: jax.Array, slope: float = 0.01) -> jax.Array:
    return jnp.where(x > 0, x, slope * x)


@operator("elu", of=POINTWISE)
def elu(
    x: jax.Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> jax.Array:
    negative = jnp.minimum(x, 0)  # the branch not taken must not overflow: its gradient counts
    return jnp.where(x > 0, scale * x, scale * alpha * jnp.expm1(input_scale * negative))


@operator("softplus", of=POINTWISE)
def softplus(x: jax.Array, beta: float = 1.0, threshold: float = 20.0) -> jax.Array:
    return jnp.where(beta * x > threshold, x, jax.nn.softplus(beta * x) / beta)


@operator("_prelu_kernel", of=POINTWISE)
def prelu(x: jax.Array, slopes: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, slopes * x)


@operator("_to_copy", of=POINTWISE)
def cast(x: jax.Array, *, dtype: Any = None) -> jax.Array:
    return x if dtype is None else x.astype(dtype)


@operator("clone", "alias", "detach", "lift_fresh_copy", of=POINTWISE)
def same(x: jax.Array) -> jax.Array:
    return x


@operator("dropout", keep=True, of=POINTWISE)
def dropout(x: jax.Array, rate: float, train: bool) -> jax.Array:
    if train and rate:
        raise ValueError(
            "the module drops units at random in evaluation mode too; call torch.nn.functional."
            "dropout with training=self.training"
        )
    return x


@operator("rrelu_with_noise_functional")
def randomised_relu(
    x: jax.Array,
    noise: jax.Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    train: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """In evaluation mode, with the mean of the random slopes."""
    if train:
        raise ValueError("the module draws slopes at random; call module.eval() first")
    return leaky_relu(x, (lower + upper) / 2), noise
