"""Images with their channels last, for as long as no operator needs them elsewhere.

PyTorch has images as [n, channels, …]. The convolutions of XLA on a CPU compute with
[n, …, channels], so in PyTorch's order every convolution, and each of its two gradients, transposes
its arrays. Here the result of a convolution keeps its channels last through batch normalisation and
through operators that act on each position alone; for all others it is transposed. A convolution
also takes a ReLU before it and the factor of a normalisation after it into its own derivative.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from onebasin.networks.pytorch.registry import ANY_LAYOUT, POINTWISE, TO_CHANNELS_LAST


@dataclass(frozen=True)
class ChannelsLast:
    """An image [n, channels, …], held as [n, …, channels]."""

    array: jax.Array

    @classmethod
    def of(cls, image: "jax.Array | ChannelsLast") -> "ChannelsLast":
        if isinstance(image, ChannelsLast):
            return image
        return cls(jnp.moveaxis(image, 1, -1))

    @property
    def plain(self) -> jax.Array:
        return jnp.moveaxis(self.array, -1, 1)

    def astype(self, dtype: Any) -> "ChannelsLast":
        return ChannelsLast(self.array.astype(dtype))


@dataclass(frozen=True)
class Rectified(ChannelsLast):
    """An image after a ReLU, with what it was before: a convolution takes the ReLU in itself."""

    before: jax.Array

    def astype(self, dtype: Any) -> ChannelsLast:
        return self if self.array.dtype == dtype else super().astype(dtype)


class Convolved(ChannelsLast):
    """The result of a convolution, which can multiply its channels itself.

    Nothing is computed before the result is read, or `scaled`.
    """

    def __init__(self, convolve: Callable[[jax.Array | None], jax.Array], dtype: Any) -> None:
        self.__dict__.update(scaled=convolve, dtype=dtype)

    scaled: Callable[[jax.Array | None], jax.Array]
    dtype: Any

    @cached_property
    def array(self) -> jax.Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.scaled(None)

    def astype(self, dtype: Any) -> ChannelsLast:
        return self if self.dtype == dtype else super().astype(dtype)


def apply(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator on arrays of both layouts."""
    if function in TO_CHANNELS_LAST:
        return function(ChannelsLast.of(args[0]), *map(plain, args[1:]), **kwargs)
    if function in ANY_LAYOUT:
        return function(args[0], *map(plain, args[1:]), **kwargs)
    if function is jax.nn.relu and isinstance(args[0], ChannelsLast):
        return Rectified(jax.nn.relu(args[0].array), args[0].array)
    given = [*args, *kwargs.values()]
    ranks = [value.array.ndim for value in given if isinstance(value, ChannelsLast)]
    if ranks and function in POINTWISE and all(_fits(value, ranks[0]) for value in given):
        named = {name: _held(value) for name, value in kwargs.items()}
        return ChannelsLast(function(*map(_held, args), **named))
    return function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})


def plain(value: Any) -> Any:
    """An array, or a list of them, in PyTorch's layout; anything else as it is."""
    if isinstance(value, ChannelsLast):
        return value.plain
    return [plain(v) for v in value] if isinstance(value, list) else value


def computed(image: jax.Array | ChannelsLast) -> jax.Array | ChannelsLast:
    """An image that is also read before it is scaled, so that it is convolved once."""
    return ChannelsLast(image.array) if isinstance(image, Convolved) else image


def channels_of(image: jax.Array | ChannelsLast) -> tuple[jax.Array, int]:
    """An image as it is held, and the axis of its channels."""
    if isinstance(image, ChannelsLast):
        return image.array, image.array.ndim - 1
    return image, 1


def _fits(value: Any, rank: int) -> bool:
    """Whether a value means the same beside images of a rank when their channels are last.

    An array of a lower rank is broadcast along the first axes, so its last is not the channels.
    """
    if isinstance(value, ChannelsLast):
        return value.array.ndim == rank
    return not isinstance(value, jax.Array) or value.ndim in (0, rank)


def _held(value: Any) -> Any:
    """An argument beside images with their channels last."""
    if isinstance(value, jax.Array) and value.ndim:
        return jnp.moveaxis(value, 1, -1)
    return value.array if isinstance(value, ChannelsLast) else value
