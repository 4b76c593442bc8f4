"""The predictive against plain averages and closed forms, for every kind of posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.evaluation.predicting import Predictive, predict, predictive
from onebasin.posterior import LowRank, MeanField, Mixture, Samples

CLASSES = 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
KEY = jax.random.key(0)


def apply(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


def tree(seed, lead=(), scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (4, 6), "b1": (6,), "w2": (6, CLASSES)}
    return {
        k: jnp.asarray(scale * rng.normal(size=lead + s), jnp.float32) for k, s in shapes.items()
    }


def positive(seed):
    return jax.tree.map(lambda a: 0.3 * jnp.abs(a) + 0.01, tree(seed))


POSTERIORS = {
    "mean-field": MeanField(tree(0), positive(1)),
    "samples": Samples(tree(2, (7,))),
    "low-rank": LowRank(tree(0), positive(1), tree(3, (2,), 0.3)),
    "mixture": Mixture(
        (MeanField(tree(0), positive(1)), Samples(tree(2, (4,)))), jnp.asarray([0.25, 0.75])
    ),
}


def softmax(params):
    return np.asarray(jax.nn.softmax(apply(params, X)))


@pytest.mark.fast
def test_samples_used_whole_are_the_plain_average():
    q = POSTERIORS["samples"]
    expected = np.mean([softmax(q.draw(i)) for i in range(7)], axis=0)
    for count in (7, 128):
        # Float32 sums of seven terms.
        found = predict(q, apply, X, key=KEY, num_samples=count)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_gaussian_is_the_average_over_its_own_draws():
    q = POSTERIORS["mean-field"]
    draw = jax.jit(lambda s: q.sample(key=jax.random.fold_in(KEY, s)))
    draws = [draw(s) for s in range(9)]
    expected = np.mean([softmax(d) for d in draws], axis=0)
    found = predict(q, apply, X, key=KEY, num_samples=9)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_mixture_has_its_weights_exactly():
    """Two points of weight ¼ and ¾: the predictive has no picking noise whatever the key."""
    points = [Samples(tree(seed, (1,))) for seed in (4, 5)]
    q = Mixture(tuple(points), jnp.asarray([0.25, 0.75]))
    expected = 0.25 * softmax(points[0].draw(0)) + 0.75 * softmax(points[1].draw(0))
    for samples in (1, 2, 50):
        found = predict(q, apply, X, key=KEY, num_samples=samples)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", POSTERIORS)
def test_batches_and_repeats_change_nothing(kind):
    whole = predictive(POSTERIORS[kind], apply, X, key=KEY, num_samples=8)
    parts = predictive(POSTERIORS[kind], apply, X, key=KEY, num_samples=8, batch_size=7)
    # Only the order of float32 operations inside a batch may differ.
    np.testing.assert_allclose(whole.log_probs, parts.log_probs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.exp(whole.log_probs).sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(whole.expected_entropy, parts.expected_entropy, rtol=1e-4)


def test_small_blocks_of_data_change_nothing(monkeypatch):
    q = POSTERIORS["mean-field"]
    whole = predict(q, apply, X, key=KEY, num_samples=5)
    monkeypatch.setattr("onebasin.evaluation.streaming.BLOCK_BYTES", 11 * (12 * CLASSES + 16))
    np.testing.assert_allclose(predict(q, apply, X, key=KEY, num_samples=5), whole, rtol=1e-5)


def test_posteriors_share_their_noise_only_when_asked():
    q = POSTERIORS["mean-field"]
    first, second = predict([q, q], apply, X, key=KEY, num_samples=3)
    np.testing.assert_array_equal(first, second)
    first, second = predict([q, q], apply, X, key=KEY, num_samples=3, common_noise=False)
    assert np.abs(first - second).max() > 1e-3


def test_log_space_holds_where_probabilities_vanish():
    """Logits of ±200: every probability of the wrong class is 0 in float32, its log is not."""
    q = Samples({"w": jnp.asarray([[[200.0, -200.0]], [[150.0, -150.0]]])})
    found = predictive(q, lambda p, x: x @ p["w"], np.ones((2, 1), np.float32), key=KEY)
    assert isinstance(found, Predictive)
    # log of the average of exp(−400) and exp(−300)
    np.testing.assert_allclose(found.log_probs[:, 1], -300 - np.log(2), rtol=1e-6)
    assert np.isfinite(found.log_probs).all()


def test_running_statistics_reach_the_network():
    def with_state(params, x, state):
        return (x - state["mean"]) @ params["w"]

    draws = {"w": jnp.ones((2, 4, CLASSES)) * jnp.arange(CLASSES)}
    q = Samples(draws, state={"mean": jnp.stack([jnp.zeros(4), jnp.ones(4)])})
    found = predict(q, with_state, X, key=KEY)
    expected = np.mean([jax.nn.softmax((X - m) @ draws["w"][0]) for m in (0.0, 1.0)], axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_the_network_is_traced_a_fixed_number_of_times():
    traces = []

    def counted(params, x):
        traces.append(1)
        return apply(params, x)

    predict(POSTERIORS["mean-field"], counted, X, key=KEY, num_samples=3)
    few = len(traces)
    predict(POSTERIORS["mean-field"], counted, X, key=KEY, num_samples=30)
    # The second call shares the compiled program; only the look at shapes runs again.
    assert len(traces) - few <= 1


@pytest.mark.fast
@pytest.mark.parametrize("samples", [0, -1, 2.5])
def test_samples_must_be_a_positive_number(samples):
    with pytest.raises(ValueError, match="at least 1"):
        predict(POSTERIORS["mean-field"], apply, X, key=KEY, num_samples=samples)


def test_bad_input_is_named():
    q = POSTERIORS["mean-field"]
    with pytest.raises(ValueError, match="at least one example"):
        predict(q, apply, X[:0], key=KEY)
    with pytest.raises(ValueError, match=r"examples of shape \(9,\)"):
        predict(q, apply, np.ones((5, 9), np.float32), key=KEY)
    with pytest.raises(ValueError, match="cannot predict with a dict"):
        predict(tree(0), apply, X, key=KEY)  # pyright: ignore
    with pytest.raises(ValueError, match="batch first"):
        predict(q, lambda p, x: (x @ p["w1"]).sum(0), X, key=KEY)
    with pytest.raises(ValueError, match="classes"):
        predict(q, lambda p, x: (x @ p["w1"]).sum(1), X, key=KEY)
