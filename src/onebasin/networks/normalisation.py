"""Filter response normalisation and the thresholded linear unit (Singh and Krishnan, CVPR 2020).

Unlike batch normalisation it acts on one example and one channel at a time, so the network remains
a function of its parameters alone, as a posterior over parameters requires.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype


class FilterResponseNorm(nn.Module):
    """y = γ x / √(ν² + ε) + β, with ν² the mean of x² over the spatial axes (eqs. 1-3).

    γ is `scale` and β is `bias`, one of each per channel. ε is fixed at 10⁻⁶; the paper learns it
    only for layers whose spatial extent is a single pixel.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:], jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:], jnp.float32)
        x, scale, bias = promote_dtype(x, scale, bias, dtype=None)
        mean_square = jnp.mean(jnp.square(x), axis=(1, 2), keepdims=True)
        return x * (scale * jax.lax.rsqrt(mean_square + self.epsilon)) + bias


class ThresholdedLinear(nn.Module):
    """z = max(y, τ) with a learned threshold τ per channel (eq. 4)."""

    @nn.compact
    def __call__(self, y: jax.Array) -> jax.Array:
        threshold = self.param("threshold", nn.initializers.zeros, y.shape[-1:], jnp.float32)
        y, threshold = promote_dtype(y, threshold, dtype=None)
        return jnp.maximum(y, threshold)
