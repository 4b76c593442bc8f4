"""The assignment solver against SciPy, enumeration, and its own certificate."""

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from onebasin.alignment.assignment import gap, solve


def reference(scores):
    """The columns that SciPy finds."""
    return linear_sum_assignment(np.asarray(scores, np.float64), maximize=True)[1]


def total(scores, columns):
    return scores[np.arange(len(scores)), columns].sum()


def make(kind, n, rng):
    """Score matrices of several characters; the last three have many ties or near ties."""
    if kind == "noise":
        return rng.normal(size=(n, n))
    if kind == "product":
        return rng.normal(size=(n, 3)) @ rng.normal(size=(3, n))
    if kind == "whole numbers":
        return rng.integers(0, 4, (n, n)).astype(float)
    if kind == "dead units":
        scores = 1e-3 * rng.normal(size=(n, n))
        scores[: n // 4, : n // 4] += 10 * rng.normal(size=(n // 4, n // 4))
        return scores
    return np.ones((n, n))


KINDS = ["noise", "product", "whole numbers", "dead units", "constant"]


@pytest.mark.fast
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 150])
def test_as_good_as_scipy_and_certified(kind, n):
    rng = np.random.default_rng(n)
    scores = make(kind, n, rng)
    found = solve(scores, certify=True)
    assert sorted(found.columns) == list(range(n))
    scale = np.abs(scores).sum() + 1
    # Sums of n products in float64: n rounding errors of relative size 2e-16.
    assert total(scores, found.columns) == pytest.approx(
        total(scores, reference(scores)), abs=1e-14 * scale
    )
    assert found.prices is not None
    assert abs(gap(scores, found.columns, found.prices)) <= 1e-13 * scale


@pytest.mark.fast
@pytest.mark.parametrize("seed", range(5))
def test_enumeration(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(6, 6))
    best = max(total(scores, np.array(p)) for p in permutations(range(6)))
    assert total(scores, solve(scores).columns) == pytest.approx(best, rel=1e-14)


@pytest.mark.fast
@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_start_changes_only_the_time(kind):
    rng = np.random.default_rng(3)
    before = make(kind, 90, rng)
    prices = solve(before, certify=True).prices
    after = before + 0.1 * rng.normal(size=before.shape)
    warm, cold = solve(after, prices=prices, certify=True), solve(after)
    scale = np.abs(after).sum()
    assert total(after, warm.columns) == pytest.approx(
        total(after, cold.columns), abs=1e-14 * scale
    )
    assert warm.prices is not None
    assert abs(gap(after, warm.columns, warm.prices)) <= 1e-13 * scale
    # Any prices are valid, however bad.
    wild = solve(after, prices=rng.normal(size=90) * 100)
    assert total(after, wild.columns) == pytest.approx(
        total(after, cold.columns), abs=1e-12 * scale
    )


@pytest.mark.fast
def test_gap_bounds_what_can_be_gained():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(30, 30))
    prices = rng.normal(size=30)
    best = total(scores, reference(scores))
    for _ in range(20):
        columns = rng.permutation(30)
        assert gap(scores, columns, prices) >= best - total(scores, columns) - 1e-12


@pytest.mark.fast
def test_ties_are_resolved_the_same_way_twice():
    scores = np.random.default_rng(1).integers(0, 3, (40, 40)).astype(np.float32)
    assert (solve(scores).columns == solve(scores.copy()).columns).all()


@pytest.mark.fast
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_name_the_group(bad):
    scores = np.ones((5, 5), np.float32)
    scores[3, 2] = bad
    with pytest.raises(ValueError, match=r"group 'stem'.*unit 3"):
        solve(scores, name="stem")


@pytest.mark.fast
def test_no_units():
    assert len(solve(np.zeros((0, 0))).columns) == 0


def test_large_matrices_in_threads():
    rng = np.random.default_rng(5)
    scores = (rng.normal(size=(1100, 20)) @ rng.normal(size=(20, 1100))).astype(np.float32)
    found = solve(scores)
    wide = scores.astype(np.float64)
    assert total(wide, found.columns) == pytest.approx(total(wide, reference(scores)), rel=1e-13)
