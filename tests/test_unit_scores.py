"""Correlations of units at their sites, and the steps that learn from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob
from alignment_cases import random_like
from onebasin.alignment.learning import Momentum, downhill
from onebasin.alignment.unit_scores import BONUS, UnitScores, biased, mean_scores, project
from onebasin.networks.described import DescribedNetwork


def apply(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


@pytest.fixture(scope="module")
def networks():
    shapes = {"w1": (3, 5), "b1": (5,), "w2": (5, 2)}
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    return random_like(shapes, 1), random_like(shapes, 2), x


def test_scores_are_correlations_before_and_after_the_nonlinearity(networks):
    to, mover, x = networks
    symmetry = ob.find_symmetry(apply, to, x[:2])
    (name,) = (group.name for group in symmetry.groups)
    units = UnitScores.of(apply, x, to, symmetry)
    found = units.between(mover, to)
    assert tuple(found) == units.kinds
    before = [np.asarray(x @ p["w1"] + p["b1"], np.float64).T for p in (to, mover)]
    corr = lambda a, b: np.corrcoef(a, b)[:5, 5:]
    after = corr(*(np.tanh(z) for z in before))
    np.testing.assert_allclose(found["correlations after"][name], after, atol=1e-5)
    np.testing.assert_allclose(found["correlations"][name], (corr(*before) + after) / 2, atol=1e-5)


def test_units_of_a_residual_stream_are_pooled_after_the_nonlinearity():
    """The stream is read before and after a block: the observations at both are taken together."""

    def streams(params, x):
        first = x @ params["in"]
        return first, jnp.tanh(first + jnp.tanh(first @ params["up"]) @ params["down"])

    def residual(params, x):
        return streams(params, x)[1] @ params["out"]

    shapes = {"in": (3, 5), "up": (5, 7), "down": (7, 5), "out": (5, 2)}
    to, mover = random_like(shapes, 1), random_like(shapes, 2)
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    symmetry = ob.find_symmetry(residual, to, x[:2])
    (stream,) = (group.name for group in symmetry.groups if group.size == 5)
    found = UnitScores.of(residual, x, to, symmetry).between(mover, to)
    first, second = (np.concatenate(streams(p, x), dtype=np.float64).T for p in (to, mover))
    expected = np.corrcoef(first, second)[:5, 5:]
    np.testing.assert_allclose(found["correlations after"][stream], expected, atol=1e-5)


def test_units_that_cannot_be_recorded_have_no_scores(networks):
    to, mover, x = networks
    symmetry = ob.Symmetry.by_hand(to, {"hidden": [("w1", 1), ("b1", 0), ("w2", 0)]})
    blind = lambda params, x: jnp.zeros((len(x), 2)) + 0 * params["w2"].sum()
    with pytest.warns(UserWarning, match="units of hidden are not compared"):
        units = UnitScores.of(blind, x, to, symmetry)
    assert units.kinds == ()
    assert units.unseen == ("hidden",)
    ((scores),) = units.between(mover, to).values()
    assert not scores["hidden"].any()


def test_groups_that_cannot_be_recorded_leave_the_others_their_scores():
    """Dimensions inside a head with an order for each head cannot be; hidden units can."""
    network = ob.networks.ViT(patch=2, width=8, depth=1, heads=2)
    problem = DescribedNetwork.of_module(network, (4, 4, 1))
    to, mover = (problem.init(jax.random.key(seed)) for seed in (0, 1))
    x = np.random.default_rng(0).normal(size=(20, 4, 4, 1)).astype(np.float32)
    symmetry = ob.find_symmetry(problem, to, x[:2], kinds="all").permutations
    plain = ob.find_symmetry(problem, to, x[:2])
    (hidden,) = (group.name for group in symmetry.groups if group.name.endswith("/up"))
    units = UnitScores.of(problem, x, to, symmetry, wanted=[hidden])
    inside = ("block1/attention/query.2", "block1/attention/value")
    assert units.unseen == inside
    expected = UnitScores.of(problem, x, to, plain).between(mover, to)
    for kind, scores in units.between(mover, to).items():
        assert {name: len(score) for name, score in scores.items()} == {
            group.name: group.size for group in symmetry.groups
        }
        assert not any(scores[name].any() for name in inside)
        np.testing.assert_array_equal(scores[hidden], expected[kind][hidden])
        assert scores[hidden].any()
    with pytest.warns(UserWarning, match=r"units of block1/attention/query\.2, .* are not"):
        UnitScores.of(problem, x, to, symmetry)


def test_the_mean_of_scores_is_taken_kind_by_kind():
    one, two = ({"a": {"g": np.full((2, 2), v)}, "b": {"g": np.eye(2) * v}} for v in (1.0, 3.0))
    found = mean_scores([one, two])
    np.testing.assert_array_equal(found["a"]["g"], np.full((2, 2), 2.0))
    np.testing.assert_array_equal(found["b"]["g"], 2 * np.eye(2))


def test_a_start_that_scores_do_not_give_is_raised_in_them():
    scores = {"g": np.array([[0.2, 0.1], [0.1, 0.2]], np.float32)}
    own, other = project(scores), ob.Permutation({"g": np.array([1, 0])})
    assert biased(scores, own) is scores
    raised = biased(scores, other)
    np.testing.assert_allclose(raised["g"], scores["g"] + BONUS * np.eye(2)[[1, 0]])
    assert project(raised) == other


def test_steps_go_downhill_with_one_scale_for_all_groups():
    """With the same slopes again and again both means are unbiased: the direction is the slope over
    the root mean square norm of its rows, whatever its size, and groups keep their ratio."""
    rng = np.random.default_rng(0)
    slopes = {"a": rng.normal(size=(3, 3)), "b": 100 * rng.normal(size=(2, 2))}
    root = np.sqrt(np.mean(np.concatenate([(s**2).sum(1) for s in slopes.values()])))
    momentum = Momentum.at_rest({n: jnp.zeros(s.shape) for n, s in slopes.items()})
    for _ in range(3):
        way, momentum = downhill({n: jnp.asarray(s) for n, s in slopes.items()}, momentum)
        for name, slope in slopes.items():
            np.testing.assert_allclose(way[name], -slope / root, rtol=1e-4)


def test_without_slopes_nothing_moves():
    zero = {"a": jnp.zeros((2, 2))}
    way, _ = downhill(zero, Momentum.at_rest(zero))
    assert not np.asarray(way["a"]).any()
