"""Every likelihood with every method of inference, against NumPy and SciPy."""

import json
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import onebasin as ob
from onebasin.diagnosis.connectivity import pair_barriers
from onebasin.evaluation import comparison
from onebasin.evaluation.mixture_predictive import MixturePredictive
from onebasin.paths import geodesic, line

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
SIGNAL = np.sin(2 * X[:, 0]) + X[:, 1]
NOISE_STD = 0.4
SAMPLES = 5

TARGETS: dict[str, Any] = {
    "categorical": np.digitize(SIGNAL, [-0.5, 0.5]),
    "bernoulli": (SIGNAL > 0).astype(np.int64)[:, None],
    "gaussian": (SIGNAL + NOISE_STD * RNG.normal(size=40)).astype(np.float32),
    "learned-noise": (SIGNAL + NOISE_STD * RNG.normal(size=40)).astype(np.float32)[:, None],
    "heteroscedastic": np.stack([SIGNAL, -SIGNAL], axis=1).astype(np.float32),
    "poisson": RNG.poisson(np.exp(SIGNAL)),
}
OUTPUTS = {"categorical": 3, "bernoulli": 1, "gaussian": 1, "learned-noise": 1}
OUTPUTS |= {"heteroscedastic": 4, "poisson": 1}
CHAINS: Any = {"draws": 5, "warmup": 5, "chains": 2, "step_size": 1e-2}
METHODS = {
    "vi": ob.VI(epochs=3, batch_size=40, initial_std=0.1),
    "map": ob.MAP(epochs=3, batch_size=40),
    "ensemble": ob.Ensemble(epochs=3, batch_size=40, members=3),
    "hmc": ob.HMC(leapfrog_steps=3, **CHAINS),
    "nuts": ob.NUTS(max_doublings=2, **CHAINS),
}
KINDS = ("categorical", "bernoulli", "gaussian", "poisson")
CASES = [(kind, method) for kind in KINDS for method in METHODS]
CASES += [(kind, m) for kind in ("learned-noise", "heteroscedastic") for m in ("vi", "hmc")]
table = pytest.mark.parametrize(("kind", "method"), CASES)


def network(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


@cache
def problem_of(kind: str) -> ob.Problem:
    def init(key):
        first, second = jax.random.split(key)
        w2 = jax.random.normal(second, (8, OUTPUTS[kind])) / 2
        return {"w1": jax.random.normal(first, (2, 8)), "b1": jnp.zeros(8), "w2": w2}

    likelihood: Any = ob.likelihoods.Gaussian(NOISE_STD) if kind == "gaussian" else kind
    return ob.Problem(network, init, (X, TARGETS[kind]), likelihood)


@cache
def posterior_of(kind: str, method: str) -> Any:
    return ob.fit(problem_of(kind), METHODS[method], key=KEY, progress="silent").posterior


@cache
def symmetry_of(kind: str) -> ob.Symmetry:
    return ob.find_symmetry(problem_of(kind))


def draws_of(q: Any) -> list[Any]:
    """The draws that a predictive of at most SAMPLES draws uses."""
    if isinstance(q, ob.Samples):
        kept = q if q.num_draws <= SAMPLES else ob.Samples(q.sample(SAMPLES, key=KEY))
        return [kept.draw(i) for i in range(kept.num_draws)]
    return [q.sample(key=jax.random.fold_in(KEY, s)) for s in range(SAMPLES)]


def whole(q: Any) -> Any:
    """Samples short enough to be used whole."""
    return q.take(np.arange(SAMPLES)) if isinstance(q, ob.Samples) and q.num_draws > SAMPLES else q


def by_numpy(kind: str, params: Any) -> tuple[np.ndarray, np.ndarray]:
    """log p(y) [n] and the prediction [n, ...] of one network, with NumPy and SciPy alone."""
    p = {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}
    f = np.tanh(X.astype(np.float64) @ p["w1"] + p["b1"]) @ p["w2"]
    y = TARGETS[kind]
    if kind == "categorical":
        log_p = special.log_softmax(f, axis=-1)
        return log_p[np.arange(40), y], np.exp(log_p)
    if kind == "bernoulli":
        one = special.expit(f[:, 0])
        return stats.bernoulli.logpmf(y[:, 0], one), np.stack([1 - one, one], axis=1)
    if kind == "poisson":
        return stats.poisson.logpmf(y, np.exp(f[:, 0])), np.exp(f[:, 0])
    if kind == "heteroscedastic":
        return stats.norm.logpdf(y, f[:, :2], np.exp(f[:, 2:])).sum(1), f[:, :2]
    std = NOISE_STD if kind == "gaussian" else np.exp(p["log_noise"])
    mean = f.reshape(y.shape)
    return stats.norm.logpdf(y, mean, std).reshape(40), mean


def mixture_of(kind: str, draws: list[Any]) -> tuple[float, np.ndarray, float]:
    """NLL, prediction, and accuracy or RMSE of an average over draws."""
    logs, predictions = map(np.stack, zip(*(by_numpy(kind, d) for d in draws), strict=True))
    nll = -(special.logsumexp(logs, axis=0) - np.log(len(draws))).mean()
    mean, y = predictions.mean(0), TARGETS[kind]
    if kind in ("categorical", "bernoulli"):
        return nll, mean, (mean.argmax(1) == y.reshape(-1)).mean()
    return nll, mean, np.sqrt(((mean - y) ** 2).mean())


@table
def test_predict(kind, method):
    q, problem = whole(posterior_of(kind, method)), problem_of(kind)
    nll, mean, score = mixture_of(kind, draws_of(q))
    options: Any = {"key": KEY, "num_samples": SAMPLES}
    found = ob.predict(q, problem, X, **options)
    assert found.shape == mean.shape
    # Float32 networks and sums of a few terms.
    np.testing.assert_allclose(found, mean, rtol=2e-4, atol=2e-5)
    p = ob.predictive(q, problem, X, **options)
    assert ob.nll(p, TARGETS[kind]) == pytest.approx(nll, rel=1e-4)
    measured = comparison.predictive_measures(p, TARGETS[kind])
    name = "accuracy" if kind in ("categorical", "bernoulli") else "rmse"
    assert measured[name] == pytest.approx(score, rel=1e-4)
    assert all(np.isfinite(value) for value in measured.values())
    if isinstance(p, MixturePredictive):
        assert 0 < ob.crps(p, TARGETS[kind]) < 10
        low, high = p.interval(0.9)
        assert low.shape == TARGETS[kind].shape
        assert (low <= high).all()


@table
def test_profile(kind, method):
    q, problem = whole(posterior_of(kind, method)), problem_of(kind)
    path = geodesic(q, q)
    data = X, TARGETS[kind]
    found = ob.profile(path, problem, data, key=KEY, points=3, num_samples=SAMPLES)
    nll, _, score = mixture_of(kind, draws_of(q))
    np.testing.assert_allclose(found.nll, nll, rtol=1e-4)
    np.testing.assert_allclose(found.score, score, rtol=1e-4)
    assert found.score_name == ("accuracy" if problem.log_likelihood.classifies else "rmse")
    assert found.barrier == pytest.approx(0, abs=1e-5)
    summary = found.summary()
    # One number of draws has no error, and two no bias of selection; the rest is finite.
    kept = {k: v for k, v in summary.items() if "stderr" not in k and k != "selection_bias"}
    json.dumps(kept, allow_nan=False)


@table
def test_compact(kind, method):
    q, problem = whole(posterior_of(kind, method)), problem_of(kind)
    found = ob.compact([q, q], symmetry=symmetry_of(kind), progress="silent")
    data = X, TARGETS[kind]
    change = found.effect(problem, data, key=KEY, num_samples=2 * SAMPLES, progress="silent")
    if isinstance(q, ob.Samples):
        nll, _, score = mixture_of(kind, draws_of(q))
        assert next(iter(change.before.values())) == pytest.approx(score, rel=1e-4)
        before = by_numpy(kind, found.posterior.mean)[0]
        if method == "map":  # one network: nothing is random but for the floor of the variance
            after = [found.posterior.sample(key=jax.random.fold_in(KEY, s)) for s in range(10)]
            rise = mixture_of(kind, after)[0] - nll
            assert change.nll_rise == pytest.approx(rise, abs=1e-3)
        assert np.isfinite(before).all()
    assert set(change.after) == set(change.before)
    json.dumps(change.summary(), allow_nan=False)
    assert "→" in str(change)


@table
def test_diagnose(kind, method):
    q, problem = posterior_of(kind, method), problem_of(kind)
    given: Any = {"symmetry": symmetry_of(kind), "key": KEY, "progress": "silent"}
    if method not in ("hmc", "nuts"):  # one sentence says what is diagnosed
        refused = "MeanField has no chains" if method == "vi" else "give at least two chains"
        with pytest.raises((TypeError, ValueError), match=refused):
            ob.diagnose(q, **given)
        return
    data = X, TARGETS[kind]
    found = ob.diagnose(q, network=problem, data=data, pairs=2, points=3, **given)
    assert found.conclusion.startswith("conclusion: ")
    assert str(found).endswith(found.conclusion)
    assert found.within is not None
    i, j = found.within.pairs[0]
    middle = jax.tree.map(lambda a, b: (a + b) / 2, q.draw(i), q.draw(j))
    ends = [-by_numpy(kind, q.draw(k))[0].mean() for k in (i, j)]
    excess = -by_numpy(kind, middle)[0].mean() - np.mean(ends)
    assert found.within.excess[0] == pytest.approx(excess, rel=1e-3, abs=1e-5)


@table
def test_compare(kind, method):
    """The table against a reference, and the distances that `compare` prints."""
    problem, data = problem_of(kind), (X, TARGETS[kind])
    q, reference = whole(posterior_of(kind, method)), whole(posterior_of(kind, "hmc"))
    options: Any = {"key": KEY, "num_samples": SAMPLES, "resamples": 3, "progress": "silent"}
    found = ob.reference_table({"q": q}, reference, problem, data, **options)
    nll, _, score = mixture_of(kind, draws_of(reference))
    row = found["reference"]
    assert row.nll.value == pytest.approx(nll, rel=1e-4)
    assert row.measures[row.score_name].value == pytest.approx(score, rel=1e-4)
    pair: Any = [reference, q]
    p, other = ob.predictive(pair, problem, X, key=KEY, num_samples=SAMPLES)
    distances = comparison.predictive_distances(p, other)
    if isinstance(q, ob.Samples):
        for name, value in distances.items():
            if name != "mean_shift":  # the table takes the std of the reference, from the same side
                assert found["q"].measures[name].value == pytest.approx(value, abs=2e-5)
    json.dumps(found.summary(), allow_nan=False)


@table
def test_report(kind, method):
    """Everything that is printed or written to JSON names what was measured, without NaN."""
    q, problem = whole(posterior_of(kind, method)), problem_of(kind)
    data = X, TARGETS[kind]
    name = "accuracy" if problem.log_likelihood.classifies else "rmse"
    params = draws_of(q)[0]
    path = line(params, jax.tree.map(lambda leaf: leaf + 0.1, params))
    profile = ob.profile(path, problem, data, key=KEY, points=3)
    curve = ob.pruning_curve(
        ob.MeanField(*q.moments()) if method == "vi" else q, problem, data, keeps=(1.0,)
    )
    plane = ob.random_plane(params, key=KEY)
    found = ob.landscape(plane, problem, data, points=2, log_prior=problem.log_prior)
    for summary in (profile.summary(), curve.summary(), found.summary()):
        assert name in summary
        assert np.isfinite(np.asarray(summary[name], float)).all()
    json.dumps([curve.summary(), found.summary()], allow_nan=False)
    mean = q.moments()[0]
    log_p = by_numpy(kind, mean)[0]
    assert curve.nll[0] == pytest.approx(-log_p.mean(), rel=1e-4)
    corner = plane.at(found.a[0], found.b[0])
    assert found.nll[0, 0] == pytest.approx(-by_numpy(kind, corner)[0].mean(), rel=1e-4)


@pytest.mark.parametrize("kind", [*KINDS, "learned-noise", "heteroscedastic"])
def test_calibrate(kind):
    """The noise is scaled to where the predictives differ least, of all scales that were tried."""
    problem, draws = problem_of(kind), posterior_of(kind, "hmc")
    mean, std = draws.moments()
    blurred = ob.MeanField(mean, jax.tree.map(lambda s: 20 * s + 0.3, std))
    found = ob.calibrate(blurred, to=draws, network=problem, x=X, key=KEY, num_samples=16)
    assert found.diagonal < 1
    assert found.divergence == min(found.tried.values()) < found.tried[1.0, 1.0]
    with pytest.raises(TypeError, match="takes draws, as Samples"):
        ob.calibrate(blurred, to=blurred, network=problem, x=X, key=KEY)  # pyright: ignore[reportArgumentType]


def test_calibrate_finds_the_planted_scale():
    """Draws of N(m, s²), and a Gaussian with twice the std: a quarter of the variance is right."""
    linear = lambda p, x: x @ p["w"]
    mean, std = jnp.array([[1.0], [-1.0]]), jnp.full((2, 1), 0.5)
    draws = ob.Samples(ob.MeanField({"w": mean}, {"w": std}).sample(200, key=KEY))
    wide = ob.MeanField({"w": mean}, {"w": 2 * std})
    given: Any = {"network": linear, "x": X, "key": KEY, "num_samples": 200}
    found = ob.calibrate(wide, to=draws, likelihood=ob.likelihoods.Gaussian(0.3), **given)
    assert found.diagonal == 0.25
    assert abs(found.divergence) < 0.05  # of 200 draws on both sides


def test_the_pairs_of_a_problem_need_no_likelihood():
    """As `diagnose` measures them: the likelihood is the problem's."""
    q, data = posterior_of("gaussian", "hmc"), (X, TARGETS["gaussian"])
    one = pair_barriers(q, np.array([[0, 1]]), problem_of("gaussian"), data, points=3)
    two = pair_barriers(
        q,
        np.array([[0, 1]]),
        network,
        data,
        points=3,
        likelihood=ob.likelihoods.Gaussian(NOISE_STD),
    )
    assert one.excess == pytest.approx(two.excess)
