"""Likelihoods against SciPy and finite differences; what they refuse."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from onebasin.likelihoods import (
    Categorical,
    Custom,
    Gaussian,
    Likelihood,
    check_classes,
    check_output,
    likelihood_of,
    settings_of,
)

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("x64")]

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(6, 4))
LABELS = np.array([3, 0, 2, 1, 0, 3], np.int32)
OUTPUTS = RNG.normal(size=(6, 2))
TARGETS = RNG.normal(size=(6, 2))
CASES = [(Categorical(), LOGITS, LABELS), (Gaussian(0.3), OUTPUTS, TARGETS)]


def multinomial(p: np.ndarray, y: int) -> float:
    return float(stats.multinomial(1, p).logpmf(np.eye(len(p))[y]))


def test_categorical_against_scipy():
    p = special.softmax(LOGITS, axis=-1)
    expected = [multinomial(row, y) for row, y in zip(p, LABELS, strict=True)]
    found = Categorical()(jnp.asarray(LOGITS), jnp.asarray(LABELS))
    assert found.shape == (6,)
    # Both normalise in double precision; the log amplifies nothing here.
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_categorical_logits_may_be_large():
    log_p = Categorical()(jnp.array([[1e4, 0.0], [-1e4, 0.0]]), jnp.array([1, 1]))
    np.testing.assert_allclose(log_p, [-1e4, 0.0], atol=1e-12)


@pytest.mark.parametrize("noise_std", [0.1, 1.0, 7.0])
def test_gaussian_against_scipy(noise_std):
    covariance = noise_std**2 * np.eye(2)
    expected = [
        float(stats.multivariate_normal.logpdf(y, f, covariance))  # pyright: ignore[reportArgumentType]
        for f, y in zip(OUTPUTS, TARGETS, strict=True)
    ]
    found = Gaussian(noise_std)(jnp.asarray(OUTPUTS), jnp.asarray(TARGETS))
    # A residual of tens of standard deviations, squared: a few roundings of the sum.
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_gaussian_outputs_take_the_shape_of_the_targets():
    """A network with one output per example, [batch, 1], and targets [batch]."""
    one = Gaussian(0.5)(jnp.asarray(OUTPUTS[:, :1]), jnp.asarray(TARGETS[:, 0]))
    other = Gaussian(0.5)(jnp.asarray(OUTPUTS[:, :1]), jnp.asarray(TARGETS[:, :1]))
    assert one.shape == (6,)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("likelihood", "outputs", "y"), CASES, ids=lambda c: type(c).__name__)
def test_gradients_against_central_differences(likelihood, outputs, y):
    total = lambda f: likelihood(f, jnp.asarray(y)).sum()
    gradient = np.asarray(jax.grad(total)(jnp.asarray(outputs)))
    h = 1e-5
    for index in np.ndindex(outputs.shape):
        step = np.zeros_like(outputs)
        step[index] = h
        difference = (total(jnp.asarray(outputs + step)) - total(jnp.asarray(outputs - step))) / 2
        # O(h²) truncation plus roundings of a sum of order 100 over h: below 1e-7.
        np.testing.assert_allclose(difference / h, gradient[index], rtol=1e-6, atol=1e-7)


def test_the_expected_score_is_zero():
    """Σ_y p(y) ∂ log p(y) = 0 for the categorical likelihood."""
    gradient = jax.vmap(jax.grad(lambda z, y: Categorical()(z[None], y[None])[0]), (None, 0))
    for z in LOGITS:
        mean = special.softmax(z) @ np.asarray(gradient(jnp.asarray(z), jnp.arange(4)))
        np.testing.assert_allclose(mean, 0, atol=1e-12)


def test_scores():
    hits = Categorical().score(jnp.asarray(LOGITS), jnp.asarray(LABELS))
    np.testing.assert_array_equal(hits, LOGITS.argmax(1) == LABELS)
    errors = Gaussian(0.3).score(jnp.asarray(OUTPUTS), jnp.asarray(TARGETS))
    np.testing.assert_allclose(errors, ((OUTPUTS - TARGETS) ** 2).mean(1), rtol=1e-12)


def laplace(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.abs(outputs - y).sum(-1) - y.shape[-1] * jnp.log(2.0)


def test_custom_likelihoods():
    likelihood = likelihood_of(laplace)
    assert isinstance(likelihood, Custom)
    f, y = jnp.asarray(OUTPUTS), jnp.asarray(TARGETS)
    expected = stats.laplace.logpdf(TARGETS, OUTPUTS).sum(1)
    np.testing.assert_allclose(likelihood(f, y), expected, rtol=1e-12)
    np.testing.assert_array_equal(likelihood.score(f, y), likelihood(f, y))
    assert likelihood.targets([1.5, 2.5]).tolist() == [1.5, 2.5]
    likelihood.check_outputs((6, 17), TARGETS)
    assert not likelihood.classifies
    assert settings_of(likelihood) == {"name": "custom"}


def test_likelihoods_by_name_and_value():
    assert likelihood_of("categorical") == Categorical()
    assert likelihood_of("gaussian") == Gaussian(1.0)
    own = Gaussian(0.3)
    assert likelihood_of(own) is own
    assert hash(own) == hash(Gaussian(0.3))
    assert own != Gaussian(0.4)
    assert settings_of(own) == {"name": "gaussian", "noise_std": 0.3}
    assert settings_of(Categorical()) == {"name": "categorical"}
    for likelihood in (Categorical(), own, Custom(laplace)):
        assert isinstance(likelihood, Likelihood)


@dataclass(frozen=True)
class StudentT(Gaussian):
    """A likelihood of a user, with one option more."""

    dof: float = 3.0


def test_options_of_own_likelihoods_are_recorded():
    """A fit with 9 degrees of freedom must not resume from one with 3."""
    assert settings_of(StudentT(0.5, dof=9.0)) == {
        "name": "gaussian",
        "noise_std": 0.5,
        "dof": 9.0,
    }
    assert settings_of(StudentT(dof=9.0)) != settings_of(StudentT(dof=3.0))


def test_types_of_targets():
    assert Categorical().targets(np.array([0, 2], np.uint8)).dtype == np.int32
    assert Gaussian().targets([1, 2]).dtype == np.float32
    assert Gaussian().targets(np.array([1.0, 2.0], np.float16)).dtype == np.float32
    assert Gaussian().targets(np.array([1.0, 2.0])).dtype == np.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Categorical().targets(TARGETS[:, 0]), r"y has shape \(6,\) and type float64; .*"),
        (lambda: Categorical().targets(LABELS[:, None, None]), "one integer label per example"),
        (
            lambda: Categorical().check_outputs((6, 4), LABELS[:, None]),
            r"y has shape \(6, 1\) .* one integer label per example \(for",
        ),
        (
            lambda: Categorical().check_outputs((6, 3), LABELS),
            "labels range from 0 to 3, but there",
        ),
        (lambda: Categorical().check_outputs((6, 3, 2), LABELS), "for each of its 3 positions"),
        (
            lambda: Categorical().check_outputs((6, 3, 2, 2), LABELS),
            r"\(6, 3, 2, 2\); logits must have",
        ),
        (lambda: check_classes(-LABELS - 1, 4), "labels range from -4 to -1"),
        (
            lambda: Gaussian().targets(["a", "b"]),
            "the Gaussian likelihood needs finite real targets",
        ),
        (lambda: Gaussian().targets([1.0, np.nan]), "the Gaussian likelihood needs finite real"),
        (lambda: Gaussian().check_outputs((6, 3), TARGETS), "one output per target"),
        (lambda: Gaussian(0.0), "noise_std must be a positive number, got 0.0"),
        (lambda: Gaussian(float("inf")), "noise_std must be a positive number, got inf"),
        (lambda: likelihood_of("probit"), "no likelihood 'probit'; choose categorical, bern"),  # pyright: ignore[reportArgumentType]
        (
            lambda: check_output(jnp.zeros((3, 2)), 4),
            r"returned \(3, 2\) for a batch of 4; it must",
        ),
        (
            lambda: check_output((jnp.zeros(4), jnp.zeros((4, 2))), 4),
            r"returned \(\(4,\), \(4, 2\)\)",
        ),
        (lambda: check_output(jnp.zeros(()), 4), r"returned \(\) for a batch of 4"),
        (lambda: check_output(None, 4), "returned None for a batch of 4"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_what_fits_is_accepted():
    Categorical().check_outputs((2, 4), LABELS)
    Gaussian().check_outputs((2, 2), TARGETS)
    Gaussian().check_outputs((2, 1), TARGETS[:, 0])
    assert check_output(jnp.zeros((4, 2)), 4) == (4, 2)
