"""The predictive distribution of numbers: a mixture over draws of the posterior.

p(y | x) = Σ_s w_s p(y | f(x; θ_s)). The outputs of every draw are kept, so that density, quantiles,
CRPS and distances are those of the mixture itself, not of a Gaussian with its moments. Targets of
several numbers are measured one by one, by their marginals.
"""

from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy.special import logsumexp

from onebasin.keys import subkey
from onebasin.likelihoods import Regression

SAMPLES = 2000  # of every target, for quantiles of a likelihood without a distribution function
HALVINGS = 60  # of the interval that holds a quantile; then it is known to rounding


@dataclass(frozen=True, eq=False)
class MixturePredictive:
    """The predictive distribution of numeric targets; made by `predictive`.

    `outputs` [draws, n, ...] are those of every draw, with weights that sum to one. `nll`, `rmse`,
    `crps`, `coverage` and `interval_width` take it.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.array([[1.0], [3.0]])})
    >>> found = ob.predictive(q, lambda p, x: x * p["w"], jnp.ones((5, 1)),
    ...                       likelihood=ob.likelihoods.Gaussian(0.5), key=jax.random.key(0))
    >>> found
    MixturePredictive(5 examples, 2 samples, gaussian likelihood)
    >>> found.mean[0].item(), found.parameter_std[0].item(), found.noise_std[0].item()
    (2.0, 1.0, 0.5)
    >>> [round(end[0].item(), 3) for end in found.interval(0.9)]
    [0.359, 3.641]
    """

    outputs: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    likelihood: Regression
    target_shape: tuple[int, ...]
    """The shape of one target."""
    key: jax.Array = field(repr=False)
    """The key of samples of the targets, where a measure needs them."""

    def __repr__(self) -> str:
        return (
            f"MixturePredictive({len(self):,} examples, {self.num_samples} samples, "
            f"{self.likelihood.name} likelihood)"
        )

    def __len__(self) -> int:
        return self.outputs.shape[1]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return self.mean if dtype is None else self.mean.astype(dtype)

    @property
    def num_samples(self) -> int:
        """The number of draws of the posterior."""
        return len(self.weights)

    @cached_property
    def flat(self) -> np.ndarray:
        """The outputs as [draws, n, outputs]."""
        return self.outputs.reshape(*self.outputs.shape[:2], -1)

    @cached_property
    def means(self) -> np.ndarray:
        """The mean of every draw, [draws, n, targets]."""
        return np.asarray(self.likelihood.mean(jnp.asarray(self.flat)), np.float64)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the targets, shaped like them."""
        return self._shaped(self._average(self.means))

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of the targets: √(parameter_std² + noise_std²)."""
        return np.hypot(self.parameter_std, self.noise_std)

    @cached_property
    def parameter_std(self) -> np.ndarray:
        """The standard deviation of the means over draws: the uncertainty due to the parameters."""
        spread = (self.means - self._average(self.means)) ** 2
        return self._shaped(np.sqrt(self._average(spread)))

    @cached_property
    def noise_std(self) -> np.ndarray:
        """The root of the average variance of single draws: the uncertainty due to noise."""
        variance = np.asarray(self.likelihood.variance(jnp.asarray(self.flat)), np.float64)
        return self._shaped(np.sqrt(self._average(variance)))

    def log_densities(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of every example for every draw, [draws, n]."""
        self.targets(y)
        given = jnp.asarray(self.likelihood.targets(y))
        logs = jax.jit(lambda every: jax.lax.map(lambda f: self.likelihood(f, given), every))
        return np.asarray(logs(self.outputs), np.float64)

    def log_likelihood(self, y: ArrayLike) -> np.ndarray:
        """log p(y) of every example, [n]."""
        return log_mean(self.log_densities(y), self.weights)

    def quantile(self, level: float) -> np.ndarray:
        """The smallest y with P(Y ≤ y) ≥ `level`, shaped like the targets."""
        if not 0 < level < 1:
            raise ValueError(f"the level of a quantile must be between 0 and 1, got {level!r}")
        mean, std = self.mean.reshape(len(self), -1), self.std.reshape(len(self), -1)
        if self.likelihood.cdf(self.flat[0], mean) is None:
            return self._shaped(_sample_quantile(self._samples, self._sample_weights, level))
        # Cantelli's inequality: the quantile is between these.
        low = mean - std * np.sqrt((1 - level) / level)
        high = mean + std * np.sqrt(level / (1 - level))
        whole = self.likelihood.discrete
        if whole:
            low, high = np.floor(low) - 1, np.ceil(high) + 1
        for _ in range(HALVINGS):
            middle = np.floor((low + high) / 2) if whole else (low + high) / 2
            below = self._cdf(middle) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
            if (high - low).max() <= (1 if whole else 0):
                break
        return self._shaped(high)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval: the quantiles (1 − level)/2 and (1 + level)/2."""
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval must be between 0 and 1, got {level!r}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def sample(self, count: int, *, key: jax.Array) -> np.ndarray:
        """Targets drawn from the predictive, [count, ...] each shaped like the targets."""
        pick_key, noise_key = jax.random.split(key)
        drawn = jax.random.choice(
            pick_key, self.num_samples, (count, len(self)), p=jnp.asarray(self.weights)
        )
        outputs = self.flat[np.asarray(drawn), np.arange(len(self))]
        found: np.ndarray = np.asarray(self.likelihood.sample(jnp.asarray(outputs), key=noise_key))
        return found.reshape(count, len(self), *self.target_shape)

    def targets(self, y: ArrayLike) -> np.ndarray:
        """Targets [n, targets] that match the examples; others are refused."""
        values = self.likelihood.targets(y)
        if len(values) != len(self):
            raise ValueError(
                f"there are {len(self)} predictions and {len(values)} targets; give one each"
            )
        self.likelihood.check_outputs((len(self), *self.outputs.shape[2:]), values)
        return values.reshape(len(self), -1).astype(np.float64)

    @cached_property
    def own_difference(self) -> np.ndarray:
        """E|Y_s − Y_t| of every pair of draws, averaged over examples and targets."""
        return self.difference(self)

    def difference(self, other: "MixturePredictive") -> np.ndarray:
        """E|Y_s − Y'_t| of every draw of this and every draw of the other, averaged."""
        key = subkey(self.key, "difference")
        return self.likelihood.absolute_difference(self.flat, other.flat, key=key)

    def error(self, y: ArrayLike) -> np.ndarray:
        """E|Y_s − y| of every draw, averaged over examples and targets."""
        key = subkey(self.key, "error")
        return self.likelihood.absolute_error(self.flat, self.targets(y), key=key)

    def _average(self, values: np.ndarray) -> np.ndarray:
        return np.tensordot(self.weights, values, axes=1)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(len(self), *self.target_shape)

    def _cdf(self, y: np.ndarray) -> np.ndarray:
        """P(Y ≤ y), [n, targets]."""
        total = np.zeros_like(y)
        for weight, outputs in zip(self.weights, self.flat, strict=True):
            total += weight * np.asarray(self.likelihood.cdf(outputs, y), np.float64)
        return total

    @property
    def _repeats(self) -> int:
        return -(-SAMPLES // self.num_samples)

    @cached_property
    def _samples(self) -> np.ndarray:
        """Samples of every draw, [samples, n, targets]."""
        keys = jax.random.split(subkey(self.key, "quantiles"), self._repeats)
        sample = jax.jit(lambda f, k: jax.lax.map(lambda k: self.likelihood.sample(f, key=k), k))
        found = np.asarray(sample(self.flat, keys), np.float64)
        return found.reshape(-1, *found.shape[2:])

    @property
    def _sample_weights(self) -> np.ndarray:
        return np.tile(self.weights / self._repeats, self._repeats)


def log_mean(logs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log Σ_s w_s exp(logs_s), along the first axis."""
    return np.asarray(logsumexp(logs, b=weights[:, None], axis=0))


def _sample_quantile(samples: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """The quantile of weighted samples, along their first axis."""
    order = np.argsort(samples, axis=0)
    reached = np.cumsum(weights[order], axis=0) >= level * (1 - 1e-12)
    place = np.take_along_axis(order, reached.argmax(0)[None], axis=0)
    return np.take_along_axis(samples, place, axis=0)[0]
