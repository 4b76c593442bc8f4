"""Measures of predictives of numbers, against targets and against each other.

With Y, Y' independent from the predictive,

    CRPS(p, y) = ∫ (F(z) − 1[y ≤ z])² dz = E|Y − y| − ½ E|Y − Y'|,

and with Y ~ p and Z ~ q

    ∫ (F_p(z) − F_q(z))² dz = E|Y − Z| − ½ E|Y − Y'| − ½ E|Z − Z'|,

the Cramér distance, half of the energy distance (Székely & Rizzo 2013; Gneiting & Raftery 2007). It
is by how much the CRPS is worse on average if q is predicted where p is true. For a mixture over
draws all terms are sums over pairs of draws, which the likelihood gives.
"""

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.evaluation.mixture_predictive import MixturePredictive
from onebasin.evaluation.predicting import AnyPredictive
from onebasin.likelihoods import Poisson
from onebasin.likelihoods.poisson import deviance


def rmse(p: AnyPredictive, y: ArrayLike) -> float:
    """√ of the mean squared error of the predictive mean.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.array([[1.0], [3.0]])})
    >>> found = ob.predictive(q, lambda p, x: x * p["w"], jnp.ones((4, 1)),
    ...                       likelihood="gaussian", key=jax.random.key(0))
    >>> ob.rmse(found, [1.0, 1.0, 3.0, 3.0])
    1.0
    """
    p = _numbers(p, "rmse")
    error = p.mean.reshape(len(p), -1) - p.targets(y)
    return float(np.sqrt((error**2).mean()))


def crps(p: AnyPredictive, y: ArrayLike) -> float:
    """The continuous ranked probability score, in the units of the targets, averaged over them.

    It is exact for Gaussian and Poisson likelihoods; for a likelihood known by its samples it is
    an unbiased estimate.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.zeros((1, 1))})
    >>> found = ob.predictive(q, lambda p, x: x * p["w"], jnp.ones((4, 1)),
    ...                       likelihood="gaussian", key=jax.random.key(0))
    >>> round(ob.crps(found, jnp.zeros(4)), 4)  # (√2 − 1)/√π
    0.2337
    """
    p = _numbers(p, "crps")
    w = p.weights
    return float(w @ p.error(y) - 0.5 * w @ p.own_difference @ w)


def coverage(p: AnyPredictive, y: ArrayLike, level: float = 0.9) -> float:
    """The share of targets inside the central interval of this level; `level` if calibrated.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.zeros((1, 1))})
    >>> found = ob.predictive(q, lambda p, x: x * p["w"], jnp.ones((4, 1)),
    ...                       likelihood="gaussian", key=jax.random.key(0))
    >>> ob.coverage(found, [0.0, 1.6, 1.7, -9.0])  # the interval ends at ±1.645
    0.5
    """
    p = _numbers(p, "coverage")
    targets = p.targets(y)
    low, high = (end.reshape(targets.shape) for end in p.interval(level))
    return float(((low <= targets) & (targets <= high)).mean())


def interval_width(p: AnyPredictive, level: float = 0.9) -> float:
    """The average width of the central interval of this level.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.zeros((1, 1))})
    >>> found = ob.predictive(q, lambda p, x: x * p["w"], jnp.ones((4, 1)),
    ...                       likelihood="gaussian", key=jax.random.key(0))
    >>> round(ob.interval_width(found, 0.9), 2)  # 2 · 1.645
    3.29
    """
    p = _numbers(p, "interval_width")
    low, high = p.interval(level)
    return float((high - low).mean())


def mean_deviance(p: AnyPredictive, y: ArrayLike) -> float:
    """The Poisson deviance 2·(y log(y/μ) − (y − μ)) of the predictive mean μ, averaged.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.zeros((1, 1))})
    >>> found = ob.predictive(q, lambda p, x: x * p["w"], jnp.ones((4, 1)),
    ...                       likelihood="poisson", key=jax.random.key(0))
    >>> round(ob.mean_deviance(found, [0, 0, 1, 1]), 3)  # 2 for y = 0, 0 for y = 1
    1.0
    """
    p = _numbers(p, "mean_deviance")
    if not isinstance(p.likelihood, Poisson):
        raise ValueError(
            f"the deviance is defined for counts, and the likelihood is {p.likelihood.name}; "
            "measure it by nll or crps"
        )
    mean = p.mean.reshape(len(p), -1)
    return float(deviance(jnp.asarray(mean), jnp.asarray(p.targets(y))).mean())


def cramer_distance(p: AnyPredictive, q: AnyPredictive) -> float:
    """∫ (F_p − F_q)² dz, averaged over examples and targets, in the units of the targets.

    By this much the CRPS is worse on average if q is predicted where p is true.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> draws = [ob.Samples({"w": jnp.array([[w]])}) for w in (0.0, 9.0)]
    >>> p, q = ob.predictive(draws, lambda p, x: x * p["w"], jnp.ones((4, 1)),
    ...                      likelihood="gaussian", key=jax.random.key(0))
    >>> ob.cramer_distance(p, p), round(ob.cramer_distance(p, q), 3)  # 9 − 2/√π
    (0.0, 7.872)
    """
    p, q = _pair(p, q)
    mine, theirs = p.weights, q.weights
    cross = mine @ p.difference(q) @ theirs
    own = 0.5 * (mine @ p.own_difference @ mine + theirs @ q.own_difference @ theirs)
    return float(cross - own)


def mean_shift(p: AnyPredictive, q: AnyPredictive) -> float:
    """|mean of q − mean of p| in units of the std of p, averaged over examples and targets.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> draws = [ob.Samples({"w": jnp.array([[w]])}) for w in (0.0, 3.0)]
    >>> p, q = ob.predictive(draws, lambda p, x: x * p["w"], jnp.ones((4, 1)),
    ...                      likelihood=ob.likelihoods.Gaussian(2.0), key=jax.random.key(0))
    >>> ob.mean_shift(p, q)
    1.5
    """
    p, q = _pair(p, q)
    return float((np.abs(q.mean - p.mean) / p.std).mean())


def _numbers(p: AnyPredictive, what: str) -> MixturePredictive:
    if not isinstance(p, MixturePredictive):
        raise ValueError(
            f"{what} needs the predictive of numbers that predictive(...) returns for a likelihood "
            "such as 'gaussian'; classes are measured by nll, accuracy and calibration_error"
        )
    return p


def _pair(p: AnyPredictive, q: AnyPredictive) -> tuple[MixturePredictive, MixturePredictive]:
    first, second = (_numbers(one, "a distance of predictives of numbers") for one in (p, q))
    same = type(first.likelihood) is type(second.likelihood)
    if first.means.shape[1:] != second.means.shape[1:] or not same:
        raise ValueError(
            f"{p} and {q} cannot be compared; give predictives of the same examples and the same "
            "kind of likelihood"
        )
    return first, second
