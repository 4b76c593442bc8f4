"""Estimates of the evidence: exact for linear regression, against annealed importance sampling."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from onebasin.evaluation import log_evidence, predict
from onebasin.evaluation.evidence import coincident
from onebasin.inference.fitting import fit
from onebasin.inference.methods import Laplace
from onebasin.likelihoods import Gaussian
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.problem import Problem
from onebasin.symmetry import find_symmetry
from posterior_cases import conjugate

KEY = jax.random.key(7)


@pytest.mark.usefixtures("x64")
def test_the_evidence_of_linear_regression_is_exact():
    problem, mean, covariance = conjugate()
    x, y = np.asarray(problem.x), np.asarray(problem.y)
    exact = multivariate_normal.logpdf(y, cov=0.25 * np.eye(100) + 0.4 * x @ x.T)  # pyright: ignore[reportArgumentType]
    factors = np.linalg.cholesky(covariance - 1e-12 * np.eye(3)).T
    q = LowRank({"w": jnp.asarray(mean)}, {"w": jnp.full(3, 1e-6)}, {"w": jnp.asarray(factors)})
    found = log_evidence(q, problem, key=KEY, num_samples=8, progress="silent")
    assert found.laplace is not None
    for estimate in (found.elbo, found.weighted, found.laplace):
        np.testing.assert_allclose(estimate, exact, atol=1e-4)
    # The best factorised Gaussian: log Z less ½(Σ log P_ii − log|P|), its divergence.
    precision = np.linalg.inv(covariance)
    std = np.diag(precision) ** -0.5
    factorised = MeanField({"w": jnp.asarray(mean)}, {"w": jnp.asarray(std)})
    found = log_evidence(factorised, problem, key=KEY, num_samples=2000, progress="silent")
    divergence = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    assert abs(found.elbo - (exact - divergence)) < 4.5 * found.elbo_error
    # E_q w² is finite here, and 2,000 weights determine log Z to a few percent.
    assert abs(found.weighted - exact) < 0.2


def small_network(width):
    """A network of softplus units, which have no symmetry but permutations, and noisy data."""
    rng = np.random.default_rng(3)
    x = np.linspace(-2, 2, 40)[:, None]
    y = (np.log1p(np.exp(3 * x)) - 2 * np.log1p(np.exp(-2 - 2 * x)))[:, 0]
    y = y + 0.1 * rng.normal(size=40)

    def init(key):
        return {
            "in": jax.random.normal(key, (1, width)),
            "bias": jnp.zeros(width),
            "out": jnp.zeros(width),
        }

    def apply(p, x):
        return jax.nn.softplus(2 * (x @ p["in"] + p["bias"])) @ p["out"]

    return Problem(apply, init, (x, y), likelihood=Gaussian(0.1), prior_variance=2.0)


def annealed(problem, *, chains, temperatures, key):
    """log Z by annealed importance sampling from the prior, one HMC trajectory at each β."""
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
    variances = problem.prior_variances
    betas = jnp.linspace(0, 1, temperatures) ** 4
    likelihood = lambda p: problem.log_likelihood(problem.apply(p, x), y).sum()

    def one(key):
        leaves = jax.tree.map(lambda s, v: (s.shape, v), problem.shapes, variances)
        first, rest = jax.random.split(key)
        names = list(leaves)
        params = {
            name: jnp.sqrt(leaves[name][1]) * jax.random.normal(k, leaves[name][0])
            for name, k in zip(names, jax.random.split(first, len(names)), strict=True)
        }

        def transition(carry, inputs):
            params, weight = carry
            beta, before, key = inputs
            weight = weight + (beta - before) * likelihood(params)
            momentum_key, accept_key, step_key = jax.random.split(key, 3)
            density = lambda p: beta * likelihood(p) + problem.log_prior(p)
            force = jax.grad(density)
            step = 0.25 / jnp.sqrt(1 + 2000 * beta) * jax.random.uniform(step_key, minval=0.3)
            keys = jax.random.split(momentum_key, len(names))
            momentum = {
                name: jax.random.normal(k, params[name].shape)
                for name, k in zip(names, keys, strict=True)
            }

            def leap(state, _):
                p, m = state
                m = jax.tree.map(lambda a, g: a + step / 2 * g, m, force(p))
                p = jax.tree.map(lambda a, b: a + step * b, p, m)
                m = jax.tree.map(lambda a, g: a + step / 2 * g, m, force(p))
                return (p, m), None

            (moved, end), _ = jax.lax.scan(leap, (params, momentum), None, length=8)
            kinetic = lambda m: sum(jnp.sum(a**2) for a in jax.tree.leaves(m)) / 2
            gain = density(moved) - kinetic(end) - density(params) + kinetic(momentum)
            accept = jnp.log(jax.random.uniform(accept_key)) < gain
            params = jax.tree.map(lambda a, b: jnp.where(accept, a, b), moved, params)
            return (params, weight), None

        steps = (betas[1:], betas[:-1], jax.random.split(rest, temperatures - 1))
        (_, weight), _ = jax.lax.scan(transition, (params, jnp.zeros(())), steps)
        return weight

    weights = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(key, chains)))
    return float(np.asarray(logsumexp(weights))) - math.log(chains)


def at_the_mode(problem):
    """The problem, begun at the best mode that BFGS finds from a few starts."""
    start, unravel = ravel_pytree(problem.init(KEY))
    data = (jnp.asarray(problem.x), jnp.asarray(problem.y))
    loss = jax.jit(jax.value_and_grad(lambda f: -problem.log_posterior(unravel(f), data)[0]))
    starts = np.random.default_rng(0).normal(size=(6, start.size))
    found = [minimize(lambda f: tuple(map(np.asarray, loss(f))), s, jac=True) for s in starts]
    mode = unravel(jnp.asarray(min(found, key=lambda one: one.fun).x))
    return Problem(
        *(problem.apply, lambda _: mode, problem.data),
        likelihood=problem.likelihood,
        prior_variance=problem.prior_variance,
    )


@pytest.mark.usefixtures("x64")
def test_with_the_equivalent_modes_it_is_that_of_annealed_importance_sampling():
    """Annealing from the prior reaches every mode; Laplace sees one of 3! = 6."""
    problem = at_the_mode(small_network(3))
    fitted = fit(problem, Laplace(mode_epochs=0, rank=9), key=KEY, progress="silent")
    assert fitted.stats["newton_gain"] < 1e-6
    found = log_evidence(
        fitted.posterior,
        problem,
        key=KEY,
        num_samples=2,
        symmetry=find_symmetry(problem),
        progress="silent",
    )
    np.testing.assert_allclose(found.equivalent_modes, math.log(6))
    assert found.laplace is not None
    np.testing.assert_allclose(found.laplace, fitted.stats["log_evidence"] + math.log(6), rtol=1e-9)
    expected = annealed(problem, chains=64, temperatures=1000, key=KEY)
    # The weights of the chains that find the mode have logarithms with a standard deviation near
    # 1.3, which for about half of 64 is an error of 0.3. One basin would be wrong by 1.8.
    assert abs(found.laplace - expected) < 0.7


def test_units_that_coincide_are_counted_once():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=(6, 40)), np.full((6, 40), 0.1)
    mean[4] = mean[1]
    mean[5] = mean[1] + 0.001
    std[3] = 1.0  # far apart in width alone
    mean[3] = mean[0]
    assert sorted(coincident(mean, std)) == [1, 1, 1, 3]
    # Two units one coordinate apart by d: the overlap of the swapped pair is exp(−d²/(4σ²)).
    for gap, sets in ((1.6, [2]), (1.7, [1, 1])):
        near = np.zeros((2, 1))
        near[1] = gap
        assert coincident(near, np.ones((2, 1))) == sets


@pytest.mark.usefixtures("x64")
def test_a_linearised_network_predicts_by_its_jacobian():
    rng = np.random.default_rng(2)
    apply = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]
    mean = {"a": jnp.asarray(rng.normal(size=(2, 3))), "b": jnp.asarray(rng.normal(size=(3, 2)))}
    std = jax.tree.map(lambda m: jnp.full(m.shape, 0.8), mean)
    q, x = MeanField(mean, std), 4 * rng.normal(size=(5, 2))
    found = predict(
        q, apply, x, key=KEY, num_samples=4_000, batch_size=5, linearised=True, progress="silent"
    )
    # Of two classes only the difference of the outputs counts, which is normal: by quadrature.
    flat, unravel = ravel_pytree(mean)
    difference = lambda f: jnp.diff(apply(unravel(f), x), axis=1)[:, 0]
    centre, jacobian = np.asarray(difference(flat)), np.asarray(jax.jacobian(difference)(flat))
    spread = np.sqrt((0.8**2 * jacobian**2).sum(1))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    values = 1 / (1 + np.exp(-(centre[:, None] + spread[:, None] * nodes)))
    expected = values @ weights / weights.sum()
    # 4,000 draws of a probability: an error of at most 0.5/63.
    np.testing.assert_allclose(found[:, 1], expected, atol=4.5 * 0.5 / 63)
    plain = predict(q, apply, x, key=KEY, num_samples=2000, batch_size=5, progress="silent")
    assert np.abs(plain[:, 1] - expected).max() > 0.05
    with pytest.raises(ValueError, match="Samples has no one point at which to linearise"):
        predict(Samples(jax.tree.map(lambda m: m[None], mean)), apply, x, key=KEY, linearised=True)


def test_draws_have_no_density():
    draws = Samples({"w": jnp.zeros((3, 3))})
    with pytest.raises(ValueError, match="no density"):
        log_evidence(draws, conjugate()[0], key=KEY, progress="silent")
