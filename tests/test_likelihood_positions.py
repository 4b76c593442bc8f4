"""Predictions at several positions of an example: against one example per position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob
from onebasin.compaction.effect import effect
from onebasin.evaluation.measures import brier
from onebasin.inference.curvature import gauss_newton_diagonal, gauss_newton_times
from onebasin.inference.full_batch import chunked, log_likelihood
from onebasin.likelihoods import Categorical
from onebasin.problem import Batch

N, POSITIONS, CLASSES = 7, 3, 4


def at_positions(params, x):
    """[n, positions, inputs] → [n, positions, classes], each position by itself."""
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, POSITIONS, 2)).astype(np.float32)
    y = rng.integers(0, CLASSES, (N, POSITIONS))
    draws = {
        "w1": rng.normal(size=(5, 2, 6)).astype(np.float32),
        "w2": rng.normal(size=(5, 6, CLASSES)).astype(np.float32),
    }
    flat = (x.reshape(-1, 2), y.reshape(-1))
    return ob.Samples(draws), (x, y), flat


def test_likelihood_is_that_of_every_position(case):
    q, (x, y), _ = case
    logits = np.asarray(at_positions(q.draw(0), x), np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    expected = np.take_along_axis(log_p, y[..., None], -1)[..., 0]
    found = Categorical()(jnp.asarray(logits, jnp.float32), jnp.asarray(y))
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-5)
    hits = Categorical().score(jnp.asarray(logits), jnp.asarray(y))
    np.testing.assert_array_equal(hits, (logits.argmax(-1) == y).reshape(-1))


@pytest.mark.parametrize("batch_size", [None, 3])
def test_profile_and_predictive_equal_those_of_single_positions(case, batch_size):
    q, data, flat = case
    path = ob.geodesic(q.take(np.array([0, 1])), q.take(np.array([2, 3])))
    given = {"key": jax.random.key(0), "batch_size": batch_size, "progress": "silent"}
    # One function for both, so that its last axes alone differ.
    found, expected = (
        ob.profile(path, at_positions, each, points=4, **given) for each in (data, flat)
    )
    for name in ("nll", "nll_stderr", "excess_stderr", "accuracy", "mean_nll", "nll_bias"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5)
    assert found.num_examples == N
    p, single = (ob.predictive(q, at_positions, each[0], **given) for each in (data, flat))
    np.testing.assert_allclose(p.log_probs, single.log_probs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(p.expected_entropy, single.expected_entropy, rtol=1e-5)
    for measure in (ob.nll, ob.accuracy, ob.calibration_error, brier):
        assert measure(p, data[1]) == pytest.approx(measure(single, flat[1]), rel=1e-5)
    assert repr(p) == "Predictive(7 examples of 3 positions, 4 classes, 5 samples)"
    probs = ob.predict(q, at_positions, data[0], **given)
    assert probs.shape == (N, POSITIONS, CLASSES)
    np.testing.assert_allclose(probs.reshape(-1, CLASSES), single.probs, rtol=1e-5)
    assert ob.nll(probs, data[1]) == pytest.approx(ob.nll(single, flat[1]), rel=1e-5)


def test_landscape_effect_and_reference_table_equal_those_of_single_positions(case):
    q, data, flat = case
    plane = ob.plane_through([q.draw(i) for i in range(3)])
    table, changes, planes = [], [], []
    for each in (data, flat):
        planes.append(ob.landscape(plane, at_positions, each, points=2, progress="silent"))
        given = {"key": jax.random.key(1), "progress": "silent"}
        changes.append(effect(q.take(np.array([0, 1])), q, at_positions, each, **given))
        table.append(
            ob.reference_table({"some": q.take(np.array([0, 1]))}, q, at_positions, each, **given)
        )
    np.testing.assert_allclose(planes[0].nll, planes[1].nll, rtol=1e-5)
    np.testing.assert_allclose(planes[0].accuracy, planes[1].accuracy)
    assert changes[0].nll_rise == pytest.approx(changes[1].nll_rise, rel=1e-4)
    assert changes[0].after == pytest.approx(changes[1].after, rel=1e-5)
    for name in ("nll", "accuracy", "agreement"):
        first, second = (getattr(one["some"], name).value for one in table)
        assert first == pytest.approx(second, rel=1e-5)


def problems(case):
    q, data, flat = case
    init = lambda key: q.draw(0)
    return [ob.Problem(at_positions, init, each, prior_variance=0.5) for each in (data, flat)]


def test_log_posterior_sums_and_reports_means_over_positions(case):
    whole, single = problems(case)
    params = whole.init(jax.random.key(0))
    found, aux = whole.log_posterior(params, (whole.x, whole.y))
    expected, aux_single = single.log_posterior(params, (single.x, single.y))
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    assert float(aux["nll"]) == pytest.approx(float(aux_single["nll"]), rel=1e-6)
    assert float(aux["accuracy"]) == float(aux_single["accuracy"])
    # A weight of an example is that of all its positions.
    weight = jnp.array([1.0] * 5 + [0.0] * 2)
    x, y = jnp.asarray(whole.x), jnp.asarray(whole.y)
    padded, aux = whole.summed_log_likelihood(params, Batch(x, y, weight))
    few, aux_few = whole.summed_log_likelihood(params, Batch(x[:5], y[:5]))
    assert float(padded) == pytest.approx(float(few), rel=1e-6)
    assert float(aux["nll"]) == pytest.approx(float(aux_few["nll"]), rel=1e-6)


def test_curvature_equals_that_of_single_positions(case):
    whole, single = problems(case)
    params = whole.init(jax.random.key(0))
    vector = jax.tree.map(jnp.ones_like, params)
    times = lambda problem, at, batch: gauss_newton_times(problem, at, batch, vector)
    for of in (gauss_newton_diagonal, times):
        found, expected = (
            of(p, params, Batch(jnp.asarray(p.x), jnp.asarray(p.y))) for p in (whole, single)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4), found, expected)


@pytest.mark.parametrize("method", [ob.MAP(epochs=1, batch_size=4), ob.VI(epochs=1, batch_size=4)])
def test_fits_take_targets_at_positions(case, method):
    whole, _ = problems(case)
    found = ob.fit(whole, method, key=jax.random.key(0), progress="silent")
    assert np.isfinite(found.history[-1]["nll"])


def test_padded_chunks_of_integer_inputs_have_the_likelihood_of_all_examples():
    """The last chunk is padded with weight 0, whose type cannot be that of integer inputs."""
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 3, (5, 4)), rng.integers(0, 3, (5, 4))
    params = {"table": rng.normal(size=(3, 3)).astype(np.float32)}
    apply = lambda params, x: jnp.asarray(params["table"])[x]
    problem = ob.Problem(apply, lambda key: params, (x, y))
    logits = params["table"][x].astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(log_p, y[..., None], -1).sum()
    found = log_likelihood(problem, chunked(problem, 2))(params)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_arviz_has_every_position(case):
    pytest.importorskip("arviz")
    q, *_ = case
    whole, _ = problems(case)
    found = ob.to_arviz(q, problem=whole, key=jax.random.key(0))
    assert found["log_likelihood"]["y"].shape == (1, 5, N, POSITIONS)
    assert found["posterior_predictive"]["y"].shape == (1, 5, N, POSITIONS)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_arviz_takes_one_output_without_an_axis(likelihood):
    pytest.importorskip("arviz")
    x, y = np.ones((4, 2), np.float32), np.array([0, 1, 1, 0])
    q = ob.Samples({"w": np.ones((3, 2), np.float32)})
    problem = ob.Problem(
        lambda p, x: x @ p["w"], lambda key: q.draw(0), (x, y), likelihood=likelihood
    )
    found = ob.to_arviz(q, problem=problem, key=jax.random.key(0))
    assert found["log_likelihood"]["y"].shape == (1, 3, 4)


@pytest.mark.parametrize(
    ("outputs", "labels", "says"),
    [
        ((N, CLASSES), (N, POSITIONS), "one integer label per example"),
        ((N, CLASSES), (N, 1), "one integer label per example"),
        ((N, POSITIONS, CLASSES), (N,), "for each of its 3 positions"),
        ((N, POSITIONS, CLASSES), (N, POSITIONS + 1), "for each of its 3 positions"),
        ((N, POSITIONS, 2, CLASSES), (N, POSITIONS), r"logits must have shape"),
    ],
)
def test_labels_of_other_shapes_are_refused(outputs, labels, says):
    y = Categorical().targets(np.zeros(labels, int))
    with pytest.raises(ValueError, match=says):
        Categorical().check_outputs(outputs, y)
    if len(outputs) < 4:
        with pytest.raises(ValueError, match=says):
            ob.nll(np.full(outputs, 1 / CLASSES), y)
