"""The ResNet20 of table 3 of Rossi et al. (2023), with filter response normalisation."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from onebasin.networks.checks import check_count, check_images
from onebasin.networks.convolution import Conv
from onebasin.networks.normalisation import FilterResponseNorm, ThresholdedLinear


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut.

    The shortcut is the identity if the shape stays the same, else a projection: a normalised 1×1
    convolution. Each stage thus has its own residual stream.
    """

    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = Conv(self.features, stride=self.stride, name="conv1")(x)
        y = FilterResponseNorm(name="norm1")(y)
        y = ThresholdedLinear(name="threshold1")(y)
        y = Conv(self.features, name="conv2")(y)
        y = FilterResponseNorm(name="norm2")(y)
        if self.stride != 1 or x.shape[-1] != self.features:
            x = Conv(self.features, side=1, stride=self.stride, name="projection")(x)
            x = FilterResponseNorm(name="projection_norm")(x)
        return ThresholdedLinear(name="threshold2")(x + y)


class ResNet20(nn.Module):
    """A 3×3 stem and three stages of three blocks with `width`, 2 `width` and 4 `width` channels.

    The second and third stages halve the image; global average pooling and a linear output follow.
    Convolutions have no bias, since the normalisation after each has one. The first stage continues
    the stream of the stem, so there are three residual streams and nine inner layers.
    """

    width: int = 16
    num_classes: int = 10

    def __post_init__(self) -> None:
        check_count("ResNet20", "width", self.width)
        check_count("ResNet20", "num_classes", self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_images("ResNet20", x)
        x = Conv(self.width, name="stem")(x)
        x = FilterResponseNorm(name="stem_norm")(x)
        x = ThresholdedLinear(name="stem_threshold")(x)
        for stage in range(3):
            for block in range(3):
                stride = 2 if stage > 0 and block == 0 else 1
                name = f"stage{stage + 1}_block{block + 1}"
                x = ResidualBlock(self.width * 2**stage, stride, name=name)(x)
        return nn.Dense(self.num_classes, name="head")(jnp.mean(x, axis=(1, 2)))
