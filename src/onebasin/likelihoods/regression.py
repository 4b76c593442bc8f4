"""The base of likelihoods whose targets are numbers.

The predictive distribution of a target is a mixture over draws s of the posterior,
p(y) = Σ_s w_s p(y | outputs_s). Its mean, interval, CRPS and distance to another predictive follow
from a few functions of one component. Outputs are given to them as [..., outputs], with examples
and draws in the leading axes.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike


class Regression:
    """A likelihood of numbers: give `name`, `__call__`, `mean` and `sample`.

    With these alone, intervals, CRPS and distances are estimated from samples of the targets,
    without bias. A likelihood that also gives `variance`, `cdf` and both mean absolute differences
    is measured exactly.

    >>> import dataclasses, jax, jax.numpy as jnp, onebasin as ob
    >>> @dataclasses.dataclass(frozen=True)
    ... class Laplace(ob.likelihoods.Regression):
    ...     scale: float = 1.0
    ...     name = "laplace"
    ...     def __call__(self, outputs, y):
    ...         error = jnp.abs(outputs.reshape(y.shape) - y) / self.scale
    ...         return (-error - jnp.log(2 * self.scale)).reshape(len(y), -1).sum(-1)
    ...     def mean(self, outputs):
    ...         return outputs
    ...     def sample(self, outputs, *, key):
    ...         return outputs + self.scale * jax.random.laplace(key, outputs.shape)
    >>> data = jnp.ones((5, 1)), jnp.zeros(5)
    >>> ob.Problem(lambda p, x: x * p["w"], lambda key: {"w": jnp.ones(1)}, data, Laplace(0.1))
    Problem(1 parameters, 5 examples of shape (1,), laplace likelihood)
    """

    name: ClassVar[str]
    classifies: ClassVar[bool] = False
    score_name: ClassVar[str] = "squared_error"
    discrete: ClassVar[bool] = False
    """Whether targets are whole numbers."""

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """log p(y | outputs) of every example, [batch]."""
        raise NotImplementedError

    def mean(self, outputs: jax.Array) -> jax.Array:
        """The mean of the targets, [..., targets], of outputs [..., outputs]."""
        raise NotImplementedError

    def sample(self, outputs: jax.Array, *, key: jax.Array) -> jax.Array:
        """One sample of the targets, [..., targets]."""
        raise NotImplementedError

    def variance(self, outputs: jax.Array) -> jax.Array:
        """The variance of the targets, [..., targets]; by default from 256 samples."""
        keys = jax.random.split(jax.random.key(0), 256)
        samples = jax.lax.map(lambda key: self.sample(outputs, key=key), keys)
        return ((samples - self.mean(outputs)) ** 2).mean(0)

    def cdf(self, outputs: ArrayLike, y: ArrayLike) -> np.ndarray | None:
        """P(Y ≤ y | outputs), [..., targets]; None if it is not known."""
        del outputs, y
        return None

    def information(self, outputs: jax.Array) -> jax.Array:
        """The Fisher information of every output, up to one factor for all of them.

        A unit of output counts by its square root where outputs of different kinds are weighed.
        """
        return jnp.ones_like(outputs)

    def absolute_error(self, outputs: np.ndarray, y: np.ndarray, *, key: jax.Array) -> np.ndarray:
        """E|Y_s − y| of every draw s, averaged over examples and targets, [draws].

        `outputs` are [draws, n, outputs] and `y` is [n, targets].
        """
        samples = np.asarray(self.sample(jnp.asarray(outputs), key=key), np.float64)
        return np.abs(samples - y).mean(axis=(1, 2))

    def absolute_difference(
        self, first: np.ndarray, second: np.ndarray, *, key: jax.Array
    ) -> np.ndarray:
        """E|Y_s − Y_t| of every pair of draws, averaged over examples and targets.

        `first` [draws, n, outputs] and `second` likewise give a matrix; Y_s and Y_t are independent
        even if s and t are the same draw.
        """
        keys = jax.random.split(key)
        mine, theirs = (
            np.asarray(self.sample(jnp.asarray(outputs), key=k), np.float64)
            for outputs, k in zip((first, second), keys, strict=True)
        )
        return np.stack([np.abs(one - theirs).mean(axis=(1, 2)) for one in mine])

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The squared error of the mean, averaged over the targets."""
        mean = self.mean(outputs.reshape(len(outputs), -1))
        return ((mean - y.reshape(mean.shape)) ** 2).mean(-1)

    def targets(self, y: ArrayLike) -> np.ndarray:
        """Finite numbers."""
        return real_targets(y, self.name)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse outputs of this `shape` [batch, ...], whatever the targets."""
        del shape

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        check_one_output_per_target(shape, y)


def real_targets(y: ArrayLike, name: str) -> np.ndarray:
    """Finite real targets in single precision, or in double precision if they have it."""
    values = np.asarray(y)
    if not np.issubdtype(values.dtype, np.number) or not np.isfinite(values).all():
        what = "Gaussian" if name == "gaussian" else name
        raise ValueError(f"the {what} likelihood needs finite real targets; clean y first")
    return values.astype(np.float64 if values.dtype == np.float64 else np.float32)


def check_one_output_per_target(shape: tuple[int, ...], y: np.ndarray) -> None:
    if math.prod(shape[1:]) != math.prod(y.shape[1:]):
        raise ValueError(
            f"the network returns shape {shape} for targets of shape "
            f"{(shape[0], *y.shape[1:])}; give it one output per target"
        )
