"""Counts and one log rate per target.

E|Y − y| of Y ~ Poisson(λ) is (y − λ)(2F(y) − 1) + 2λ p(y) for whole y. For two counts,
E|Y₁ − Y₂| = Σ_k F₁(k)(1 − F₂(k)) + F₂(k)(1 − F₁(k)): matrix products of distribution functions.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import pdtr

from onebasin.likelihoods.regression import Regression, real_targets

GRID = 1 << 22  # numbers in one block of distribution functions
REACH = 12.0  # standard deviations above the largest rate; beyond, 1 − F is below rounding


@dataclass(frozen=True)
class Poisson(Regression):
    """log p(y | f) = Σ y·f − exp f − log y! for counts y and log rates f, summed over the outputs.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> log_p = ob.likelihoods.Poisson()
    >>> round(log_p(jnp.zeros((1, 1)), jnp.array([[2.0]])).item(), 4)  # −1 − log 2
    -1.6931
    """

    name: ClassVar[str] = "poisson"
    score_name: ClassVar[str] = "deviance"
    discrete: ClassVar[bool] = True

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        f = outputs.reshape(y.shape)
        log_p = y * f - jnp.exp(f) - gammaln(y + 1)
        return log_p.reshape(len(y), -1).sum(-1)

    def mean(self, outputs: jax.Array) -> jax.Array:
        return jnp.exp(outputs)

    def variance(self, outputs: jax.Array) -> jax.Array:
        return jnp.exp(outputs)

    def sample(self, outputs: jax.Array, *, key: jax.Array) -> jax.Array:
        return jax.random.poisson(key, jnp.exp(outputs)).astype(outputs.dtype)

    def information(self, outputs: jax.Array) -> jax.Array:
        return jnp.exp(outputs)

    def cdf(self, outputs: ArrayLike, y: ArrayLike) -> np.ndarray:
        count = np.floor(np.asarray(y, np.float64))
        return np.where(count < 0, 0.0, pdtr(np.maximum(count, 0), self._rates(outputs)))

    def absolute_error(self, outputs: np.ndarray, y: np.ndarray, *, key: jax.Array) -> np.ndarray:
        del key  # exact
        rate, y = self._rates(outputs), np.asarray(y, np.float64)
        balance = (y - rate) * (2 * pdtr(y, rate) - 1)
        return (balance + 2 * rate * stats.poisson.pmf(y, rate)).mean(axis=(1, 2))

    def absolute_difference(
        self, first: np.ndarray, second: np.ndarray, *, key: jax.Array
    ) -> np.ndarray:
        del key  # exact
        mine, theirs = self._rates(first), self._rates(second)
        top = max(mine.max(), theirs.max())
        counts = np.arange(int(np.ceil(top + REACH * np.sqrt(top))) + 10)
        found = np.zeros((len(mine), len(theirs)))
        rows = max(1, GRID // (len(counts) * max(len(mine), len(theirs)) * mine.shape[2]))
        for start in range(0, mine.shape[1], rows):
            f, g = (
                pdtr(counts, one[:, start : start + rows, :, None]).reshape(len(one), -1)
                for one in (mine, theirs)
            )
            found += f @ (1 - g).T + (1 - f) @ g.T
        return found / (mine.shape[1] * mine.shape[2])

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The deviance 2·(y log(y/λ) − (y − λ)), averaged over the outputs."""
        return deviance(jnp.exp(outputs.reshape(y.shape)), y).reshape(len(y), -1).mean(-1)

    def targets(self, y: ArrayLike) -> np.ndarray:
        """Counts: whole numbers from 0 up."""
        counts = real_targets(y, self.name)
        if (counts < 0).any() or (counts != np.floor(counts)).any():
            raise ValueError("the poisson likelihood needs counts, whole numbers from 0 up, as y")
        return counts

    def _rates(self, outputs: ArrayLike) -> np.ndarray:
        return np.exp(np.asarray(outputs, np.float64))


def deviance(rate: jax.Array, y: jax.Array) -> jax.Array:
    """2·(y log(y/λ) − (y − λ)), with 0·log 0 = 0."""
    ratio = jnp.where(y > 0, y, 1.0) / jnp.where(y > 0, rate, 1.0)
    return 2 * (y * jnp.log(ratio) - (y - rate))
