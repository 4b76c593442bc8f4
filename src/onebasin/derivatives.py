"""Derivatives along a direction, also of functions that have reverse mode only."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from onebasin.trees import PyTree


def along(
    function: Callable[[PyTree], jax.Array], at: PyTree, direction: PyTree
) -> tuple[jax.Array, jax.Array]:
    """The value of a function at a point, and its derivative there along a direction.

    On a CPU our convolution has its own reverse mode, and no forward mode (`jax.jvp`). The
    derivative is therefore that of u ↦ Jᵀu, which is linear: transposed, it is v ↦ Jv. Compiled,
    u is not computed with, and the work is that of forward mode.

    >>> along(lambda p: p["w"] ** 2, {"w": jnp.array(3.0)}, {"w": jnp.array(0.5)})[1].item()
    3.0
    """
    value, back = jax.vjp(function, at)
    _, forward = jax.vjp(back, jnp.zeros_like(value))
    (derivative,) = forward((direction,))
    return value, derivative
