"""Laplace against conjugate regression, dense Gauss–Newton matrices and the exact evidence."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import multivariate_normal

from fit_process import problem as classifier
from onebasin.inference.curvature import Diagonal, LowRank
from onebasin.inference.fitting import fit
from onebasin.inference.full_batch import chunked
from onebasin.inference.methods import MAP, Laplace
from onebasin.likelihoods import Gaussian
from onebasin.posterior import LowRankPrecision, MeanField
from onebasin.problem import Batch, Problem
from onebasin.trees import num_parameters
from posterior_cases import conjugate

KEY = jax.random.key(3)


def begun_at(problem, params, **changes):
    """The same problem, with every fit beginning at these params."""
    kept = {"likelihood": problem.likelihood, "prior_variance": problem.prior_variance} | changes
    return Problem(problem.apply, lambda _: params, problem.data, **kept)


def laplace(problem, **options):
    return fit(problem, Laplace(mode_epochs=0, **options), key=KEY, progress="silent")


def dense_covariance(q):
    """The covariance of a Gaussian over raveled weights."""
    std = ravel_pytree(q.std)[0]
    if isinstance(q, MeanField):
        return np.diag(np.asarray(std) ** 2)
    factors = jax.vmap(lambda f: ravel_pytree(f)[0])(q.factors)
    return np.linalg.inv(np.diag(1 / np.asarray(std) ** 2) + np.asarray(factors.T @ factors))


@pytest.mark.usefixtures("x64")
def test_laplace_is_exact_for_linear_regression():
    problem, mean, covariance = conjugate()
    exact = begun_at(problem, {"w": jnp.asarray(mean)})
    x, y = np.asarray(problem.x), np.asarray(problem.y)
    evidence = multivariate_normal.logpdf(y, cov=0.25 * np.eye(len(x)) + 0.4 * x @ x.T)  # pyright: ignore[reportArgumentType]
    for rank in (3, 50):  # no more directions than weights are needed
        found = laplace(exact, structure="low-rank", rank=rank, data_chunk=30)
        assert isinstance(found.posterior, LowRankPrecision)
        np.testing.assert_allclose(found.posterior.mean["w"], mean)
        np.testing.assert_allclose(dense_covariance(found.posterior), covariance, rtol=1e-9)
        np.testing.assert_allclose(found.stats["log_evidence"], evidence, rtol=1e-10)
        assert found.stats["newton_gain"] < 1e-18
    diagonal = laplace(exact, structure="diagonal", data_chunk=30).posterior
    expected = np.diag(np.linalg.inv(covariance)) ** -0.5
    np.testing.assert_allclose(diagonal.std["w"], expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_newton_gain_is_what_the_mode_misses():
    problem, mean, covariance = conjugate()
    off = np.array([0.02, -0.01, 0.05])
    found = laplace(begun_at(problem, {"w": jnp.asarray(mean + off)}), rank=3)
    missed = 0.5 * off @ np.linalg.solve(covariance, off)
    np.testing.assert_allclose(found.stats["newton_gain"], missed, rtol=1e-9)


def poisson():
    """A network with one output, the logarithm of the rate of counts."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(41, 3))
    shapes = {"hidden": (3, 4), "out": (4, 1)}
    params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    apply = lambda p, x: jnp.tanh(x @ p["hidden"]) @ p["out"]
    counts = rng.poisson(np.exp(np.asarray(apply(params, x))))
    log_p = lambda f, y: (y * f - jnp.exp(f))[:, 0]
    variances = {"hidden": 0.5, "out": 2.0}
    return Problem(apply, lambda _: params, (x, counts), log_p, prior_variance=variances), params


def dense_gauss_newton(problem, params):
    """Σ Jᵀ Λ J with Λ written down: diag(p) − ppᵀ, or the rate."""
    flat, unravel = ravel_pytree(params)
    x = jnp.asarray(problem.x)
    jacobian = np.asarray(jax.jacobian(lambda f: problem.apply(unravel(f), x))(flat))
    out = problem.apply(params, x)
    if problem.log_likelihood.classifies:
        p = jax.nn.softmax(out)
        inner = jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]
    else:
        inner = jnp.exp(out)[:, :, None]
    return problem.likelihood_scale * np.einsum("nai,nab,nbj->ij", jacobian, inner, jacobian)


@pytest.mark.parametrize("which", ["classes at temperature 0.5", "counts"])
@pytest.mark.usefixtures("x64")
def test_the_curvature_is_that_of_dense_matrices(which):
    if which == "counts":
        problem, params = poisson()
    else:
        base = classifier()
        small = {"hidden": (8, 3), "out": (3, 2)}
        rng = np.random.default_rng(1)
        params = {n: jnp.asarray(rng.normal(size=s)) for n, s in small.items()}
        data = (base.x[:50].astype(np.float64), base.y[:50])
        problem = Problem(base.apply, lambda _: params, data, temperature=0.5, prior_variance=0.3)
    matrix = dense_gauss_newton(problem, params)
    variances = jax.tree.map(lambda p, v: jnp.full(p.shape, v), params, problem.prior_variances)
    prior = np.diag(1 / np.asarray(ravel_pytree(variances)[0]))
    found = laplace(problem, structure="diagonal", data_chunk=20)
    np.testing.assert_allclose(
        np.diag(dense_covariance(found.posterior)), 1 / np.diag(matrix + prior), rtol=1e-9
    )
    whole = laplace(problem, rank=1000, data_chunk=20)
    # The two outputs of a softmax leave half the directions flat: eigenvalues of zero coincide.
    np.testing.assert_allclose(
        dense_covariance(whole.posterior), np.linalg.inv(matrix + prior), rtol=1e-7, atol=1e-9
    )
    everything = Batch(jnp.asarray(problem.x), jnp.asarray(problem.y))
    log_joint = problem.log_posterior(params, everything)[0]
    size = num_parameters(params)
    expected = log_joint + size / 2 * math.log(2 * math.pi)
    expected -= 0.5 * np.linalg.slogdet(matrix + prior)[1]
    np.testing.assert_allclose(whole.stats["log_evidence"], expected, rtol=1e-9)
    # It is the log joint density minus that of the posterior, both at the mean.
    at_mean = log_joint - whole.posterior.log_prob(params)
    np.testing.assert_allclose(whole.stats["log_evidence"], at_mean, rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_few_directions_are_the_largest():
    """Eigenvalues far apart: some Lanczos steps find the largest, and the rest keeps the prior."""
    rng = np.random.default_rng(0)
    scales = np.array([30.0, 10.0, 3.0, *[0.01] * 17])
    rotation = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda _: {"w": jnp.zeros(20)},
        data=(np.diag(scales) @ rotation.T, np.zeros(20)),
        likelihood=Gaussian(1.0),
    )
    found = laplace(problem, rank=8).posterior
    precision = np.linalg.inv(dense_covariance(found))
    exact = rotation @ np.diag(scales**2) @ rotation.T + np.eye(20)
    # What is missed is at most the small eigenvalues.
    assert np.abs(np.linalg.eigvalsh(exact - precision)).max() < 2 * 0.01**2


@pytest.mark.parametrize("structure", ["low-rank", "diagonal"])
@pytest.mark.usefixtures("x64")
def test_the_prior_with_the_largest_evidence(structure):
    problem, mean, _ = conjugate()
    at_mode = begun_at(problem, {"w": jnp.asarray(mean)})
    tuned = laplace(at_mode, structure=structure, tune_prior=True)
    factor = tuned.stats["prior_variance_factor"]
    assert 0.1 < factor < 10
    # The same mode with other priors: none near the best gives more.
    evidences = [
        laplace(
            begun_at(problem, {"w": jnp.asarray(mean)}, prior_variance=0.4 * f), structure=structure
        )
        for f in (factor, 0.97 * factor, 1.03 * factor)
    ]
    best, *others = [one.stats["log_evidence"] for one in evidences]
    np.testing.assert_allclose(tuned.stats["log_evidence"], best, rtol=1e-9)
    assert best > max(others)
    np.testing.assert_allclose(
        dense_covariance(tuned.posterior), dense_covariance(evidences[0].posterior), rtol=1e-6
    )


def test_the_mean_is_the_mode_that_map_finds():
    method = Laplace(mode_epochs=4, structure="diagonal", data_chunk=200)
    found = fit(classifier(), method, key=KEY, progress="silent")
    mode = fit(classifier(), MAP(epochs=4, batch_size=500), key=KEY, progress="silent")
    for name in ("hidden", "out"):
        np.testing.assert_allclose(
            found.posterior.mean[name], mode.posterior.draws[name][0], atol=1e-5
        )
    # The last rows of the history report the loss at the mode.
    assert found.history[-1]["loss"] == pytest.approx(mode.history[-1]["loss"], rel=0.05)


def test_the_loop_takes_the_steps_of_a_structure():
    problem = classifier()
    assert Diagonal(problem, len(chunked(problem, 200).x)).steps == 3
    assert LowRank(problem, 7).steps == 7


def test_an_unknown_structure_is_refused():
    with pytest.raises(
        ValueError, match="structure of Laplace must be diagonal, low-rank or kronecker"
    ):
        Laplace(structure="full")  # pyright: ignore[reportArgumentType]
