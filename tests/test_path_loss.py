"""Permutations learned on the loss of the path."""

from itertools import combinations, pairwise, permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, minimize

import onebasin as ob
from alignment_cases import (
    RECURRENT,
    RECURRENT_GROUPS,
    gaussian,
    mlp_shapes,
    mlp_symmetry,
    random_like,
    relu_mlp,
    same_tree,
)
from onebasin.alignment.doubly_stochastic import log_soften_all, soften
from onebasin.alignment.learning import exchanged, promising
from onebasin.alignment.norms import ScaleFree
from onebasin.alignment.path_loss import (
    Batch,
    Judge,
    PathLosses,
    PathPoint,
    drawn,
    side_of,
)
from onebasin.alignment.soft_action import matrices_of, soft_act
from onebasin.alignment.unit_scores import project
from onebasin.symmetry import Permutation, Symmetry
from onebasin.trees import num_parameters


class TestSoften:
    def test_is_the_entropic_optimum(self, x64):
        """Against a general optimiser over all 3×3 matrices, with sums as constraints."""
        scores = np.random.default_rng(0).normal(size=(3, 3))
        found = np.asarray(soften(jnp.asarray(scores), 200))

        def objective(flat):
            return -np.sum(flat * scores.ravel()) + np.sum(flat * np.log(flat))

        sums = [
            {"type": "eq", "fun": lambda f, k=k: f.reshape(3, 3).sum(1)[k] - 1} for k in (0, 1, 2)
        ]
        sums += [
            {"type": "eq", "fun": lambda f, k=k: f.reshape(3, 3).sum(0)[k] - 1} for k in (0, 1)
        ]
        best = minimize(
            objective, np.full(9, 1 / 3), bounds=[(1e-9, 1)] * 9, constraints=sums, tol=1e-12
        )
        np.testing.assert_allclose(found.ravel(), best.x, atol=1e-5)
        np.testing.assert_allclose(found.sum(0), 1, atol=1e-12)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)

    def test_large_scores_give_the_best_permutation_of_all(self, x64):
        scores = np.random.default_rng(1).normal(size=(5, 5))
        best = max(permutations(range(5)), key=lambda p: scores[range(5), list(p)].sum())
        soft = np.asarray(soften(jnp.asarray(200 * scores), 5000))
        np.testing.assert_allclose(soft, np.eye(5)[list(best)], atol=1e-3)
        assert project({"g": scores})["g"].tolist() == list(best)

    def test_gradient_is_that_of_finite_differences(self, x64):
        rng = np.random.default_rng(2)
        scores, weights = (jnp.asarray(rng.normal(size=(4, 4))) for _ in range(2))
        loss = lambda s: jnp.sum(weights * soften(s, 300) ** 2)
        slope = np.asarray(jax.grad(loss)(scores))
        for i in range(4):
            for j in range(4):
                step = 1e-5 * jnp.zeros((4, 4)).at[i, j].set(1.0)
                change = (loss(scores + step) - loss(scores - step)) / 2e-5
                assert slope[i, j] == pytest.approx(float(change), abs=1e-8)

    def test_matrices_of_several_sizes_are_softened_one_by_one(self, x64):
        rng = np.random.default_rng(3)
        sizes = {"a": 3, "b": 4, "c": 3}
        scores = {name: jnp.asarray(rng.normal(size=(n, n))) for name, n in sizes.items()}
        found = log_soften_all(scores)
        assert found.keys() == scores.keys()
        for name, matrix in scores.items():
            np.testing.assert_allclose(np.exp(found[name]), soften(matrix), rtol=1e-12)

    def test_scores_of_any_size_are_finite(self):
        soft = soften(jnp.asarray([[1e5, -1e5], [0.0, 3e4]]))
        assert np.isfinite(soft).all()


LAYOUTS = {
    "whole axes": (
        mlp_shapes((4, 3)),
        {"a": [("Dense_0/kernel", 1), ("Dense_0/bias", 0), ("Dense_1/kernel", 0)]},
    ),
    "flattened channels": (
        {"conv": (2, 3), "dense": (12, 4)},
        {"a": [("conv", 1), ("dense", 0, (2, 2))]},
    ),
    "both axes of one array": (RECURRENT, RECURRENT_GROUPS),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_permutation_matrices_act_as_permutations(case):
    shapes, groups = LAYOUTS[case]
    params = random_like(shapes, 0)
    symmetry = Symmetry.by_hand(params, groups)
    permutation = symmetry.random(key=jax.random.key(0))
    mixed = soft_act(symmetry, matrices_of(permutation), params)
    assert same_tree(mixed, symmetry.act(permutation, params))


def test_the_action_is_linear_in_each_matrix(x64):
    shapes, groups = LAYOUTS["flattened channels"]
    params = random_like(shapes, 0)
    symmetry = Symmetry.by_hand(params, groups)
    rng = np.random.default_rng(0)
    one, two = ({"a": jnp.asarray(rng.random((3, 3)))} for _ in range(2))
    half = {"a": (one["a"] + two["a"]) / 2}
    for found, a, b in zip(
        *(jax.tree.leaves(soft_act(symmetry, m, params)) for m in (half, one, two)), strict=True
    ):
        np.testing.assert_allclose(found, (a + b) / 2, rtol=1e-12)


@pytest.fixture(scope="module")
def task():
    """A network that has learned nothing but is its own teacher, and a noisy relabelled copy."""
    shapes = mlp_shapes((12, 8), inputs=6, outputs=4)
    params = random_like(shapes, 0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(700, 6)).astype(np.float32)
    y = np.asarray(relu_mlp(params, x)).argmax(axis=1)
    std = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.02), params)
    return params, std, mlp_symmetry(params), (x[:400], y[:400]), (x[400:], y[400:])


def objective(task, **changes):
    options = {"steps": 20, "exchanges": 20, "judged": 100, "progress": "silent", **changes}
    return ob.PathLoss(relu_mlp, task[3], **options)


def loss_between(q0, q1, data):
    found = ob.profile(
        ob.geodesic(q0, q1),
        relu_mlp,
        data,
        key=jax.random.key(5),
        points=3,
        num_samples=8,
        progress="silent",
    )
    return found.nll[1]


@pytest.mark.parametrize("kind", ["mean-field", "params", "samples", "low-rank"])
def test_a_planted_permutation_is_found(task, kind):
    params, std, symmetry, *_ = task
    q = {
        "mean-field": lambda: ob.MeanField(params, std),
        "params": lambda: params,
        "samples": lambda: ob.Samples(jax.tree.map(lambda p: jnp.stack([p, 1.01 * p]), params)),
        "low-rank": lambda: ob.LowRank(params, std, jax.tree.map(lambda s: s[None] / 2, std)),
    }[kind]()
    planted = symmetry.random(key=jax.random.key(1))
    mover = symmetry.act(planted, q)
    found = ob.align(
        mover, to=q, symmetry=symmetry, objective=objective(task, steps=2), key=jax.random.key(0)
    )
    assert found.permutation == symmetry.inverse(planted)
    assert found.distance_after < found.distance_before
    assert found.objective == "path-loss"


@pytest.mark.parametrize("relaxation", ["soft", "straight-through"])
def test_what_is_learned_helps_on_other_data(task, relaxation):
    """From the worst start, using training data alone, the loss between the ends falls on test
    data. The scores to begin with are those of the correlations, but the start is given."""
    params, std, symmetry, _, test = task
    q0 = ob.MeanField(params, std)
    noisy = jax.tree.map(jnp.add, params, random_like(jax.tree.map(jnp.shape, params), 3, 0.1))
    planted = symmetry.random(key=jax.random.key(1))
    q1 = symmetry.act(planted, ob.MeanField(noisy, std))
    found = ob.align(
        q1,
        to=q0,
        symmetry=symmetry,
        objective=objective(task, relaxation=relaxation),
        starts="identity",
        key=jax.random.key(0),
    )
    before, after = (loss_between(q0, q, test) for q in (q1, found.posterior))
    ideal = loss_between(q0, symmetry.act(symmetry.inverse(planted), q1), test)
    assert after < before - 0.5 * (before - ideal)
    assert found.score > found.starts[0].score


def test_it_is_never_worse_than_its_start_and_the_polish_never_raises_its_loss(task):
    params, std, symmetry, *_ = task
    q0 = ob.MeanField(params, std)
    q1 = ob.MeanField(random_like(jax.tree.map(jnp.shape, params), 9), std)
    for steps in (0, 10):
        found = ob.align(
            q1,
            to=q0,
            symmetry=symmetry,
            objective=objective(task, steps=steps, exchanges=40),
            starts=("auto", "random"),
            key=jax.random.key(0),
        )
        assert found.solves > 0
        assert all(a < b for a, b in zip(found.trace, found.trace[1:], strict=False))
        assert found.trace[0] == max(start.score for start in found.starts)
        assert found.score == found.trace[-1]
        # The judged loss is that of the permutation returned.
        assert found.distance_after == pytest.approx(-found.score, rel=1e-6)


def test_it_is_deterministic_given_its_key_and_stops_in_time(task):
    params, std, symmetry, *_ = task
    q0 = ob.MeanField(params, std)
    q1 = ob.MeanField(random_like(jax.tree.map(jnp.shape, params), 9), std)
    run = lambda key, **changes: ob.align(
        q1, to=q0, symmetry=symmetry, objective=objective(task, **changes), key=jax.random.key(key)
    )
    first, again = run(0), run(0)
    assert first.permutation == again.permutation
    assert first.trace == again.trace
    stopped = run(0, time_limit=1e-9)
    assert stopped.sweeps == stopped.solves == 0
    assert not stopped.converged
    assert stopped.score == max(start.score for start in stopped.starts)


@pytest.mark.parametrize("kind", ["mean-field", "params", "draws"])
def test_planted_permutations_of_many_are_undone_jointly(task, kind):
    """Relabelled copies of one network meet in one frame: all equal after it."""
    params, std, symmetry, *_ = task
    q = ob.MeanField(params, std) if kind == "mean-field" else params
    keys = jax.random.split(jax.random.key(4), 3)
    members = [symmetry.act(symmetry.random(key=k), q) for k in keys]
    given = ob.Samples.from_list(members) if kind == "draws" else members
    found = ob.align_many(
        given,
        symmetry=symmetry,
        objective=objective(task, steps=2, exchanges=2),
        key=jax.random.key(0),
    )
    first, *others = (
        [found.posteriors.draw(i) for i in range(3)] if kind == "draws" else found.posteriors
    )
    assert all(same_tree(first, other) for other in others)
    assert found.converged
    assert found.objective == "path-loss"


def test_what_is_learned_jointly_lowers_the_loss_between_all_pairs(task):
    """Three networks of which only the outputs are alike: the judged loss never rises, and the
    mean over pairs is lower on test data than that of any start."""
    params, std, symmetry, _, test = task
    shapes = jax.tree.map(jnp.shape, params)
    noisy = [jax.tree.map(jnp.add, params, random_like(shapes, i, 0.7)) for i in range(3)]
    planted = [symmetry.random(key=k) for k in jax.random.split(jax.random.key(1), 3)]
    members = [
        symmetry.act(p, ob.MeanField(mean, std)) for p, mean in zip(planted, noisy, strict=True)
    ]
    run = lambda: ob.align_many(
        members, symmetry=symmetry, objective=objective(task), key=jax.random.key(0)
    )
    found = run()
    assert all(a <= b for a, b in pairwise(found.trace))
    mean = lambda qs: np.mean([loss_between(a, b, test) for a, b in combinations(qs, 2)])
    nearest = ob.align_many(members, symmetry=symmetry)
    assert found.trace[-1] > found.trace[0]
    assert mean(found.posteriors) < min(mean(members), mean(nearest.posteriors))
    assert run().permutations == found.permutations


def test_the_loss_is_that_of_the_geodesic(task, x64):
    """The mean over draws of the loss at t, against draws of `geodesic` with the same noise."""
    params, std, symmetry, data, _ = task
    q0, q1 = (ob.MeanField(random_like(jax.tree.map(jnp.shape, params), i), std) for i in (1, 2))
    losses = PathLosses(objective(task), symmetry, ScaleFree({}))
    batch = Batch(*data)
    at = PathPoint(0.3, np.random.default_rng(0).normal(size=num_parameters(std)), 0)
    found = losses.hard((side_of(q0), side_of(q1)), at, batch)
    leaves, structure = jax.tree.flatten(std)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    noise = [e.reshape(s.shape) for e, s in zip(np.split(at.noise, ends), leaves, strict=True)]
    between = ob.geodesic(q0, q1)(0.3)
    drawn = jax.tree.map(
        lambda m, s, e: m + s * e, between.mean, between.std, jax.tree.unflatten(structure, noise)
    )
    log_p = jax.nn.log_softmax(relu_mlp(drawn, batch.x))
    expected = -np.mean(np.asarray(log_p)[np.arange(len(batch.y)), batch.y])
    assert float(found) == pytest.approx(expected, rel=1e-6)
    # A permutation matrix in the relaxed loss gives the loss of the permutation.
    permutation = symmetry.random(key=jax.random.key(3))
    sides = side_of(q0), side_of(q1)
    soft = losses.soft(matrices_of(permutation), sides, at, batch)
    judge = Judge(losses, sides, (batch,), (at,))
    assert float(soft) == pytest.approx(judge(permutation), rel=1e-6)


def test_exchanges_are_ranked_by_the_change_they_predict(x64):
    """For a loss that is linear in P the prediction is exact: the best exchange is found."""
    rng = np.random.default_rng(0)
    slopes = {"a": rng.normal(size=(6, 6)), "b": rng.normal(size=(4, 4))}
    start = Permutation({"a": rng.permutation(6), "b": rng.permutation(4)})
    loss = lambda p: sum(slopes[n][np.arange(len(p[n])), p[n]].sum() for n in p)
    ranked = promising(start, slopes)
    every = [(name, i, j) for name in start for i in range(len(start[name])) for j in range(i)]
    best = min(every, key=lambda e: loss(exchanged(start, [e])))
    assert {ranked[0][1], ranked[0][2]} == {best[1], best[2]}
    assert ranked[0][0] == best[0]
    changes = [loss(exchanged(start, [e])) - loss(start) for e in ranked]
    assert all(change < 0 for change in changes)
    assert changes == sorted(changes)
    touched = [(name, k) for name, i, j in ranked for k in (i, j)]
    assert len(touched) == len(set(touched))


def test_a_linear_loss_is_polished_to_a_local_optimum_no_better_than_the_assignment():
    rng = np.random.default_rng(1)
    slopes = rng.normal(size=(6, 6))
    _, columns = linear_sum_assignment(slopes)
    assert promising(Permutation({"a": columns}), {"a": slopes}) == []
    assert project({"a": -slopes})["a"].tolist() == columns.tolist()


def test_mistakes_are_refused_before_any_work(task):
    params, std, symmetry, *_ = task
    q = ob.MeanField(params, std)
    with pytest.raises(ValueError, match="draws batches and noise"):
        ob.align(q, to=q, symmetry=symmetry, objective=objective(task))
    with pytest.raises(ValueError, match="PathLoss needs training data"):
        ob.PathLoss(relu_mlp)
    with pytest.raises(ValueError, match="judged is 400 of 400 training examples"):
        objective(task, judged=400)
    with pytest.raises(ValueError, match="there is no relaxation 'hard'"):
        objective(task, relaxation="hard")
    with pytest.raises(ValueError, match=r"temperatures are \(0.1, 0.2\)"):
        objective(task, temperatures=(0.1, 0.2))
    with pytest.raises(ValueError, match=r"span is \(0.6, 0.4\)"):
        objective(task, span=(0.6, 0.4))
    with pytest.raises(ValueError, match="search is for objectives"):
        ob.align(
            q,
            to=q,
            symmetry=symmetry,
            objective=objective(task),
            key=jax.random.key(0),
            search=ob.FrankWolfe(),
        )
    with pytest.raises(ValueError, match="draws batches and noise"):
        ob.align_many([q, q], symmetry=symmetry, objective=objective(task))


def test_a_problem_brings_its_data_and_likelihood():
    x = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
    shapes = {"w": (3, 5), "v": (5, 1)}
    apply = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]
    truth = random_like(shapes, 0)
    problem = ob.Problem(
        apply, lambda key: truth, (x, np.asarray(apply(truth, x))), likelihood="gaussian"
    )
    symmetry = ob.find_symmetry(problem)
    planted = symmetry.random(key=jax.random.key(2))
    found = ob.align(
        symmetry.act(planted, truth),
        to=truth,
        symmetry=symmetry,
        objective=ob.PathLoss(problem, steps=2, exchanges=5, judged=40),
        key=jax.random.key(0),
    )
    assert same_tree(found.posterior, truth)
    assert -found.score == pytest.approx(0.5 * np.log(2 * np.pi), abs=1e-5)  # no residual is left


def test_gaussians_of_any_kind_are_drawn_with_the_same_noise():
    shapes = {"w": (2, 3)}
    q = gaussian(shapes, 0)
    low = ob.LowRank(q.mean, q.std, {"w": jnp.ones((2, 2, 3))})
    at = PathPoint(0.5, np.random.default_rng(0).normal(size=8).astype(np.float32), 0)
    found, plain = drawn(side_of(low), at), drawn(side_of(q), at)
    assert found.noise is not None
    assert plain.noise is not None
    # all factors are one
    np.testing.assert_allclose(found.noise["w"] - plain.noise["w"], at.noise[-2:].sum(), rtol=1e-4)
    assert same_tree(found.mean, q.mean)


def test_running_statistics_move_with_their_units():
    def apply(params, x, state):
        return jnp.tanh(x @ params["w1"] - state["mean"]) @ params["w2"]

    rng = np.random.default_rng(0)
    params, state = random_like({"w1": (3, 5), "w2": (5, 3)}, 0), random_like({"mean": (5,)}, 1)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = np.asarray(apply(params, x, state)).argmax(axis=1)
    symmetry = ob.find_symmetry(apply, params, x[:2], state=state)
    std = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01), params)
    q = ob.MeanField(params, std, state)
    planted = symmetry.random(key=jax.random.key(1))
    objective = ob.PathLoss(apply, (x, y), steps=2, exchanges=2, judged=30, progress="silent")
    found = ob.align(
        symmetry.act(planted, q),
        to=q,
        symmetry=symmetry,
        objective=objective,
        key=jax.random.key(0),
    )
    assert same_tree(found.posterior, q)
    losses = PathLosses(objective, symmetry, ScaleFree({}))
    sides = (
        side_of(q),
        side_of(ob.MeanField(random_like({"w1": (3, 5), "w2": (5, 3)}, 3), std, state)),
    )
    at = PathPoint(0.5, np.zeros(30, np.float32), 0)
    batch = Batch(x, y)
    soft = losses.soft(matrices_of(planted), sides, at, batch)
    assert float(soft) == pytest.approx(Judge(losses, sides, (batch,), (at,))(planted), rel=1e-5)
