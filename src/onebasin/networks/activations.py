"""The activation functions of our networks, by name."""

from collections.abc import Callable

import jax
from jax.nn import initializers

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "tanh": jax.numpy.tanh,
    "gelu": jax.nn.gelu,
    "swish": jax.nn.swish,
}


def kernel_init(activation: str) -> initializers.Initializer:
    """Initial weights that preserve the variance of the signal: LeCun for tanh, He otherwise."""
    return initializers.lecun_normal() if activation == "tanh" else initializers.he_normal()
