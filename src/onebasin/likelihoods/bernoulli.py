"""Two classes and one logit."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.likelihoods.classification import Classification


@dataclass(frozen=True)
class Bernoulli(Classification):
    """log p(y | z) = log σ(z) for y = 1 and log σ(−z) for y = 0, with one logit z per example.

    Outputs have shape [batch] or [batch, 1]; targets are 0 or 1 (or False and True).

    >>> import jax.numpy as jnp, onebasin as ob
    >>> log_p = ob.likelihoods.Bernoulli()(jnp.array([[0.0], [2.0]]), jnp.array([1, 0]))
    >>> [round(value, 4) for value in log_p.tolist()]  # log ½, and log σ(−2)
    [-0.6931, -2.1269]
    """

    name: ClassVar[str] = "bernoulli"

    def log_probs(self, outputs: jax.Array) -> jax.Array:
        z = outputs.reshape(-1)
        return jnp.stack([jax.nn.log_sigmoid(-z), jax.nn.log_sigmoid(z)], axis=-1)

    def targets(self, y: ArrayLike) -> np.ndarray:
        """Zeros and ones, [n]; one column [n, 1] is taken as well."""
        values = np.asarray(y)
        one = math.prod(values.shape[1:]) == 1
        if not one or not np.isin(values, [0, 1]).all():
            raise ValueError(
                f"y has shape {values.shape} and type {values.dtype}; the Bernoulli likelihood "
                "needs one target per example, 0 or 1 (for more classes give "
                "likelihood='categorical')"
            )
        return values.reshape(-1).astype(np.int32)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if math.prod(shape[1:]) != 1:
            raise ValueError(
                f"the network returns shape {shape}; the Bernoulli likelihood takes one logit per "
                "example (for one per class give likelihood='categorical')"
            )
