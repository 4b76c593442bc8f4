"""A small convolutional network in the style of LeNet, which flattens its last feature maps."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from onebasin.networks.activations import ACTIVATIONS, kernel_init
from onebasin.networks.checks import check_activation, check_count, check_images
from onebasin.networks.convolution import Conv


class LeNet(nn.Module):
    """Two 5×5 convolutions with max pooling, a dense layer, and a linear output.

    The layers have `width`, 2 `width` and 8 `width` units. In the flattened maps the channel varies
    fastest, so channel c of the last convolution feeds the rows c, c + 2·width, c + 4·width, … of
    the dense kernel, one per pixel.
    """

    width: int = 16
    num_classes: int = 10
    activation: str = "relu"

    def __post_init__(self) -> None:
        check_count("LeNet", "width", self.width)
        check_count("LeNet", "num_classes", self.num_classes)
        check_activation("LeNet", self.activation)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_images("LeNet", x)
        if min(x.shape[1:3]) < 4:
            raise ValueError(f"LeNet halves images twice: give at least 4×4, got {x.shape[1:3]}")
        activation = ACTIVATIONS[self.activation]
        init = kernel_init(self.activation)
        for channels in (self.width, 2 * self.width):
            x = Conv(channels, side=5, use_bias=True, kernel_init=init)(x)
            x = _halve(activation(x))
        x = x.reshape(x.shape[0], -1)
        x = activation(nn.Dense(8 * self.width, kernel_init=init)(x))
        return nn.Dense(self.num_classes)(x)


def _halve(x: jax.Array) -> jax.Array:
    """Max pooling over 2×2 pixels; an odd last row or column is dropped."""
    n, height, width, channels = x.shape
    height, width = height // 2, width // 2
    x = x[:, : 2 * height, : 2 * width]
    return jnp.max(x.reshape(n, height, 2, width, 2, channels), axis=(2, 4))
