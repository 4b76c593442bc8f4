"""Studies of transpositions where the answer is known, and end to end at toy size."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import mlp_shapes, mlp_symmetry, random_like, same_tree
from onebasin.data import load_dataset
from onebasin.evaluation.profiles import profile
from onebasin.evaluation.transposition_studies import (
    as_json,
    dynamics_study,
    interpolation_study,
    mean_and_std,
    planted_study,
    transpositions_along,
)
from onebasin.experiments.transposition_figures import (
    dynamics_figure,
    interpolation_figure,
    planted_figure,
)
from onebasin.inference.fitting import fit
from onebasin.inference.methods import MAP
from onebasin.inference.trajectories import steps_per_epoch, train
from onebasin.keys import subkey
from onebasin.networks import MLP
from onebasin.paths import line
from onebasin.problem import Problem
from onebasin.symmetry import transpositions

KEY = jax.random.key(0)
METHOD = MAP(epochs=3, batch_size=200, learning_rate=1e-2)


@pytest.fixture(scope="module")
def problem():
    return Problem.from_network(MLP(widths=(12,), num_classes=10), load_dataset("digits"))


@pytest.fixture(scope="module")
def symmetry(problem):
    return mlp_symmetry(problem.init(KEY))


def test_training_from_given_weights_is_that_of_fit(problem):
    keys = jax.random.split(KEY, 2)
    starts = jax.vmap(lambda k: problem.init(subkey(k, "init")))(keys)
    steps = METHOD.epochs * steps_per_epoch(problem, METHOD)
    start, middle, end = train(problem, METHOD, starts, keys=keys, checkpoints=[0, 5, steps])
    assert same_tree(start, starts)
    assert not same_tree(middle, end)
    alone = fit(problem, METHOD, key=keys[1], progress="silent").posterior
    for a, b in zip(jax.tree.leaves(end), jax.tree.leaves(alone.draws), strict=True):
        # One network alone and two side by side differ in rounding.
        np.testing.assert_allclose(a[1], b[0], rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match=f"must increase from 0 to at most {steps}"):
        train(problem, METHOD, starts, keys=keys, checkpoints=[5, 2])
    with pytest.raises(ValueError, match="give one each"):
        train(problem, METHOD, starts, keys=keys[:1])


def test_along_the_line_to_a_permuted_copy():
    w0 = random_like(mlp_shapes((9, 8)), 3)
    symmetry = mlp_symmetry(w0)
    for count in (0, 3, 7):
        move = symmetry.random(key=KEY, transpositions=count)
        found = transpositions_along(w0, symmetry.act(move, w0), symmetry=symmetry, points=5)
        assert found[0].transpositions == 0
        assert found[-1].transpositions == int(transpositions(move)) == 2 * count
        assert found[-1].end == 2 * count
        assert found[-1].distance_after == 0
        assert all(record.distance_after <= record.distance_before for record in found)
        assert [record.t for record in found] == [0, 0.25, 0.5, 0.75, 1]


def test_planted_transpositions_are_found_again(problem, symmetry):
    records = planted_study(
        problem, METHOD, key=KEY, planted=(0, 9), runs=2, points=3, symmetry=symmetry
    )
    assert [(r.run, r.planted) for r in records] == [(0, 0), (0, 9), (1, 0), (1, 9)]
    for record in records:
        # A short training leaves both near their start, which alignment then finds exactly.
        assert record.found == record.planted
        assert record.recovered == 1
        assert record.distance_after == pytest.approx(record.distance_undone)
        if record.planted:
            assert record.distance_after < record.distance_before
            assert record.barrier_after < record.barrier_before
        else:
            assert record.distance_after == record.distance_before
    xs, mean, std = mean_and_std(records, "planted", "found")
    np.testing.assert_array_equal(xs, mean)
    np.testing.assert_array_equal(std, 0)
    assert json.loads(json.dumps(as_json(records)))[1]["planted"] == 9
    figure = planted_figure(records)
    assert [ax.get_ylabel() for ax in figure.axes][2].startswith("loss barrier")


def test_interpolation_between_trained_networks(problem, symmetry):
    records = interpolation_study(problem, METHOD, key=KEY, runs=1, points=3, symmetry=symmetry)
    assert {r.kind for r in records} == {"permuted", "independent"}
    assert all(r.transpositions == 0 for r in records if r.t == 0)
    last = [r for r in records if r.t == 1]
    assert all(r.transpositions == r.end for r in last)
    assert all(r.distance_after == 0 for r in last if r.kind == "permuted")
    assert all(r.distance_after > 0 for r in last if r.kind == "independent")
    assert len(interpolation_figure(records).axes[0].get_lines()) == 2


def test_dynamics(problem):
    records = dynamics_study(problem, METHOD, key=KEY, moments=3, points=3)
    last = METHOD.epochs * steps_per_epoch(problem, METHOD)
    assert [r.step for r in records] == [0, 1, last]
    last = records[-1]
    # The ends of both lines are the two networks, of the same losses.
    for k in (0, -1):
        assert last.before[k] == pytest.approx(last.after[k], rel=1e-5)
    assert last.before[0] < records[0].before[0]
    assert last.distance_after < last.distance_before
    # The numbers are those of a profile of the very networks.
    keys = [jax.random.fold_in(jax.random.fold_in(KEY, 0), i) for i in (0, 1)]
    starts = [problem.init(subkey(k, "init")) for k in keys]
    direct = profile(
        line(*starts), problem.apply, load_dataset("digits").test, key=KEY, points=3, num_samples=1
    )
    np.testing.assert_allclose(records[0].before, direct.nll, rtol=1e-5)
    assert len(dynamics_figure(records).axes) == 2


@pytest.mark.fast
def test_mean_and_std_over_runs():
    records = transpositions_along(
        *[random_like(mlp_shapes((4,)), s) for s in (0, 1)],
        symmetry=mlp_symmetry(random_like(mlp_shapes((4,)), 0)),
        points=3,
    )
    xs, _, std = mean_and_std(records, "t", "transpositions")
    assert xs.tolist() == [0, 0.5, 1]
    assert np.isnan(std).all()
    doubled = [*records, *records]
    assert mean_and_std(doubled, "t", lambda r: r.distance_before)[2].max() == 0
    with pytest.raises(ValueError, match="no record"):
        planted_figure([])
    assert jnp.isfinite(records[1].distance_after)
