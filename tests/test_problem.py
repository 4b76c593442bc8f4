"""The log posterior and its scaling against SciPy; invalid problems."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from onebasin.likelihoods import Gaussian
from onebasin.networks import Network
from onebasin.problem import Batch, Problem

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4))
LABELS = RNG.integers(0, 3, size=12)
TARGETS = RNG.normal(size=12)
PARAMS = {"w": RNG.normal(size=(4, 3)), "b": RNG.normal(size=3)}


def linear(params, x):
    return x @ params["w"] + params["b"]


def init(key):
    return {"w": jax.random.normal(key, (4, 3)), "b": jnp.zeros(3)}


def classifier(**options):
    return Problem(apply=linear, init=init, data=(X, LABELS), **options)


def regression(noise_std=1.0, **options):
    return Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda key: {"w": jax.random.normal(key, (4,))},
        data=(X, TARGETS),
        likelihood=Gaussian(noise_std),
        **options,
    )


def log_softmax(z):
    return (
        z
        - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True))
        - z.max(1, keepdims=True)
    )


@pytest.mark.fast
@pytest.mark.usefixtures("x64")
def test_categorical_log_posterior_is_the_sum_of_likelihood_and_prior():
    problem = classifier(prior_variance=0.3, temperature=0.5, augmentation=4.0)
    value, aux = problem.log_posterior(PARAMS, (X, LABELS))
    log_p = log_softmax(X @ PARAMS["w"] + PARAMS["b"])[np.arange(12), LABELS]
    prior = sum(stats.norm.logpdf(leaf, 0, np.sqrt(0.3)).sum() for leaf in PARAMS.values())
    # Temperature ½ and an augmentation of 4 weigh the likelihood eightfold.
    np.testing.assert_allclose(value, 8 * log_p.sum() + prior, rtol=1e-12)
    np.testing.assert_allclose(aux["nll"], -log_p.mean(), rtol=1e-12)
    hits = (X @ PARAMS["w"] + PARAMS["b"]).argmax(1) == LABELS
    np.testing.assert_allclose(aux["accuracy"], hits.mean(), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_gaussian_log_posterior_has_the_noise_of_the_likelihood():
    problem = regression(noise_std=0.7, prior_variance=2.0)
    w = PARAMS["w"][:, 0]
    value, aux = problem.log_posterior({"w": w}, (X, TARGETS))
    expected = stats.norm.logpdf(TARGETS, X @ w, 0.7).sum()
    expected += stats.norm.logpdf(w, 0, np.sqrt(2.0)).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(aux["squared_error"], ((X @ w - TARGETS) ** 2).mean(), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_batches_are_scaled_up_so_that_their_mean_is_the_whole():
    problem = classifier(prior_variance=0.3)
    whole, _ = problem.log_posterior(PARAMS, (X, LABELS))
    parts = [
        problem.log_posterior(PARAMS, (X[i : i + 3], LABELS[i : i + 3]))[0] for i in (0, 3, 6, 9)
    ]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_padding_has_no_weight():
    problem = classifier()
    weight = jnp.array([1.0, 1.0, 0.0])
    x, y = jnp.asarray(X), jnp.asarray(LABELS)
    padded, aux = problem.summed_log_likelihood(PARAMS, Batch(x[:3], y[:3], weight))
    plain, plain_aux = problem.summed_log_likelihood(PARAMS, Batch(x[:2], y[:2]))
    np.testing.assert_allclose(padded, plain, rtol=1e-12)
    np.testing.assert_allclose(aux["nll"], plain_aux["nll"], rtol=1e-12)


@pytest.mark.parametrize("given", [{"w": 0.1, "b": 2.0}, {"b": 2.0, "w": np.float64(0.1)}])
@pytest.mark.usefixtures("x64")
def test_one_prior_variance_per_leaf(given):
    problem = classifier(prior_variance=given)
    expected = stats.norm.logpdf(PARAMS["w"], 0, np.sqrt(0.1)).sum()
    expected += stats.norm.logpdf(PARAMS["b"], 0, np.sqrt(2.0)).sum()
    np.testing.assert_allclose(problem.log_prior(PARAMS), expected, rtol=1e-12)


def test_prior_variances_by_key_path():
    net = nn.Dense(3)
    problem = Problem.from_network(net, (X, LABELS), prior_variance={"kernel": 0.5, "bias": 1.5})
    assert problem.prior_variances == {"kernel": 0.5, "bias": 1.5}


def test_a_flax_module_becomes_a_problem():
    net = nn.Dense(3)
    problem = Problem.from_network(net, (X.astype(np.float32), LABELS))
    params = problem.init(jax.random.key(0))
    assert set(params) == {"kernel", "bias"}
    expected = np.asarray(net.apply({"params": params}, X))
    np.testing.assert_allclose(problem.apply(params, X), expected, rtol=1e-6)


class WithStatistics(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x))


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("counts", "calls", lambda: jnp.zeros(()))
        return nn.Dense(3)(x)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: classifier(likelihood="probit"), "no likelihood 'probit'"),
        (lambda: classifier(temperature=0.0), "temperature must be a positive number"),
        (lambda: classifier(prior_variance=-1.0), "prior_variance of 'b' must be a positive"),
        (lambda: classifier(prior_variance={"w": 1.0}), "leaf 'b' is missing"),
        (lambda: Problem(linear, init, (X[:0], LABELS[:0])), "no examples"),
        (lambda: Problem(linear, init, (X, LABELS[:5])), r"x has shape \(12, 4\) and y \(5,\)"),
        (lambda: Problem(linear, init, (X, LABELS + 1)), "labels range from 1 to 3"),
        (lambda: Problem(linear, init, (X, TARGETS)), "integer label"),
        (lambda: Problem(linear, init, (X * np.nan, LABELS)), "NaN or infinity"),
        (
            lambda: Problem(linear, init, X),  # pyright: ignore[reportArgumentType]
            "give a split with .x and .y",
        ),
        (lambda: Problem(lambda p, x: linear(p, x).sum(), init, (X, LABELS)), "batch first"),
        (
            lambda: Problem(linear, init, (X, TARGETS), likelihood="gaussian"),
            "one output per target",
        ),
        (
            lambda: Problem.from_network(WithStatistics(), (X, LABELS)),
            "WithStatistics does not update its running statistics",
        ),
        (lambda: Problem.from_network(Counting(), (X, LABELS)), "state besides its params .counts"),
        (
            lambda: Problem.from_network(object(), (X, LABELS)),  # pyright: ignore[reportArgumentType]
            "object is not a Flax Linen module",
        ),
    ],
)
def test_what_a_problem_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.fast
def test_a_network_whose_state_cannot_be_updated_is_refused():
    net = Network(lambda p, x, state: linear(p, x), PARAMS, {"mean": np.zeros(3)})
    with pytest.raises(ValueError, match="has both state and running"):
        Problem.from_network(net, (X, LABELS))


@pytest.mark.fast
def test_a_network_is_fitted_from_its_own_params():
    problem = Problem.from_network(Network(linear, PARAMS), (X, LABELS))
    assert problem.apply is linear
    assert problem.init(jax.random.key(3)) is PARAMS


def test_the_fingerprint_tells_data_and_settings_apart():
    same = classifier(prior_variance=0.3).fingerprint()
    assert classifier(prior_variance=0.3).fingerprint() == same
    assert classifier(prior_variance=0.4).fingerprint() != same
    other = Problem(linear, init, (X + 1, LABELS), prior_variance=0.3).fingerprint()
    assert other != same
