"""The multilayer perceptron of table 2 of Rossi et al. (2023)."""

import jax
from flax import linen as nn

from onebasin.networks.activations import ACTIVATIONS, kernel_init
from onebasin.networks.checks import check_activation, check_count, check_counts


class MLP(nn.Module):
    """Dense hidden layers of the given widths and a linear output; inputs are flattened."""

    widths: tuple[int, ...] = (512, 512, 512)
    num_classes: int = 10
    activation: str = "relu"

    def __post_init__(self) -> None:
        check_counts("MLP", "widths", self.widths)
        check_count("MLP", "num_classes", self.num_classes)
        check_activation("MLP", self.activation)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.ndim < 2:
            raise ValueError(f"MLP takes a batch of examples [n, ...], got shape {x.shape}")
        x = x.reshape(x.shape[0], -1)
        for width in self.widths:
            x = nn.Dense(width, kernel_init=kernel_init(self.activation))(x)
            x = ACTIVATIONS[self.activation](x)
        return nn.Dense(self.num_classes)(x)
