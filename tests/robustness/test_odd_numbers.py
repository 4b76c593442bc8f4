"""Weights of any magnitude are aligned as planted, or refused; ordinary ones exactly as ever."""

import jax
import numpy as np
import pytest
from odd_numbers import OBJECTIVES, attack, defect_of, drawn, same

import onebasin as ob


def test_planted_permutations_are_found_or_refused(tmp_path):
    found = attack(tmp_path, 200, seed=0)
    assert found["defects"] == []


@pytest.mark.parametrize("factor", [1e-38, 1e-30, 1e-15, 1.0, 1e15, 1e30])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_factor_on_all_weights_changes_nothing(factor, objective):
    q, symmetry = drawn(0, factor, factor, constant=False)
    moved = symmetry.act(symmetry.random(key=jax.random.key(1)), q)
    found = ob.align(moved, to=q, symmetry=symmetry, objective=objective)
    assert same(found.posterior, q)
    assert defect_of(0, factor, factor, objective, "pair", constant=True) is None


@pytest.mark.parametrize("objective", ["w2", "l2"])
def test_scores_are_those_of_the_weights_as_they_are(objective):
    """Powers of two are exact: the score of doubled exponents is exactly the scaled score."""
    q, symmetry = drawn(0, 1.0, 1.0, constant=False)
    moved = symmetry.act(symmetry.random(key=jax.random.key(1)), q)
    plain = ob.align(moved, to=q, symmetry=symmetry, objective=objective)
    for exponent in (-60, 60):
        small, to = (
            jax.tree.map(lambda x, e=exponent: np.ldexp(x, e), side) for side in (moved, q)
        )
        found = ob.align(small, to=to, symmetry=symmetry, objective=objective)
        assert found.score == np.ldexp(plain.score, 2 * exponent)
        assert found.trace == tuple(np.ldexp(score, 2 * exponent) for score in plain.trace)
        assert found.distance_before == np.ldexp(plain.distance_before, 2 * exponent)
        assert same(dict(found.permutation.indices), dict(plain.permutation.indices))


def test_means_far_below_the_deviations_are_refused():
    q, symmetry = drawn(0, 1e-30, 1.0, constant=True)
    for align in (
        lambda: ob.align(q, to=q, symmetry=symmetry),
        lambda: ob.align_many([q, q], symmetry=symmetry),
    ):
        with pytest.raises(ValueError, match="cannot tell the means from zero; use objective 'l2'"):
            align()
    zero = ob.MeanField(
        jax.tree.map(np.zeros_like, q.mean), drawn(0, 1.0, 1.0, constant=False)[0].std
    )
    moved = symmetry.act(symmetry.random(key=jax.random.key(1)), zero)
    assert same(ob.align(moved, to=zero, symmetry=symmetry).posterior, zero)


def test_other_objectives_refuse_what_they_cannot_score():
    q, symmetry = drawn(0, 1e-30, 1e-30, constant=False)
    own = ob.Objective("mine", lambda m: (m.mean,), lambda m: (m.mean,))
    with pytest.raises(ValueError, match="exceed single precision; rescale the posteriors"):
        ob.align(q, to=q, symmetry=symmetry, objective=own)
