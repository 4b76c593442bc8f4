"""Real targets whose noise the network predicts."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.likelihoods.gaussian import LOG_2PI, GaussianNoise


@dataclass(frozen=True)
class Heteroscedastic(GaussianNoise):
    """log p(y | m, s) = Σ log N(y; m, exp(s)²): the network gives mean and log std of each target.

    Outputs are [batch, 2·targets], first the means m and then the log stds s.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> log_p = ob.likelihoods.Heteroscedastic()
    >>> mean_and_log_std = jnp.array([[0.0, jnp.log(2.0)]])
    >>> round(log_p(mean_and_log_std, jnp.zeros((1, 1))).item(), 4)  # −log 2√(2π)
    -1.6121
    """

    name: ClassVar[str] = "heteroscedastic"

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        flat = outputs.reshape(len(outputs), -1)
        mean, log_std = jnp.split(flat, 2, axis=-1)
        residual = (mean - y.reshape(mean.shape)) * jnp.exp(-log_std)
        return (-0.5 * (residual**2 + LOG_2PI) - log_std).sum(-1)

    def mean(self, outputs: jax.Array) -> jax.Array:
        return outputs[..., : outputs.shape[-1] // 2]

    def noise(self, outputs: jax.Array) -> jax.Array:
        return jnp.exp(outputs[..., outputs.shape[-1] // 2 :])

    def information(self, outputs: jax.Array) -> jax.Array:
        precision = self.noise(outputs) ** -2
        return jnp.concatenate([precision, jnp.full_like(precision, 2.0)], axis=-1)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if math.prod(shape[1:]) % 2 or math.prod(shape[1:]) == 0:
            raise ValueError(
                f"the network returns shape {shape}; the {self.name} likelihood reads a mean and a "
                "log std for every target (if the noise is learned, give the Problem as network)"
            )

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        targets = math.prod(y.shape[1:])
        if math.prod(shape[1:]) != 2 * targets:
            raise ValueError(
                f"the network returns shape {shape} for targets of shape "
                f"{(shape[0], *y.shape[1:])}; give it two outputs per target, the mean and the "
                "log std"
            )
