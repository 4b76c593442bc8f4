"""Complex numbers, as rotations of positions use them, and Fourier transforms."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.pytorch.registry import operator, register_all

register_all(
    {
        "complex": lax.complex,
        "polar": lambda size, angle: lax.complex(size * jnp.cos(angle), size * jnp.sin(angle)),
        "real": jnp.real,
        "imag": jnp.imag,
        "view_as_complex": lambda x: lax.complex(x[..., 0], x[..., 1]),
        "view_as_real": lambda x: jnp.stack([jnp.real(x), jnp.imag(x)], -1),
    }
)

SCALES: Sequence[Any] = ("backward", "ortho", "forward")  # PyTorch numbers them


def _scale(kind: int, forward: bool) -> Any:
    """How a transform is scaled: not at all (0), by 1/√n (1) or by 1/n (2)."""
    return SCALES[kind if forward else 2 - kind]


@operator("_fft_r2c")
def of_real(x: jax.Array, dims: Sequence[int], kind: int, onesided: bool) -> jax.Array:
    if onesided:
        return jnp.fft.rfftn(x, axes=dims, norm=_scale(kind, True))
    return jnp.fft.fftn(x, axes=dims, norm=_scale(kind, True))


@operator("_fft_c2c")
def of_complex(x: jax.Array, dims: Sequence[int], kind: int, forward: bool) -> jax.Array:
    return (jnp.fft.fftn if forward else jnp.fft.ifftn)(x, axes=dims, norm=_scale(kind, forward))


@operator("_fft_c2r")
def to_real(x: jax.Array, dims: Sequence[int], kind: int, last: int) -> jax.Array:
    sizes = [x.shape[d] for d in dims[:-1]]
    return jnp.fft.irfftn(x, [*sizes, last], axes=dims, norm=_scale(kind, False))
