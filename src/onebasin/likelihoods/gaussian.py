"""Real targets with Gaussian noise: what the noise models share, and a fixed noise.

With Y ~ N(m, s²) and z = (y − m)/s,

    E|Y − y| = s·(2φ(z) + z·(2Φ(z) − 1)),

and the difference of two independent ones is N(m₁ − m₂, s₁² + s₂²), so E|Y₁ − Y₂| is the same
function at y = 0 (Grimit et al. 2006). The CRPS of a mixture follows from both.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from onebasin.likelihoods.checks import check_positive
from onebasin.likelihoods.regression import Regression

LOG_2PI = math.log(2 * math.pi)
PAIRS_AT_ONCE = 1 << 21  # numbers in one block of differences


class GaussianNoise(Regression):
    """A Gaussian with the mean and noise std that outputs give."""

    def noise(self, outputs: jax.Array) -> jax.Array | float:
        """The std of the noise, [..., targets] or a number."""
        raise NotImplementedError

    def sample(self, outputs: jax.Array, *, key: jax.Array) -> jax.Array:
        mean = self.mean(outputs)
        return mean + self.noise(outputs) * jax.random.normal(key, mean.shape, mean.dtype)

    def variance(self, outputs: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.square(self.noise(outputs)), self.mean(outputs).shape)

    def cdf(self, outputs: ArrayLike, y: ArrayLike) -> np.ndarray:
        mean, std = self._moments(outputs)
        return ndtr((np.asarray(y, np.float64) - mean) / std)

    def absolute_error(self, outputs: np.ndarray, y: np.ndarray, *, key: jax.Array) -> np.ndarray:
        del key  # exact
        mean, std = self._moments(outputs)
        return mean_absolute(mean - y, std).mean(axis=(1, 2))

    def absolute_difference(
        self, first: np.ndarray, second: np.ndarray, *, key: jax.Array
    ) -> np.ndarray:
        del key  # exact
        (m, s), (other_m, other_s) = self._moments(first), self._moments(second)
        same = first is second
        found = np.zeros((len(m), len(other_m)))
        for i in range(len(m)):
            start = i if same else 0  # the matrix is symmetric
            rows = max(1, PAIRS_AT_ONCE // max(m[i].size, 1))
            for low in range(start, len(other_m), rows):
                block = slice(low, min(low + rows, len(other_m)))
                std = np.hypot(s[i], other_s[block])
                found[i, block] = mean_absolute(m[i] - other_m[block], std).mean(axis=(1, 2))
        return np.triu(found) + np.triu(found, 1).T if same else found

    def _moments(self, outputs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        given: jax.Array = jnp.asarray(outputs)
        mean = np.asarray(self.mean(given), np.float64)
        return mean, np.broadcast_to(np.asarray(self.noise(given), np.float64), mean.shape)


def mean_absolute(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E|Z| of Z ~ N(mean, std²)."""
    z = mean / std
    density = np.exp(-0.5 * (z**2 + LOG_2PI))
    return std * (2 * density + z * (2 * ndtr(z) - 1))


@dataclass(frozen=True)
class Gaussian(GaussianNoise):
    """log p(y | f) = Σ log N(y; f, noise_std²) for real targets, summed over the outputs.

    Args:
      noise_std: the standard deviation of the observation noise.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> log_p = ob.likelihoods.Gaussian(noise_std=2.0)
    >>> round(log_p(jnp.zeros((1, 1)), jnp.zeros((1, 1))).item(), 4)  # −log 2√(2π)
    -1.6121
    """

    noise_std: float = 1.0
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        check_positive(self.noise_std, "noise_std")

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        residual = (outputs.reshape(y.shape) - y) / self.noise_std
        log_density = -0.5 * (residual**2 + LOG_2PI) - math.log(self.noise_std)
        return log_density.reshape(len(y), -1).sum(-1)

    def mean(self, outputs: jax.Array) -> jax.Array:
        return outputs

    def noise(self, outputs: jax.Array) -> float:
        del outputs
        return self.noise_std
