"""A likelihood given as a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Custom:
    """A likelihood given as a function `log_likelihood(outputs, y) -> [batch]`.

    It can be fitted, and losses measured. Predictions need more than the function: write a class
    with the base `Classification` or `Regression` instead.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> poisson = ob.likelihoods.Custom(lambda f, y: (y * f - jnp.exp(f))[:, 0])  # up to log y!
    >>> poisson(jnp.zeros((2, 1)), jnp.array([[0], [3]])).tolist()
    [-1.0, -1.0]
    """

    function: Callable[[jax.Array, jax.Array], jax.Array]
    name: ClassVar[str] = "custom"
    classifies: ClassVar[bool] = False
    score_name: ClassVar[str] = "log_likelihood"

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return self.function(outputs, y)

    score = __call__

    def targets(self, y: ArrayLike) -> np.ndarray:
        return np.asarray(y)

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        del shape, y
