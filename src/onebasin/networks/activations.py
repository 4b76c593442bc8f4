"""The activations a network may be asked for, by name."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "tanh": jax.numpy.tanh,
    "gelu": jax.nn.gelu,
    "swish": jax.nn.swish,
}


def kernel_init(activation: str) -> Any:
    """Initial weights that keep the signal's size: He for the rectifier's kind, LeCun for tanh."""
    return nn.initializers.lecun_normal() if activation == "tanh" else nn.initializers.he_normal()
