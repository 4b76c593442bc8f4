"""The one convolution of our networks, so that how it is computed can be chosen in one place."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import lax


def conv2d(x: jax.Array, kernel: jax.Array, *, stride: int = 1, padding: int = 0) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


class Conv(nn.Module):
    """A square convolution that keeps the image's size (divided by `stride`); NHWC.

    The `kernel` is [side, side, in, out]; the image is padded by side // 2 on every edge, as in
    PyTorch, also where the stride is 2.
    """

    features: int
    side: int = 3
    stride: int = 1
    use_bias: bool = False
    kernel_init: Any = nn.initializers.he_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.side, self.side, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = None
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, shape[-1:], jnp.float32)
        x, kernel, bias = promote_dtype(x, kernel, bias, dtype=None)
        y = conv2d(x, kernel, stride=self.stride, padding=self.side // 2)
        return y if bias is None else y + bias
