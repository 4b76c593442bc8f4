"""Every kind of likelihood against SciPy, integrals and sums; noise that a problem learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from onebasin.likelihoods import (
    Bernoulli,
    Gaussian,
    Heteroscedastic,
    LearnedNoise,
    Poisson,
    Regression,
    likelihood_from,
    likelihood_named,
    settings_of,
)
from onebasin.likelihoods.poisson import deviance
from onebasin.problem import Problem
from onebasin.symmetry import find_symmetry

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("x64")]

RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(size=(6, 1))
LABELS = np.array([1, 0, 0, 1, 1, 0], np.int32)
COUNTS = np.array([0.0, 3.0, 1.0, 7.0, 2.0, 0.0])
TARGETS = RNG.normal(size=(6, 2))
WIDE = 0.5 * RNG.normal(size=(6, 4))  # two means and two log stds
KEY = jax.random.key(0)


def test_bernoulli_against_scipy_whatever_the_shape():
    expected = stats.bernoulli.logpmf(LABELS, special.expit(OUTPUTS[:, 0]))
    for outputs in (OUTPUTS, OUTPUTS[:, 0]):
        found = Bernoulli()(jnp.asarray(outputs), jnp.asarray(LABELS))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    probs = np.exp(Bernoulli().log_probs(jnp.asarray(OUTPUTS)))
    np.testing.assert_allclose(probs[:, 1], special.expit(OUTPUTS[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)
    far = Bernoulli()(jnp.array([1e4, -1e4]), jnp.array([0, 0]))
    np.testing.assert_allclose(far, [-1e4, 0.0], atol=1e-12)
    hits = Bernoulli().score(jnp.asarray(OUTPUTS), jnp.asarray(LABELS))
    np.testing.assert_array_equal(hits, (OUTPUTS[:, 0] > 0) == LABELS)


def test_bernoulli_targets():
    for y in (LABELS, LABELS[:, None], LABELS.astype(bool), LABELS.astype(np.float64)):
        found = Bernoulli().targets(y)
        np.testing.assert_array_equal(found, LABELS)
        assert found.dtype == np.int32


def test_poisson_against_scipy():
    expected = stats.poisson.logpmf(COUNTS, np.exp(OUTPUTS[:, 0]))
    found = Poisson()(jnp.asarray(OUTPUTS), jnp.asarray(COUNTS))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    rate = np.exp(OUTPUTS[:, 0])
    by_hand = 2 * (special.xlogy(COUNTS, COUNTS / rate) - (COUNTS - rate))
    found = Poisson().score(jnp.asarray(OUTPUTS), jnp.asarray(COUNTS))
    np.testing.assert_allclose(found, by_hand, rtol=1e-10)
    np.testing.assert_allclose(deviance(jnp.asarray(COUNTS), jnp.asarray(COUNTS)), 0, atol=1e-12)


def test_heteroscedastic_against_scipy():
    mean, std = WIDE[:, :2], np.exp(WIDE[:, 2:])
    expected = stats.norm.logpdf(TARGETS, mean, std).sum(1)
    found = Heteroscedastic()(jnp.asarray(WIDE), jnp.asarray(TARGETS))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    found = Heteroscedastic().score(jnp.asarray(WIDE), jnp.asarray(TARGETS))
    np.testing.assert_allclose(found, ((mean - TARGETS) ** 2).mean(1), rtol=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y"),
    [
        (Bernoulli(), OUTPUTS, LABELS),
        (Poisson(), OUTPUTS, COUNTS),
        (Heteroscedastic(), WIDE, TARGETS),
    ],
    ids=lambda c: type(c).__name__,
)
def test_gradients_against_central_differences(likelihood, outputs, y):
    total = lambda f: likelihood(f, jnp.asarray(y)).sum()
    gradient = np.asarray(jax.grad(total)(jnp.asarray(outputs)))
    h = 1e-5
    for index in np.ndindex(outputs.shape):
        step = np.zeros_like(outputs)
        step[index] = h
        difference = (total(jnp.asarray(outputs + step)) - total(jnp.asarray(outputs - step))) / 2
        # O(h²) truncation plus roundings over h: below 1e-7.
        np.testing.assert_allclose(difference / h, gradient[index], rtol=1e-6, atol=1e-7)


def test_mean_absolute_differences_of_gaussians_are_their_integrals():
    """E|Y₁ − Y₂| = ∫ F₁(1 − F₂) + F₂(1 − F₁), and E|Y − y| with a step in place of F₂."""
    draws = np.stack([WIDE, WIDE[::-1] + 0.3])
    like = Heteroscedastic()
    found = like.absolute_difference(draws, draws, key=KEY)
    across = like.absolute_difference(draws, draws[::-1].copy(), key=KEY)
    np.testing.assert_allclose(across, found[:, ::-1], rtol=1e-12)

    # The trapezoid rule on a smooth integrand with Gaussian tails is exact to rounding.
    z = np.linspace(-25, 25, 4001)
    cdfs = stats.norm.cdf(z[:, None, None, None], draws[..., :2], np.exp(draws[..., 2:]))
    for s in range(2):
        for t in range(2):
            f, g = cdfs[:, s], cdfs[:, t]
            expected = integrate.trapezoid(f * (1 - g) + g * (1 - f), z, axis=0).mean()
            np.testing.assert_allclose(found[s, t], expected, rtol=1e-9)
    errors = like.absolute_error(draws, TARGETS, key=KEY)
    for s in range(2):
        density = stats.norm.pdf(z[:, None, None], draws[s, :, :2], np.exp(draws[s, :, 2:]))
        expected = integrate.trapezoid(density * np.abs(z[:, None, None] - TARGETS), z, axis=0)
        np.testing.assert_allclose(
            errors[s], expected.mean(), atol=1e-4
        )  # the kink, h²/12 times 2p


def test_mean_absolute_differences_of_counts_are_their_sums():
    draws = np.stack([OUTPUTS, OUTPUTS[::-1] + 1.5, OUTPUTS - 6.0])
    found = Poisson().absolute_difference(draws, draws, key=KEY)
    errors = Poisson().absolute_error(draws, COUNTS[:, None], key=KEY)
    k = np.arange(200)
    p = stats.poisson.pmf(k, np.exp(draws))  # [draws, examples, counts]
    distance = np.abs(k[:, None] - k)
    expected = np.einsum("snk,tnl,kl->st", p, p, distance) / 6
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    expected = np.einsum("snk,nk->s", p, np.abs(k - COUNTS[:, None])) / 6
    np.testing.assert_allclose(errors, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [(Gaussian(0.4), OUTPUTS), (Heteroscedastic(), WIDE), (Poisson(), OUTPUTS)],
)
def test_samples_have_the_law_of_the_likelihood(likelihood, outputs):
    keys = jax.random.split(KEY, 4000)
    samples = jax.vmap(lambda k: likelihood.sample(jnp.asarray(outputs), key=k))(keys)
    mean, variance = likelihood.mean(outputs), likelihood.variance(outputs)
    error = np.sqrt(np.asarray(variance) / 4000)
    assert np.abs((samples.mean(0) - mean) / error).max() < 4
    np.testing.assert_allclose(samples.var(0), variance, rtol=0.15)  # 6 standard errors
    at = np.asarray(mean)
    np.testing.assert_allclose((samples <= at).mean(0), likelihood.cdf(outputs, at), atol=0.035)


class Sampled(Gaussian):
    """Known by its samples alone, as a likelihood of a user is."""

    variance = Regression.variance
    absolute_error = Regression.absolute_error
    absolute_difference = Regression.absolute_difference


def test_what_samples_estimate_is_exact_on_average():
    draws = np.stack([np.tile(OUTPUTS, (2000, 1)), np.tile(OUTPUTS + 1, (2000, 1))])
    y = np.tile(TARGETS[:, :1], (2000, 1))
    exact, sampled = Gaussian(0.7), Sampled(0.7)
    # 12,000 samples of a mean absolute difference of order 1: a standard error below 0.01.
    for call in (
        lambda one: one.absolute_difference(draws, draws, key=KEY),
        lambda one: one.absolute_error(draws, y, key=KEY),
    ):
        np.testing.assert_allclose(call(sampled), call(exact), atol=0.03)
    variance = sampled.variance(jnp.zeros((2000, 1)))
    assert abs(float(np.mean(variance)) - 0.49) < 0.01


def network(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


def init(key):
    return {"w1": jax.random.normal(key, (3, 5)), "w2": jax.random.normal(key, (5, 2))}


X = RNG.normal(size=(6, 3))


def test_a_problem_learns_one_noise_per_target():
    likelihood = LearnedNoise(noise_std=0.5, prior_variance=4.0)
    problem = Problem(network, init, (X, TARGETS), likelihood, prior_variance=0.3)
    params = problem.init(KEY)
    assert params["log_noise"].tolist() == [0.0, 0.0]
    params["log_noise"] = jnp.array([0.2, -0.7])
    value, aux = problem.log_posterior(params, (X, TARGETS))
    mean, std = np.asarray(network(params, X)), 0.5 * np.exp(np.array([0.2, -0.7]))
    expected = stats.norm.logpdf(TARGETS, mean, std).sum()
    for name in ("w1", "w2"):
        expected += stats.norm.logpdf(params[name], 0, np.sqrt(0.3)).sum()
    expected += stats.norm.logpdf(params["log_noise"], 0, 2.0).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(aux["squared_error"], ((mean - TARGETS) ** 2).mean(), rtol=1e-12)
    named = Problem(
        network, init, (X, TARGETS), likelihood, {"w1": 1.0, "w2": 2.0, "log_noise": 3.0}
    )
    assert named.prior_variances == {"w1": 1.0, "w2": 2.0, "log_noise": 3.0}
    rest = Problem(network, init, (X, TARGETS), likelihood, {"w1": 1.0, "w2": 2.0})
    assert rest.prior_variances["log_noise"] == 4.0


def test_no_permutation_moves_the_noise():
    problem = Problem(network, init, (X, TARGETS), "learned-noise")
    symmetry = find_symmetry(problem)
    places = [leaf for group in symmetry.groups for leaf in map(str, group.places)]
    assert {group.size for group in symmetry.groups} == {5}
    assert not any("log_noise" in leaf for leaf in places)
    assert sum("w1" in leaf or "w2" in leaf for leaf in places) == 2


def test_names_and_settings():
    for name in ("bernoulli", "poisson", "heteroscedastic", "learned-noise", "gaussian"):
        likelihood = likelihood_named(name)
        assert likelihood_from(settings_of(likelihood)) == likelihood
    given = likelihood_named("learned-noise", noise_std=0.2)
    assert likelihood_from(settings_of(given)) == given == LearnedNoise(0.2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bernoulli().targets([0, 1, 2]), "needs one target per example, 0 or 1"),
        (lambda: Bernoulli().targets(np.zeros((3, 2))), r"y has shape \(3, 2\)"),
        (lambda: Bernoulli().check_outputs((6, 2), LABELS), "takes one logit per example"),
        (lambda: Poisson().targets([0.5]), "needs counts, whole numbers from 0 up"),
        (lambda: Poisson().targets([-1]), "needs counts"),
        (lambda: Heteroscedastic().check_outputs((6, 2), TARGETS), "two outputs per target"),
        (lambda: LearnedNoise(0.0), "noise_std must be a positive number"),
        (lambda: LearnedNoise(prior_variance=-1.0), "prior_variance must be a positive number"),
        (lambda: likelihood_named("poisson", noise_std=0.1), "poisson likelihood has no noise std"),
        (lambda: likelihood_from({"name": "custom"}), "likelihood 'custom' of this posterior"),
        (lambda: likelihood_from({"name": "gaussian", "dof": 3.0}), "not a built-in one"),
        (
            lambda: Problem(network, lambda key: [jnp.zeros(3)], (X, TARGETS), "learned-noise"),
            "adds the leaf 'log_noise' to params; let init return a dictionary",
        ),
        (
            lambda: Problem(lambda p, x: network(p, x)[:, :1], init, (X, LABELS)),
            "one logit per example needs likelihood='bernoulli'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
