"""Measures against their definitions, worked out by hand or by brute force."""

import numpy as np
import pytest

from onebasin.evaluation.measures import (
    accuracy,
    agreement,
    auroc,
    brier,
    calibration_error,
    entropy,
    mutual_information,
    nll,
    reliability,
    total_variation,
)
from onebasin.evaluation.predicting import Predictive

pytestmark = pytest.mark.fast

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5], [0.9, 0.05, 0.05]])
Q = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.2, 0.2, 0.6], [0.0, 1.0, 0.0]])
Y = np.array([0, 1, 0, 0])


def as_predictive(p, expected=None):
    return Predictive(np.log(p), np.zeros(len(p)) if expected is None else expected, 1)


def test_scores_against_labels_by_hand():
    np.testing.assert_allclose(nll(P, Y), -np.log([0.7, 0.6, 0.25, 0.9]).mean())
    assert accuracy(P, Y) == 0.75
    by_hand = [0.09 + 0.04 + 0.01, 0.01 + 0.16 + 0.09, 0.5625 + 0.0625 + 0.25, 0.01 + 0.005]
    np.testing.assert_allclose(brier(P, Y), np.mean(by_hand))


def test_a_predictive_counts_by_its_logs():
    tiny = Predictive(np.array([[0.0, -300.0]], np.float32), np.zeros(1), 1)
    assert nll(tiny, [1]) == 300.0
    np.testing.assert_allclose(nll(as_predictive(P), Y), nll(P, Y))
    np.testing.assert_allclose(np.asarray(as_predictive(P)), P)


def test_calibration_error_by_hand():
    """Confidences .7 .6 .5 .9 in four bins: (.25,.5] one miss, (.5,.75] two hits, (.75,1] a hit."""
    found = reliability(P, Y, bins=4)
    np.testing.assert_array_equal(found.count, [0, 1, 2, 1])
    np.testing.assert_allclose(found.confidence[1:], [0.5, 0.65, 0.9])
    np.testing.assert_allclose(found.accuracy[1:], [0.0, 1.0, 1.0])
    error = (1 * 0.5 + 2 * 0.35 + 1 * 0.1) / 4
    np.testing.assert_allclose(found.error, error)
    np.testing.assert_allclose(calibration_error(P, Y, bins=4), error)
    np.testing.assert_allclose(found.largest, 0.5)


def test_a_calibrated_predictive_has_little_error():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1.0] * 4, size=20_000)
    y = (p.cumsum(1) > rng.uniform(size=(20_000, 1))).argmax(1)
    # Fifteen bins with a standard error of about 0.012 each.
    assert calibration_error(p, y) < 0.015


def test_entropy_and_mutual_information():
    np.testing.assert_allclose(entropy(P[:1]), -(P[0] * np.log(P[0])).sum())
    np.testing.assert_allclose(entropy(np.array([[0.0, 1.0], [0.5, 0.5]])), [0.0, np.log(2)])
    # Two sure draws that contradict each other: all uncertainty is about the parameters.
    split = as_predictive(np.array([[0.5, 0.5]]), expected=np.zeros(1))
    np.testing.assert_allclose(mutual_information(split), np.log(2))
    with pytest.raises(ValueError, match="single draws"):
        mutual_information(P)  # pyright: ignore[reportArgumentType]


def test_auroc_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(1)
    inside, outside = rng.integers(0, 6, 30), rng.integers(2, 9, 40)
    pairs = (outside[None, :] > inside[:, None]) + 0.5 * (outside[None, :] == inside[:, None])
    np.testing.assert_allclose(auroc(inside, outside), pairs.mean())
    assert auroc([0.0, 1.0], [2.0, 3.0]) == 1.0
    assert auroc([1.0, 1.0], [1.0]) == 0.5
    with pytest.raises(ValueError, match="at least one score"):
        auroc([], [1.0])


def test_agreement_and_total_variation_by_hand():
    assert agreement(P, Q) == 0.5
    np.testing.assert_allclose(total_variation(P, Q), 0.5 * np.mean([0.2, 0.8, 0.2, 1.9]))
    # The factor ½: predictives that share no class are at distance one.
    assert total_variation([[1.0, 0.0]], [[0.0, 1.0]]) == 1.0
    assert total_variation(P, P) == 0
    assert agreement(P, P) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nll(P, Y[:2]), "4 predictions and 2 labels"),
        (lambda: nll(P, [0, 1, 2, 3]), "labels range from 0 to 3, but there are 3 outputs"),
        (lambda: accuracy(P, Y + 0.5), "one integer label per example"),
        (lambda: nll(np.log(P), Y), "may be logits"),
        (lambda: nll(2 * P, Y), "sum to 1"),
        (lambda: nll(P[0], Y), r"\[n, classes\]"),
        (lambda: agreement(P, Q[:2]), "cannot be compared"),
        (lambda: reliability(P, Y, bins=0), "at least one bin"),
        (lambda: auroc([np.nan], [1.0]), "NaN"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
