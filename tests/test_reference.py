"""The table against a reference: exact where it is known, errors against repetition."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.evaluation import measures
from onebasin.evaluation.grouped_predictive import GroupedPredictive, grouped_predictive
from onebasin.evaluation.predicting import predictive
from onebasin.evaluation.reference import CEILING, MEASURES, compare, reference_table
from onebasin.posterior import LowRank, MeanField, Mixture, Samples

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = RNG.integers(0, 4, 40)


def apply(params, x):
    return x @ params["w"] + params["b"]


def draws(count, seed=0, chains=2, scale=1.0):
    rng = np.random.default_rng(seed)
    tree = {
        "w": jnp.asarray(scale * rng.normal(size=(count, 3, 4)), jnp.float32),
        "b": jnp.asarray(scale * rng.normal(size=(count, 4)), jnp.float32),
    }
    return Samples(tree, jnp.asarray(np.arange(count) % chains))


def gaussian(seed=1):
    q = draws(30, seed)
    return MeanField(*q.moments())


def test_a_posterior_against_itself_and_against_others():
    hmc = draws(24)
    q = gaussian()
    low = LowRank(q.mean, q.std, jax.tree.map(lambda m: 0.1 * m[None], q.mean))
    both = Mixture((q, low), jnp.array([0.25, 0.75]))
    found = reference_table(
        {"same": hmc, "vi": q, "low": low, "mixture": both},
        hmc,
        apply,
        (X, Y),
        key=KEY,
        num_samples=16,
    )
    for name in ("reference", "same"):
        row = found[name]
        assert (row.agreement.value, row.agreement.stderr) == (1.0, 0.0)
        assert (row.total_variation.value, row.total_variation.stderr) == (0.0, 0.0)
        assert row.nll.stderr > 0
        assert row.mean_accuracy is None
    # The reference is used whole: its numbers are those of the plain predictive.
    plain = predictive(hmc, apply, X, key=KEY, num_samples=24)
    assert found["reference"].nll.value == pytest.approx(measures.nll(plain, Y), rel=1e-5)
    assert found["same"].accuracy.value == measures.accuracy(plain, Y)
    assert found["same"].calibration_error.value == pytest.approx(
        measures.calibration_error(plain, Y), abs=1e-6
    )
    hits = np.mean(np.asarray(apply(q.mean, X)).argmax(-1) == Y)
    assert found["vi"].mean_accuracy == pytest.approx(hits)
    assert found["mixture"].mean_accuracy is None
    assert found["mixture"].draws == 16
    assert 0 < found["low"].agreement.value <= 1
    text = found.table().splitlines()
    assert len(text) == 7
    assert "–" in text[1]
    assert "±" in text[4]
    rows = json.loads(json.dumps(found.summary()))["rows"]
    assert rows[3]["total_variation"] == found["vi"].total_variation.value


def test_the_ceiling_is_half_the_chains_against_the_other_half():
    hmc = draws(24, chains=4)
    found = reference_table({}, hmc, apply, (X, Y), key=KEY)[CEILING]
    chain = np.asarray(hmc.chain)
    halves = [
        predictive(
            Samples(jax.tree.map(lambda leaf, own=own: leaf[own], hmc.draws)),
            apply,
            X,
            key=KEY,
            num_samples=12,
        )
        for own in (chain < 2, chain >= 2)
    ]
    assert found.draws == 12
    assert found.agreement.value == measures.agreement(*halves)
    assert found.total_variation.value == pytest.approx(measures.total_variation(*halves), rel=1e-5)
    names = [row.name for row in reference_table({}, gaussian(), apply, (X, Y), key=KEY).rows]
    assert names == ["reference"]


def test_one_network_has_no_error_and_names_are_checked():
    point = draws(1, chains=1)
    found = reference_table({"map": point}, point, apply, (X, Y), key=KEY)["map"]
    assert all(getattr(found, name).stderr == 0 for name in MEASURES)
    with pytest.raises(ValueError, match="rename the posterior"):
        reference_table({"reference": point}, point, apply, (X, Y), key=KEY)
    with pytest.raises(ValueError, match="at least 2 samples"):
        reference_table({}, point, apply, (X, Y), key=KEY, num_samples=1)


@pytest.mark.fast
def test_groups_are_stretches_of_chains():
    q = draws(20, chains=2)
    found = grouped_predictive(q, apply, X, key=KEY, num_samples=20, groups=10)
    assert found.chain.tolist() == [0] * 5 + [1] * 5
    np.testing.assert_allclose(found.share, 0.1)
    # The first group holds the first two draws of chain 0, which are draws 0 and 2.
    logits = np.stack([X @ q.draws["w"][i] + q.draws["b"][i] for i in (0, 2)])
    expected = np.asarray(jax.nn.softmax(logits)).mean(0)
    np.testing.assert_allclose(np.exp(found.log_probs[0]), expected, rtol=1e-4)
    thinned = grouped_predictive(q, apply, X, key=KEY, num_samples=4, groups=10)
    assert (thinned.draws, thinned.chain.tolist()) == (4, [0, 0, 1, 1])


def some_groups(rng, groups, examples, correlated=0.0):
    """Predictives that scatter around one with a margin between classes, and that one."""
    logits = np.linspace(-1, 1, examples)[:, None] * np.array([1.0, -1.0])
    noise = rng.normal(size=(groups, 1, 2)) * correlated + rng.normal(size=(groups, examples, 2))
    noisy = logits + noise
    log_p = noisy - np.logaddexp.reduce(noisy, axis=-1, keepdims=True)
    zeros = np.zeros(groups, int)
    return GroupedPredictive(
        log_p.astype(np.float32), np.full(groups, 1 / groups), zeros, zeros, groups
    )


def test_standard_errors_are_the_spread_over_repetitions():
    # Noise is shared by the examples, so an error over examples would be far too small.
    y = RNG.integers(0, 2, 200)
    many = some_groups(np.random.default_rng(99), 5000, 200, 1.0).log_probs
    truth = np.log(np.exp(many).mean(0, keepdims=True))
    truth = GroupedPredictive(truth, np.ones(1), np.zeros(1, int), np.zeros(1, int), 5000)
    found = []
    for seed in range(60):
        own = some_groups(np.random.default_rng(seed), 24, 200, 1.0)
        found.append(compare(own, truth, y, 30, [seed]))
    for name in ("agreement", "total_variation", "nll", "accuracy"):
        values = np.array([f[name].value for f in found])
        errors = np.array([f[name].stderr for f in found])
        # 60 repetitions know a spread to 9 %; the bootstrap of a measure that is not smooth, or
        # near its edge as agreement is, errs by more, and on the large side.
        ratio = np.sqrt((errors**2).mean()) / values.std(ddof=1)
        assert 0.7 < ratio < 1.5, (name, ratio)
    nll = np.array([f["nll"].value for f in found])
    errors = np.array([f["nll"].stderr for f in found])
    # Against what many draws give, plus the bias that 24 draws have: 95 % within two errors.
    covered = np.abs(nll - nll.mean()) < 2 * errors
    assert covered.mean() > 0.85


@pytest.mark.fast
def test_closed_form_of_the_error_of_a_mean():
    # One example whose label has probability p_g in group g: to first order the error of
    # −log p̄ is that of p̄ over p̄.
    p = np.random.default_rng(0).uniform(0.4, 0.6, size=20)
    log_p = np.log(np.stack([p, 1 - p], -1))[:, None].astype(np.float32)
    zeros = np.zeros(20, int)
    own = GroupedPredictive(log_p, np.full(20, 0.05), zeros, zeros, 20)
    found = compare(own, own, np.array([0]), 4000, [0])["nll"]
    assert found.stderr == pytest.approx(p.std(ddof=1) / np.sqrt(20) / p.mean(), rel=0.05)
    assert found.value == pytest.approx(-np.log(p.mean()), rel=1e-6)


@pytest.mark.fast
def test_a_label_that_one_group_alone_believes_in():
    # Without that group its probability is e^-400, far below what a float holds.
    log_p = np.full((4, 1, 2), -400.0, np.float32)
    log_p[:, :, 1] = 0.0
    log_p[0] = np.log(0.5)
    zeros = np.zeros(4, int)
    own = GroupedPredictive(log_p, np.full(4, 0.25), zeros, zeros, 4)
    found = compare(own, own, np.array([0]), 50, [0])["nll"]
    assert found.value == pytest.approx(-np.log(0.125), rel=1e-6)
    assert 50 < found.stderr < 400
