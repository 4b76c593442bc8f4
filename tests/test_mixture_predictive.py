"""The predictive of numbers against integrals, sums and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from onebasin.evaluation import (
    accuracy,
    agreement,
    coverage,
    cramer_distance,
    crps,
    interval_width,
    mean_deviance,
    mean_shift,
    nll,
    predict,
    predictive,
    rmse,
)
from onebasin.evaluation.grouped_numbers import grouped_numbers
from onebasin.evaluation.mixture_predictive import MixturePredictive
from onebasin.likelihoods import Gaussian, Heteroscedastic, Poisson, Regression
from onebasin.posterior import Mixture, Samples

pytestmark = pytest.mark.fast
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(size=(3, 5, 2)).astype(np.float32)  # draws, examples, mean and log std
WEIGHTS = np.array([0.2, 0.5, 0.3])
TARGETS = RNG.normal(size=5)
COUNTS = np.array([0, 4, 1, 2, 7])
Z = np.linspace(-40, 40, 8001)


def mixture(likelihood=None, outputs=OUTPUTS, shape=()):
    return MixturePredictive(outputs, WEIGHTS, likelihood or Heteroscedastic(), shape, KEY)


def counts(outputs=OUTPUTS[..., :1]):
    return MixturePredictive(outputs, WEIGHTS, Poisson(), (), KEY)


def cdf(p, z):
    """P(Y ≤ z) of every example, [z, examples]."""
    mean, std = p.outputs[..., 0], np.exp(p.outputs[..., 1])
    return np.tensordot(stats.norm.cdf(z[:, None, None], mean, std), WEIGHTS, axes=(1, 0))


def test_moments_and_density_of_the_mixture():
    p = mixture()
    mean, std = OUTPUTS[..., 0].astype(float), np.exp(OUTPUTS[..., 1].astype(float))
    first = WEIGHTS @ mean
    np.testing.assert_allclose(p.mean, first, rtol=1e-6)
    np.testing.assert_allclose(p.std**2, WEIGHTS @ (mean**2 + std**2) - first**2, rtol=1e-5)
    np.testing.assert_allclose(p.parameter_std**2, WEIGHTS @ mean**2 - first**2, rtol=1e-4)
    np.testing.assert_allclose(p.noise_std**2, WEIGHTS @ std**2, rtol=1e-5)
    density = WEIGHTS @ stats.norm.pdf(TARGETS, mean, std)
    np.testing.assert_allclose(p.log_likelihood(TARGETS), np.log(density), rtol=1e-5)
    assert nll(p, TARGETS) == pytest.approx(-np.log(density).mean(), rel=1e-5)
    assert rmse(p, TARGETS) == pytest.approx(np.sqrt(((first - TARGETS) ** 2).mean()), rel=1e-6)


def test_crps_and_cramer_distance_are_their_integrals():
    p, q = mixture(), mixture(outputs=OUTPUTS[:, ::-1].copy())
    step = Z[:, None] >= TARGETS
    expected = integrate.trapezoid((cdf(p, Z) - step) ** 2, Z, axis=0).mean()
    assert crps(p, TARGETS) == pytest.approx(expected, abs=5e-3)  # a step between nodes 0.01 apart
    expected = integrate.trapezoid((cdf(p, Z) - cdf(q, Z)) ** 2, Z, axis=0).mean()
    assert cramer_distance(p, q) == pytest.approx(expected, rel=1e-6)
    assert cramer_distance(p, p) == pytest.approx(0, abs=1e-12)
    # It is what the CRPS loses on average: targets of p, predicted by q.
    tall = [np.tile(one.outputs, (1, 400, 1)) for one in (p, q)]
    y = p.sample(400, key=KEY).ravel()
    lost = crps(mixture(outputs=tall[1]), y) - crps(mixture(outputs=tall[0]), y)
    assert lost == pytest.approx(cramer_distance(p, q), abs=0.06)  # 3 errors of 2000 targets


def test_crps_of_one_gaussian_has_its_closed_form():
    one = MixturePredictive(OUTPUTS[:1, :, :1], np.ones(1), Gaussian(0.7), (), KEY)
    z = (TARGETS - OUTPUTS[0, :, 0]) / 0.7
    by_hand = 0.7 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert crps(one, TARGETS) == pytest.approx(by_hand.mean(), rel=1e-6)


def test_crps_and_distance_of_counts_are_their_sums():
    p, q = counts(), counts(OUTPUTS[:, ::-1, :1] + 1)
    k = np.arange(200)
    law = lambda one: np.tensordot(
        stats.poisson.cdf(k[:, None, None], np.exp(one.outputs[..., 0])), WEIGHTS, axes=(1, 0)
    )
    expected = ((law(p) - (k[:, None] >= COUNTS)) ** 2).sum(0).mean()
    assert crps(p, COUNTS) == pytest.approx(expected, rel=1e-6)
    assert cramer_distance(p, q) == pytest.approx(((law(p) - law(q)) ** 2).sum(0).mean(), rel=1e-6)
    mean = WEIGHTS @ np.exp(OUTPUTS[..., 0])
    unit = 2 * (
        np.where(COUNTS > 0, COUNTS * np.log(np.maximum(COUNTS, 1) / mean), 0) + mean - COUNTS
    )
    assert mean_deviance(p, COUNTS) == pytest.approx(unit.mean(), rel=1e-5)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.999])
def test_quantiles_invert_the_distribution_function(level):
    p = mixture()
    found = p.quantile(level)
    at = [cdf(p, np.array([found[i]]))[0, i] for i in range(5)]
    np.testing.assert_allclose(at, level, atol=1e-6)
    n = counts()
    found = n.quantile(level)
    law = lambda k: WEIGHTS @ stats.poisson.cdf(k, np.exp(OUTPUTS[..., 0]))
    assert (law(found) >= level).all()
    assert (law(found - 1) < level).all()
    np.testing.assert_array_equal(found, np.floor(found))


def test_intervals_by_hand():
    one = MixturePredictive(np.zeros((1, 4, 1), np.float32), np.ones(1), Gaussian(2.0), (), KEY)
    assert interval_width(one, 0.9) == pytest.approx(4 * 1.6448536, rel=1e-6)
    assert coverage(one, [0.0, 3.2, 3.4, -9.0], 0.9) == 0.5
    # Targets drawn from the predictive are covered as often as the level says.
    tall = mixture(outputs=np.tile(OUTPUTS, (1, 600, 1)))
    y = mixture().sample(600, key=KEY).ravel()
    assert coverage(tall, y, 0.8) == pytest.approx(0.8, abs=0.03)  # 4 errors of 3000 targets


class Sampled(Gaussian):
    """Known by its samples alone."""

    variance = Regression.variance
    cdf = Regression.cdf  # pyright: ignore[reportAssignmentType]
    absolute_error = Regression.absolute_error
    absolute_difference = Regression.absolute_difference


def test_a_likelihood_known_by_its_samples():
    outputs = np.repeat(OUTPUTS[..., :1], 40, axis=1)
    y = np.repeat(TARGETS, 40)
    exact = MixturePredictive(outputs, WEIGHTS, Gaussian(0.5), (), KEY)
    sampled = MixturePredictive(outputs, WEIGHTS, Sampled(0.5), (), KEY)
    # 600 samples of an absolute difference of order 1.
    assert crps(sampled, y) == pytest.approx(crps(exact, y), abs=0.06)
    np.testing.assert_allclose(sampled.quantile(0.5), exact.quantile(0.5), atol=0.2)
    np.testing.assert_allclose(sampled.std, exact.std, rtol=0.1)


def apply(params, x):
    return x @ params["w"]


X = RNG.normal(size=(6, 2)).astype(np.float32)
DRAWS = Samples({"w": jnp.asarray(RNG.normal(size=(4, 2, 1)), jnp.float32)})


def test_predictions_are_averages_over_draws_whatever_the_batches():
    q = Mixture((DRAWS, Samples({"w": jnp.ones((1, 2, 1))})), jnp.array([0.25, 0.75]))
    each = [np.asarray(X @ w)[:, 0] for w in DRAWS.draws["w"]]
    expected = 0.25 * np.mean(each, axis=0) + 0.75 * X.sum(1)
    for batch_size in (None, 4):
        p = predictive(q, apply, X, key=KEY, likelihood=Gaussian(0.3), batch_size=batch_size)
        assert isinstance(p, MixturePredictive)
        np.testing.assert_allclose(p.mean, expected, rtol=1e-5, atol=1e-6)
        assert p.weights.sum() == pytest.approx(1)
    assert predict(q, apply, X, key=KEY, likelihood="gaussian").shape == (6,)
    rate = predict(DRAWS, apply, X, key=KEY, likelihood="poisson")
    np.testing.assert_allclose(rate, np.mean(np.exp(each), axis=0), rtol=1e-5)


def test_measures_of_grouped_draws_are_those_of_the_predictive():
    """With one group per draw and their own weights nothing is resampled."""
    other = Samples({"w": DRAWS.draws["w"] + 0.3})
    y = RNG.normal(size=6)
    given = {"key": KEY, "likelihood": Gaussian(0.4)}
    p, q = (grouped_numbers(s, apply, X, y, groups=4, **given) for s in (DRAWS, other))
    found = p.measured(q, y, p.share, q.share)
    plain, reference = (predictive(s, apply, X, **given) for s in (DRAWS, other))
    assert isinstance(plain, MixturePredictive)
    assert isinstance(reference, MixturePredictive)
    assert found["crps"] == pytest.approx(crps(plain, y), rel=1e-9)
    assert found["nll"] == pytest.approx(nll(plain, y), rel=1e-9)
    assert found["rmse"] == pytest.approx(rmse(plain, y), rel=1e-9)
    assert found["cramer_distance"] == pytest.approx(cramer_distance(plain, reference), rel=1e-9)
    shift = np.abs(plain.mean - reference.mean) / reference.std
    assert found["mean_shift"] == pytest.approx(shift.mean(), rel=1e-9)
    assert mean_shift(reference, plain) == pytest.approx(shift.mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy(mixture(), [0] * 5), "heteroscedastic likelihood predicts numbers"),
        (lambda: agreement(mixture(), mixture()), "compare two by cramer_distance"),
        (lambda: crps(predictive(DRAWS, lambda p, x: x, X, key=KEY), X), "crps needs the predic"),
        (lambda: mixture().quantile(1.0), "must be between 0 and 1"),
        (lambda: rmse(mixture(), TARGETS[:3]), "5 predictions and 3 targets"),
        (lambda: mean_deviance(mixture(), TARGETS), "deviance is defined for counts"),
        (lambda: cramer_distance(mixture(), counts()), "cannot be compared"),
        (lambda: predict(DRAWS, apply, X, key=KEY), "needs likelihood='bernoulli'"),
        (
            lambda: predict(DRAWS, apply, X, key=KEY, likelihood=lambda f, y: f[:, 0]),
            "custom likelihood does not say what a prediction is",
        ),
    ],
)
def test_what_does_not_apply_is_refused(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
