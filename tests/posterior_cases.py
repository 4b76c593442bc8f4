"""Problems whose posteriors are known exactly, for the tests of inference."""

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference.diagnostics import by_chain, ess
from onebasin.likelihoods import Gaussian
from onebasin.problem import Problem


def conjugate():
    """Linear regression on three correlated inputs: a Gaussian posterior, known exactly."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(100, 3)) @ np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.3, 1.5]])
    y = x @ np.array([0.7, -1.1, 0.4]) + 0.5 * rng.normal(size=100)
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda key: {"w": 0.1 * jax.random.normal(key, (3,))},
        data=(x, y),
        likelihood=Gaussian(0.5),
        prior_variance=0.4,
    )
    precision = x.T @ x / 0.25 + np.eye(3) / 0.4
    return problem, np.linalg.solve(precision, x.T @ y / 0.25), np.linalg.inv(precision)


def logistic():
    """Two weights and six examples: a skewed posterior, with moments from a grid."""
    x = np.array([[1.0, 0.2], [0.5, -1.0], [-0.3, 1.4], [2.0, 0.1], [-1.0, -0.4], [0.1, 0.9]])
    y = np.array([1, 1, 0, 1, 0, 0])
    problem = Problem(
        apply=lambda p, x: jnp.stack([jnp.zeros(len(x)), x @ p["w"]], axis=1),
        init=lambda key: {"w": 0.1 * jax.random.normal(key, (2,))},
        data=(x, y),
        prior_variance=4.0,
    )
    axis = np.linspace(-12, 12, 801)
    w = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    z = w @ x.T
    log_p = (np.where(y == 1, z, 0) - np.logaddexp(0, z)).sum(1) - (w**2).sum(1) / 8
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ w
    return problem, mean, (p[:, None] * (w - mean)).T @ (w - mean)


def check_moments(posterior, mean, covariance):
    """Mean and covariance are within 4.5 Monte Carlo standard errors."""
    draws = by_chain(np.asarray(posterior.draws["w"]), posterior.chain)
    flat = draws.reshape(-1, draws.shape[-1])
    sizes = np.minimum(ess(draws), len(flat))
    np.testing.assert_array_less(300, sizes)
    error = np.sqrt(np.diag(covariance) / sizes)
    assert (np.abs(flat.mean(0) - mean) < 4.5 * error).all()
    centred = draws - mean
    products = centred[..., :, None] * centred[..., None, :]
    error = products.reshape(len(flat), *covariance.shape).std(0) / np.sqrt(ess(products))
    assert (np.abs(products.mean((0, 1)) - covariance) < 4.5 * error).all()
