"""IVON against the exact mean-field optimum of a conjugate problem."""

import jax
import numpy as np
import pytest

from onebasin.inference.fitting import fit
from onebasin.inference.methods import IVON
from onebasin.likelihoods import Gaussian
from onebasin.problem import Problem


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.usefixtures("x64")
def test_ivon_reaches_the_exact_mean_field_optimum(temperature):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)) @ np.array([[1.0, 0.6, 0.2], [0, 0.8, -0.3], [0, 0, 1.2]])
    y = x @ np.array([0.7, -1.1, 0.4]) + 0.5 * rng.normal(size=200)
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda key: {"w": 0.1 * jax.random.normal(key, (3,))},
        data=(x, y),
        likelihood=Gaussian(0.5),
        prior_variance=0.4,
        temperature=temperature,
    )
    precision = x.T @ x / 0.25 / temperature + np.eye(3) / 0.4
    mean = np.linalg.solve(precision, x.T @ y / 0.25 / temperature)
    method = IVON(
        epochs=6000, learning_rate=0.05, num_samples=8, initial_hessian=1.0, hessian_momentum=0.999
    )
    result = fit(problem, method, key=jax.random.key(0), progress="silent")
    q = result.posterior
    std = 1 / np.sqrt(np.diag(precision))
    np.testing.assert_allclose(q.mean["w"], mean, atol=0.05 * std.min())
    # The curvature is averaged over about 1/(1 − 0.999) steps of 8 samples each; Price's estimate
    # of the curvature has a relative noise of order one: 1/√8000, halved in the std.
    np.testing.assert_allclose(q.std["w"], std, rtol=0.03)
