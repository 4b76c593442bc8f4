"""The Kronecker-factored Laplace approximation against dense Gauss–Newton matrices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

import onebasin as ob
from onebasin.inference.fitting import fit
from onebasin.inference.methods import Laplace
from onebasin.likelihoods import Gaussian
from onebasin.posterior import Kronecker
from onebasin.posterior.kronecker import sides
from onebasin.problem import Batch, Problem
from posterior_cases import conjugate
from test_laplace import begun_at, dense_gauss_newton, laplace, poisson

pytestmark = pytest.mark.usefixtures("x64")


def dense_covariances(q: Any) -> dict[str, np.ndarray]:
    """The covariance of every array."""
    found = {}
    for name, std in q.std.items():
        vectors = np.kron(q.left[name], q.right[name])
        found[name] = vectors @ np.diag(np.ravel(std) ** 2) @ vectors.T
    return found


def two_outputs():
    """A linear network with two outputs and a bias, at its mode, and its inputs with a one."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 3)), rng.normal(size=(30, 2))
    params = {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
    problem = Problem(
        lambda p, x: x @ p["kernel"] + p["bias"],
        lambda _: params,
        (x, y),
        Gaussian(0.5),
        prior_variance=0.4,
    )
    return problem, params, x


def test_one_linear_layer_is_exact():
    problem, mean, covariance = conjugate()
    found = laplace(
        begun_at(problem, {"w": jnp.asarray(mean)}), structure="kronecker", data_chunk=7
    )
    assert isinstance(found.posterior, Kronecker)
    np.testing.assert_allclose(dense_covariances(found.posterior)["w"], covariance, rtol=1e-9)
    x, y = np.asarray(problem.x), np.asarray(problem.y)
    evidence = multivariate_normal.logpdf(y, cov=0.25 * np.eye(len(x)) + 0.4 * x @ x.T)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(found.stats["log_evidence"], evidence, rtol=1e-10)
    assert found.stats["newton_gain"] < 1e-18


def test_several_outputs_and_a_bias_are_exact_within_their_blocks():
    problem, _, x = two_outputs()
    found = laplace(problem, structure="kronecker", data_chunk=11).posterior
    own = dense_covariances(found)
    kernel = np.kron(x.T @ x / 0.25, np.eye(2)) + np.eye(6) / 0.4
    np.testing.assert_allclose(own["kernel"], np.linalg.inv(kernel), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        own["bias"], np.eye(2) / (30 / 0.25 + 1 / 0.4), rtol=1e-9, atol=1e-12
    )


def convolution():
    """Classes from a convolution and a dense layer, written in plain JAX."""
    rng = np.random.default_rng(8)
    shapes = {"bias": (3,), "conv": (2, 2, 1, 3), "out": (3, 4)}
    params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    x, y = rng.normal(size=(23, 4, 4, 1)), rng.integers(4, size=23)

    def apply(p, x):
        maps = jax.lax.conv_general_dilated(
            x, p["conv"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.tanh(maps + p["bias"]).mean((1, 2)) @ p["out"]

    return Problem(apply, lambda _: params, (x, y), temperature=0.5, prior_variance=0.3), params


@pytest.mark.parametrize("make", [poisson, convolution])
def test_the_blocks_have_the_partial_traces_of_the_dense_matrix(make):
    problem, params = make()
    matrix, start = dense_gauss_newton(problem, params), 0
    found = laplace(problem, structure="kronecker", data_chunk=10)
    covariances, values = dense_covariances(found.posterior), []
    for name, leaf in sorted(params.items()):
        block = matrix[start : start + leaf.size, start : start + leaf.size]
        start += leaf.size
        a, b = sides(leaf.shape)
        parts = block.reshape(a, b, a, b)
        left, right = np.einsum("iojo->ij", parts), np.einsum("ioip->op", parts)
        expected = np.kron(left, right) / np.trace(block)
        if a == 1:  # a vector, whose block is kept whole
            np.testing.assert_allclose(expected, block, rtol=1e-12)
        variance = problem.prior_variances[name]
        kept = np.linalg.inv(covariances[name]) - np.eye(leaf.size) / variance
        np.testing.assert_allclose(kept, expected, atol=1e-8 * np.abs(expected).max())
        np.testing.assert_allclose(np.trace(kept), np.trace(block), rtol=1e-8)
        values.append(variance * expected)
    # The statistics are those of the kept matrix.
    whole: Any = block_diag(*values)
    logs: Any = problem.log_posterior(params, all_of(problem))[0]
    size = len(matrix)
    log_prior_precision = sum(
        leaf.size * np.log(1 / problem.prior_variances[name]) for name, leaf in params.items()
    )
    expected = (
        logs
        + size / 2 * np.log(2 * np.pi)
        - 0.5 * (np.linalg.slogdet(np.eye(size) + whole)[1] + log_prior_precision)
    )
    np.testing.assert_allclose(found.stats["log_evidence"], expected, rtol=1e-9)
    at_mean = logs - found.posterior.log_prob(params)
    np.testing.assert_allclose(found.stats["log_evidence"], at_mean, rtol=1e-9)


def all_of(problem):
    return Batch(jnp.asarray(problem.x), jnp.asarray(problem.y))


def test_the_newton_gain_is_what_the_mode_misses():
    problem, _, x = two_outputs()
    # Without the bias the blocks are the whole matrix, at params that are not the mode.
    start = {"kernel": jnp.full((3, 2), 0.1)}
    alone = Problem(
        lambda p, x: x @ p["kernel"],
        lambda _: start,
        problem.data,
        Gaussian(0.5),
        prior_variance=0.4,
    )
    found = laplace(alone, structure="kronecker")
    precision: Any = x.T @ x / 0.25 + np.eye(3) / 0.4
    off = np.linalg.solve(precision, x.T @ np.asarray(problem.y) / 0.25) - 0.1
    np.testing.assert_allclose(found.stats["newton_gain"], 0.5 * np.sum(off * (precision @ off)))


def test_the_prior_with_the_largest_evidence():
    problem, params = convolution()
    tuned = laplace(problem, structure="kronecker", tune_prior=True)
    factor = tuned.stats["prior_variance_factor"]
    best, *others = [
        laplace(
            begun_at(problem, params, prior_variance=0.3 * f, temperature=0.5),
            structure="kronecker",
        )
        for f in (factor, 0.97 * factor, 1.03 * factor)
    ]
    evidence = best.stats["log_evidence"]
    np.testing.assert_allclose(tuned.stats["log_evidence"], evidence, rtol=1e-9)
    assert evidence > max(other.stats["log_evidence"] for other in others)
    for name, std in best.posterior.std.items():
        np.testing.assert_allclose(tuned.posterior.std[name], std, rtol=1e-6)


def test_a_fit_of_permuted_weights_is_the_permuted_fit():
    """The curvature at permuted weights is the permuted curvature."""
    problem, params = convolution()
    symmetry = ob.find_symmetry(problem.apply, params, jnp.asarray(problem.x))
    p = symmetry.random(key=jax.random.key(1))
    moved = begun_at(problem, symmetry.act(p, params), prior_variance=0.3, temperature=0.5)
    expected = dense_covariances(laplace(moved, structure="kronecker").posterior)
    found = symmetry.act(p, laplace(problem, structure="kronecker").posterior)
    for name, covariance in dense_covariances(found).items():
        np.testing.assert_allclose(covariance, expected[name], rtol=1e-8, atol=1e-10)


def test_scaling_units_and_wrong_bases_are_refused():
    w = {"w": jnp.ones((2, 3))}
    eyes = {"w": jnp.eye(2)}, {"w": jnp.eye(3)}
    q = Kronecker(w, w, *eyes)
    with pytest.raises(ValueError, match="can only be permuted along its axes"):
        q.relabel(lambda tree, lead: jax.tree.map(lambda a: 2 * a, tree))
    with pytest.raises(ValueError, match="the left of a Kronecker must be orthogonal"):
        Kronecker(w, w, {"w": 2 * jnp.eye(2)}, eyes[1])
    with pytest.raises(
        ValueError, match=r"bases of a Kronecker are \(2, 2\) and \(2, 2\) for leaf 'w'"
    ):
        Kronecker(w, w, eyes[0], eyes[0])


def test_an_array_with_too_many_rows_is_refused():
    init = lambda _: {"w": jnp.zeros((9000, 2))}
    data = (np.ones((2, 9000)), np.zeros((2, 2)))
    problem = Problem(lambda p, x: x @ p["w"], init, data, Gaussian(1.0))
    with pytest.raises(ValueError, match=r"array 'w'.*9,000 rows.*low-rank or diagonal"):
        fit(problem, Laplace(structure="kronecker"), key=jax.random.key(0))
