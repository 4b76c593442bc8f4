"""Posteriors for ArviZ: one variable per leaf, log likelihoods, and what the data would be."""

import importlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.data.examples import Examples, examples_of
from onebasin.inference.diagnostics import by_chain
from onebasin.keys import check_key
from onebasin.likelihoods import Classification, Likelihood, Regression
from onebasin.networks.network import forward
from onebasin.posterior import Posterior, Samples
from onebasin.problem import Problem
from onebasin.trees import PyTree, leaves_by_path

DRAWS = 1000  # of a posterior that is none of draws
TARGET = "y"  # the name of the targets among the variables


def to_arviz(
    posterior: Posterior,
    problem: Problem | None = None,
    data: Examples | None = None,
    *,
    key: jax.Array | None = None,
    num_samples: int = DRAWS,
) -> Any:
    """A posterior as `InferenceData` of ArviZ (a `DataTree` from ArviZ 1.0 on).

    Align draws first: ArviZ compares chains weight by weight. Key paths become names with dots,
    because a slash in a NetCDF file opens a group. This needs the extra `onebasin[arviz]`.

    Args:
      posterior: `Samples`, whose draws are taken by chain, or any other, which is sampled.
      problem: adds the groups `log_likelihood` (for `arviz.loo`), `posterior_predictive` and
        `observed_data`, each with the variable `y`.
      data: the examples of these groups; by default the training data of the problem.
      key: random key; needed to sample a posterior or its predictive.
      num_samples: the number of draws of a posterior that holds none.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> samples = ob.Samples({"dense": {"w": jnp.zeros((6, 2))}}, jnp.repeat(jnp.arange(2), 3))
    >>> data = ob.to_arviz(samples)  # doctest: +SKIP
    >>> data.posterior["dense.w"].shape  # doctest: +SKIP
    (2, 3, 2)
    """
    try:
        with warnings.catch_warnings():  # once a day it announces its next version
            warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing", FutureWarning)
            arviz = importlib.import_module("arviz")
    except ImportError:
        raise ImportError(
            "exporting to ArviZ needs ArviZ; install it with: pip install 'onebasin[arviz]'"
        ) from None
    is_draws = isinstance(posterior, Samples)
    if key is None and (problem is not None or not is_draws):
        raise ValueError(
            f"exporting {'predictions' if is_draws else f'a {type(posterior).__name__}'} draws "
            "random numbers; give key="
        )
    if problem is None and data is not None:
        raise ValueError("data= needs the problem whose predictions are exported; give it first")
    samples = _drawn(posterior, key, num_samples)
    groups: dict[str, dict[str, Any]] = {"posterior": {}}
    for name, leaf in leaves_by_path(samples.draws).items():
        by_name = by_chain(np.asarray(leaf), samples.chain)
        groups["posterior"][name.replace("/", ".")] = by_name
    if problem is not None:
        assert key is not None
        x, y = examples_of((problem.x, problem.y) if data is None else data)
        y = problem.log_likelihood.targets(y)
        log_p, predicted = _predictions(samples, problem, x, y, check_key(key))
        groups["log_likelihood"] = {TARGET: by_chain(log_p, samples.chain)}
        if predicted is not None:
            groups["posterior_predictive"] = {TARGET: by_chain(predicted, samples.chain)}
        groups["observed_data"] = {TARGET: y}
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict(groups)
    return arviz.from_dict(**groups)


def _drawn(posterior: Posterior, key: jax.Array | None, count: int) -> Samples:
    """Draws and their running statistics."""
    if isinstance(posterior, Samples):
        return posterior
    if count < 1:
        raise ValueError(f"num_samples is {count}; give at least one")
    assert key is not None
    draws, states = posterior.sample(count, key=key), posterior.states(count, key=key)
    return Samples(draws, np.zeros(count, np.int32), states)


def _predictions(
    samples: Samples, problem: Problem, x: np.ndarray, y: np.ndarray, key: jax.Array
) -> tuple[np.ndarray, np.ndarray | None]:
    """log p(y | draw) [draws, n], and targets drawn anew [draws, ...], one draw at a time."""
    likelihood = problem.log_likelihood
    inputs, targets = jnp.asarray(x), jnp.asarray(y)

    def of_draw(drawn: tuple[PyTree, PyTree, jax.Array]) -> tuple[jax.Array, jax.Array | None]:
        params, state, own = drawn
        outputs = forward(problem.apply, params, inputs, state)
        log_p = likelihood(outputs, targets)
        if isinstance(likelihood, Classification):  # one for each label, at every position
            log_p = log_p.reshape(targets.shape)
        return log_p, _sampled(likelihood, outputs, own, targets.shape)

    keys = jax.random.split(jax.random.fold_in(key, 1), samples.num_draws)
    log_p, predicted = jax.jit(lambda all_: jax.lax.map(of_draw, all_))(
        (samples.draws, samples.state, keys)
    )
    return np.asarray(log_p), None if predicted is None else np.asarray(predicted)


def _sampled(
    likelihood: Likelihood, outputs: jax.Array, key: jax.Array, shape: tuple[int, ...]
) -> jax.Array | None:
    """Targets drawn from the likelihood; None for a function of your own."""
    if isinstance(likelihood, Classification):
        return jax.random.categorical(key, likelihood.log_probs(outputs)).reshape(shape)
    if isinstance(likelihood, Regression):
        return likelihood.sample(outputs, key=key).reshape(shape)
    return None
