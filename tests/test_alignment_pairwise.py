"""Pairwise alignment: exhaustive optima, a score that never decreases, planted permutations."""

from itertools import permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import (
    RECURRENT,
    RECURRENT_GROUPS,
    gaussian,
    mlp_shapes,
    mlp_symmetry,
    positive_like,
    random_like,
    relu_mlp,
    same_tree,
)
from onebasin.alignment import FrankWolfe, LowRankLogDensity, align, align_many
from onebasin.alignment.assignment import gap, solve
from onebasin.alignment.descent import Matcher, Orders, Trace
from onebasin.alignment.objective import OBJECTIVES
from onebasin.alignment.pairwise import _shaken
from onebasin.alignment.scores import ScoreTable
from onebasin.choices import StartName
from onebasin.posterior import LowRank, MeanField
from onebasin.symmetry import Permutation, Symmetry, stack
from onebasin.symmetry.layout import Concat, Fixed, Product, Units

STARTS: tuple[StartName, ...] = ("forward", "identity", "random", "random", "random", "random")


def best_score(pair, sym):
    """The highest score of all permutations; the last group's are scored by its matrix."""
    table = ScoreTable(pair, sym.identity())
    *first, last = sym.groups
    if last.quadratic:
        first, last = [*first, last], None
    choices = [[np.array(p) for p in permutations(range(g.size))] for g in first]
    best = -np.inf
    for chosen in product(*choices):
        table.indices.update(zip((g.name for g in first), chosen, strict=True))
        score = table.total()
        if last is not None:
            matrix = table.scores(last.name)
            every = np.array(list(permutations(range(last.size))))
            sums = matrix[np.arange(last.size), every].sum(axis=1)
            score += float(sums.max() - np.trace(matrix))
        best = max(best, score)
    return best


@pytest.mark.parametrize("width", [2, 4, 6, 7])
@pytest.mark.parametrize("objective", ["w2", "kl"])
def test_one_group_is_solved_exactly(x64, width, objective):
    shapes = mlp_shapes((width,))
    for seed in range(12 if width < 7 else 6):
        q, to = gaussian(shapes, seed), gaussian(shapes, seed + 50)
        sym = mlp_symmetry(q.mean)
        found = align(q, to=to, symmetry=sym, objective=objective)
        best = best_score(OBJECTIVES[objective].features(q, to, sym), sym)
        assert found.score == pytest.approx(best, rel=1e-12)
        assert found.converged


@pytest.mark.parametrize("start", ["identity", "forward"])
def test_groups_are_visited_again_only_after_a_neighbour_moved(x64, monkeypatch, start):
    shapes = mlp_shapes((9, 12, 7, 10, 8))
    visits = []
    visit = Matcher._visit

    def noted(self, name, **options):
        visits.append((name, visit(self, name, **options)))
        return visits[-1][1]

    monkeypatch.setattr(Matcher, "_visit", noted)
    for seed in range(5):
        visits.clear()
        q, to = gaussian(shapes, seed), gaussian(shapes, seed + 50)
        sym = mlp_symmetry(q.mean)
        found = align(q, to=to, symmetry=sym, starts=(start,))
        neighbours = ScoreTable(OBJECTIVES["w2"].features(q, to, sym), sym.identity()).neighbours()
        # A forward pass ends at the last group, which is then at its optimum.
        last = {"hidden_4": -1} if start == "forward" else {}
        for now, (name, _) in enumerate(visits):
            if name in last:
                since = visits[last[name] + 1 : now]
                assert any(gain > 0 and name in neighbours[other] for other, gain in since)
            last[name] = now
        assert found.converged
        assert len(visits) < found.sweeps * len(sym.groups)


def share_found(width, seeds, **options):
    shapes = mlp_shapes((width, width))
    hits = 0
    for seed in range(seeds):
        q, to = gaussian(shapes, seed), gaussian(shapes, seed + 500)
        sym = mlp_symmetry(q.mean)
        found = align(q, to=to, symmetry=sym, key=jax.random.key(seed), **options)
        best = best_score(OBJECTIVES["w2"].features(q, to, sym), sym)
        assert found.score <= best + 1e-9 * abs(best)
        hits += found.score >= best - 1e-9 * abs(best)
    return hits / seeds


def test_two_coupled_groups(x64, record_property):
    """Two unrelated posteriors: the hardest case for a local search."""
    share = share_found(4, 16, starts=STARTS)
    searched = share_found(4, 16, starts=STARTS, search=FrankWolfe())
    record_property("share of optima found, 2 groups of 4", share)
    record_property("the same with Frank-Wolfe", searched)
    assert share >= 0.75
    assert searched >= max(share, 0.9)


@pytest.mark.parametrize("order", ["forward", "backward", "alternate", "random"])
@pytest.mark.parametrize("start", ["identity", "forward", "random"])
def test_the_score_never_decreases(x64, order, start):
    shapes = mlp_shapes((12, 9, 15))
    q, to = gaussian(shapes, 0), gaussian(shapes, 1)
    sym = mlp_symmetry(q.mean)
    found = align(q, to=to, symmetry=sym, starts=(start,), order=order, key=jax.random.key(3))
    assert (np.diff(found.trace) > 0).all()
    assert found.converged
    # The trace is summed from gains; its end must be the score of the permutation, recomputed.
    table = ScoreTable(OBJECTIVES["w2"].features(q, to, sym), found.permutation)
    assert found.trace[-1] == found.score == pytest.approx(table.total(), rel=1e-12)
    if start == "identity":
        assert found.trace[0] == pytest.approx(table.total(sym.identity().indices), rel=1e-12)
    # No group can do better while the others are fixed: its prices certify it.
    matcher = Matcher(table, Trace())
    end = matcher.descend(Orders(), 1)
    assert end.score == pytest.approx(found.score, rel=1e-14)
    for group in sym.groups:
        matrix = table.scores(group.name)
        prices = solve(matrix, certify=True).prices
        assert prices is not None
        bound = gap(matrix, found.permutation[group.name], prices)
        assert abs(bound) <= 1e-12 * np.abs(matrix).sum()


def test_distance_before_and_after(x64):
    shapes = mlp_shapes((8, 8))
    q, to = gaussian(shapes, 0), gaussian(shapes, 1)
    sym = mlp_symmetry(q.mean)
    found = align(q, to=to, symmetry=sym)
    assert found.distance_after < found.distance_before
    # W₂² = const − 2 score
    before = ScoreTable(OBJECTIVES["w2"].features(q, to, sym), sym.identity()).total()
    assert found.distance_before - found.distance_after == pytest.approx(2 * (found.score - before))
    assert same_tree(found.posterior, sym.act(found.permutation, q))
    assert int(found.transpositions) == sum(found.transpositions.by_group.values())
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)))
    np.testing.assert_allclose(relu_mlp(found.posterior.mean, x), relu_mlp(q.mean, x), rtol=1e-12)


@pytest.mark.fast
def test_starts_are_reported_and_the_best_is_kept(x64):
    shapes = mlp_shapes((8, 8, 8))
    q, to = gaussian(shapes, 0), gaussian(shapes, 1)
    sym = mlp_symmetry(q.mean)
    given = sym.random(key=jax.random.key(8))
    found = align(q, to=to, symmetry=sym, starts=(*STARTS, given), key=jax.random.key(0))
    assert [s.name for s in found.starts] == [*STARTS, "given"]
    assert found.score == max(s.score for s in found.starts)
    again = align(q, to=to, symmetry=sym, starts=(*STARTS, given), key=jax.random.key(0))
    assert again.permutation == found.permutation
    assert again.trace == found.trace


def test_shaken_starts_find_more_than_as_many_random_ones(x64):
    """There are too many optima to find the best by chance."""
    shapes = mlp_shapes((40, 40, 40))
    gains: dict[StartName, list[float]] = {"random": [], "shaken": []}
    for seed in range(10):
        q, to = gaussian(shapes, seed), gaussian(shapes, 100 + seed)
        sym = mlp_symmetry(q.mean)
        for start, found in gains.items():
            more: list[StartName] = [start] * 6
            several = ("auto", *more)
            end = align(q, to=to, symmetry=sym, starts=several, key=jax.random.key(seed))
            assert [s.name for s in end.starts] == list(several)
            assert end.score == max(s.score for s in end.starts)
            found.append(end.score - end.starts[0].score)
    assert np.mean(gains["shaken"]) > np.mean(gains["random"]) > 0


@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_a_shaken_permutation_moves_the_share_it_should(size):
    best = Permutation({"units": np.random.default_rng(0).permutation(size)})
    shaken = _shaken(best, jax.random.key(1))
    assert sorted(shaken["units"]) == list(range(size))
    expected = {1: 0, 2: 2, 3: 2, 40: 12}[size]
    assert np.sum(shaken["units"] != best["units"]) == expected


def test_auto_is_the_better_of_the_forward_pass_and_the_identity(x64):
    """The identity counts only if it scores no worse than the pass; over seeds, both happen."""
    shapes = mlp_shapes((6, 6))
    which = set()
    for seed in range(12):
        to = gaussian(shapes, seed)
        noise = random_like(shapes, 100 + seed, 0.5 * seed)  # from the target itself to far away
        q = MeanField(jax.tree.map(jnp.add, to.mean, noise), to.std)
        sym = mlp_symmetry(q.mean)
        ends = {
            start: align(q, to=to, symmetry=sym, starts=(start,)).score
            for start in ("forward", "identity")
        }
        pair = OBJECTIVES["w2"].features(q, to, sym)
        identity = ScoreTable(pair, sym.identity()).total()
        passed = Matcher(ScoreTable(pair, sym.identity()), Trace())
        passed.forward()
        both = identity >= passed.table.total()
        which.add(both)
        expected = max(ends.values()) if both else ends["forward"]
        assert align(q, to=to, symmetry=sym).score == pytest.approx(expected, rel=1e-12)
    assert which == {True, False}


@pytest.mark.parametrize("objective", ["w2", "l2"])
def test_a_forward_pass_knows_its_final_score(x64, objective):
    """From the matrices it solved, without a pass over all leaves, except where it cannot."""
    flat = {"conv": (3, 3, 2, 4), "dense": (4 * 4, 6), "head": (6, 2), "temperature": ()}
    places = {
        "channels": [("conv", 3), ("dense", 0, (4, 1))],
        "hidden": [("dense", 1), ("head", 0)],
    }
    cases = [
        (mlp_shapes((8, 6, 7)), mlp_symmetry, True),
        (flat, lambda params: Symmetry.by_hand(params, places), True),
        (RECURRENT, lambda params: Symmetry.by_hand(params, RECURRENT_GROUPS), False),
    ]
    for shapes, symmetry_of, quick in cases:
        q, to = (gaussian(shapes, seed) for seed in (0, 1))
        # Values far from zero are shifted in the matrices.
        q = MeanField(jax.tree.map(lambda m: m + 5.0, q.mean), q.std)
        sym = symmetry_of(q.mean)
        matcher = Matcher(
            ScoreTable(OBJECTIVES[objective].features(q, to, sym), sym.identity()), Trace()
        )
        assert (matcher.table.constant() is not None) == quick
        assert matcher.forward() == pytest.approx(matcher.table.total(), rel=1e-12)


@pytest.mark.fast
def test_the_clock_of_the_trace_starts_with_the_call():
    q, to = (gaussian(mlp_shapes((8, 8)), seed) for seed in (0, 1))
    found = align(q, to=to, symmetry=mlp_symmetry(q.mean))
    assert len(found.trace_seconds) == len(found.trace)
    assert 0 < found.trace_seconds[0] <= found.trace_seconds[-1] <= found.seconds
    assert (np.diff(found.trace_seconds) >= 0).all()


@pytest.mark.fast
def test_sweeps_may_run_out():
    shapes = mlp_shapes((30, 30, 30))
    q, to = gaussian(shapes, 0), gaussian(shapes, 1)
    found = align(q, to=to, symmetry=mlp_symmetry(q.mean), starts=("identity",), max_sweeps=1)
    assert not found.converged
    assert found.sweeps == 1


@pytest.mark.fast
def test_aligned_posteriors_stay_aligned(x64):
    """Draws of one chain are similar: the start must not separate them."""
    shapes = mlp_shapes((20, 20))
    to = gaussian(shapes, 0)
    noise = random_like(shapes, 7, 0.02)
    q = MeanField(jax.tree.map(jnp.add, to.mean, noise), to.std)
    sym = mlp_symmetry(q.mean)
    assert align(q, to=to, symmetry=sym).permutation == sym.identity()


def test_a_group_on_both_axes_of_an_array(x64):
    """A recurrent layer: planted permutations are found, and no step lowers the score."""
    for seed in range(4):
        to = gaussian(RECURRENT, seed)
        sym = Symmetry.by_hand(to.mean, RECURRENT_GROUPS)
        assert sym.groups[0].quadratic
        planted = sym.random(key=jax.random.key(seed))
        found = align(sym.act(planted, to), to=to, symmetry=sym)
        assert same_tree(found.posterior, to)
        q = gaussian(RECURRENT, seed + 100)
        random: list[StartName] = ["random"] * 4
        starts = ("identity", "forward", *random)
        loose = align(q, to=to, symmetry=sym, starts=starts, key=jax.random.key(seed))
        assert (np.diff(loose.trace) > 0).all()
        best = best_score(OBJECTIVES["w2"].features(q, to, sym), sym)
        assert loose.score <= best + 1e-9
        table = ScoreTable(OBJECTIVES["w2"].features(q, to, sym), loose.permutation)
        assert loose.score == pytest.approx(table.total(), rel=1e-12)


def test_flattened_channels_and_several_moving_axes(x64):
    """Places with several positions per unit, and a leaf on which three groups meet."""
    shapes = {"conv": (3, 3, 2, 4), "dense": (4 * 4, 6), "mix": (4, 6, 5), "head": (5, 2)}
    to = gaussian(shapes, 0)
    sym = Symmetry.by_hand(
        to.mean,
        {
            "channels": [("conv", 3), ("dense", 0, (4, 1)), ("mix", 0)],
            "hidden": [("dense", 1), ("mix", 1)],
            "last": [("mix", 2), ("head", 0)],
        },
    )
    for seed in range(5):
        planted = sym.random(key=jax.random.key(seed))
        found = align(sym.act(planted, to), to=to, symmetry=sym)
        assert same_tree(found.posterior, to)
        assert found.permutation == sym.inverse(planted)
        q = gaussian(shapes, seed + 10)
        other = align(q, to=to, symmetry=sym)
        table = ScoreTable(OBJECTIVES["w2"].features(q, to, sym), other.permutation)
        assert (np.diff(other.trace) > 0).all()
        assert other.score == pytest.approx(table.total(), rel=1e-12)


@pytest.mark.parametrize("anchor", [0.0, 0.5])
def test_frank_wolfe_is_never_worse_and_often_better(x64, anchor):
    shapes = mlp_shapes((10, 10, 10))
    better = 0
    for seed in range(10):
        q, to = gaussian(shapes, seed), gaussian(shapes, seed + 100)
        sym = mlp_symmetry(q.mean)
        plain = align(q, to=to, symmetry=sym)
        found = align(q, to=to, symmetry=sym, search=FrankWolfe(steps=30, anchor=anchor))
        assert found.score >= plain.score
        assert (np.diff(found.trace) > 0).all()
        assert found.trace[-1] == found.score
        table = ScoreTable(OBJECTIVES["w2"].features(q, to, sym), found.permutation)
        assert found.score == pytest.approx(table.total(), rel=1e-12)
        better += found.score > plain.score + 1e-9
    assert better >= 3


def test_low_rank_log_density_is_exact_and_rises(x64):
    shapes = mlp_shapes((6, 5))
    base = gaussian(shapes, 0)
    factors = jax.tree.map(lambda *f: jnp.stack(f), *(random_like(shapes, s) for s in (7, 8, 9)))
    to = LowRank(base.mean, positive_like(shapes, 4), factors)
    sym = mlp_symmetry(base.mean)
    objective = LowRankLogDensity()
    rises = 0
    for seed in range(3):
        point = to.sample(key=jax.random.key(seed))
        planted = sym.act(sym.random(key=jax.random.key(seed + 50)), point)
        full = align(planted, to=to, symmetry=sym, objective=objective)
        for params in (planted, full.posterior):
            direct = -float(to.log_prob(params))
            assert objective.measure(params, to, sym) == pytest.approx(direct, rel=1e-10)
        assert (np.diff(full.trace) > 0).all()
        assert full.score == pytest.approx(-full.distance_after, rel=1e-12)
        marginal = align(planted, to=to, symmetry=sym, objective="log-density")
        rises += full.score > float(to.log_prob(marginal.posterior)) + 1e-6
    assert rises >= 1
    with pytest.raises(ValueError, match="needs a LowRank target"):
        align(base.mean, to=base, symmetry=sym, objective=objective)


@pytest.mark.fast
def test_given_permutation_is_not_changed():
    shapes = mlp_shapes((5, 5))
    q, to = gaussian(shapes, 0), gaussian(shapes, 1)
    sym = mlp_symmetry(q.mean)
    given = sym.random(key=jax.random.key(8))
    copy = Permutation({name: given[name].copy() for name in given})
    align(q, to=to, symmetry=sym, starts=(given,))
    assert given == copy


@pytest.mark.fast
def test_arguments_that_do_not_fit_the_symmetry_are_refused():
    q, to = gaussian(mlp_shapes((6, 5)), 0), gaussian(mlp_shapes((6, 5)), 1)
    sym = mlp_symmetry(q.mean)
    wide = mlp_symmetry(gaussian(mlp_shapes((6, 4)), 0).mean)
    with pytest.raises(ValueError, match=r"not those of this symmetry: leaf 'Dense_1/kernel'"):
        align(q, to=to, symmetry=wide)
    more = MeanField({**q.mean, "extra": jnp.ones(3)}, {**q.std, "extra": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"not those of this symmetry: .*'extra'"):
        align(more, to=more, symmetry=sym)
    with pytest.raises(ValueError, match="does not belong to this symmetry: group 'hidden_1'"):
        align(q, to=to, symmetry=sym, starts=(wide.identity(),))
    with pytest.raises(ValueError, match="a stack of them"):
        align(q, to=to, symmetry=sym, starts=(stack([sym.identity()] * 2),))
    with pytest.raises(ValueError, match="there is no start '3'"):
        align(q, to=to, symmetry=sym, starts=(3,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"search is True; give FrankWolfe\(\)"):
        align(q, to=to, symmetry=sym, search=True)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a NoneType is not an objective"):
        align(q, to=to, symmetry=sym, objective=None)  # pyright: ignore[reportArgumentType]
    alone = align(q, to=to, symmetry=sym, starts=sym.identity())
    assert alone.permutation == align(q, to=to, symmetry=sym, starts=("identity",)).permutation


@pytest.mark.fast
@pytest.mark.parametrize("widths", [(0, 3), (4, 0), (1, 1)])
def test_groups_of_no_unit_or_one(widths):
    q, to = gaussian(mlp_shapes(widths), 0), gaussian(mlp_shapes(widths), 1)
    sym = mlp_symmetry(q.mean)
    found = align(q, to=to, symmetry=sym)
    assert found.converged
    assert found.distance_after <= found.distance_before * (1 + 1e-6)
    assert len(align_many([q, to, q], symmetry=sym).permutations) == 3


def test_groups_that_share_an_axis(x64):
    """Heads × units on one axis, and concatenated groups."""
    sym = Symmetry(
        {
            "w": (Product((Units("a", 3), Units("b", 4))), Fixed(5)),
            "u": (Concat((Units("b", 4), Units("a", 3), Fixed(2))), Units("c", 6)),
            "v": (Units("a", 3), Fixed(2)),
            "t": (Units("c", 6),),
        }
    )
    shapes = {"w": (12, 5), "u": (9, 6), "v": (3, 2), "t": (6,)}
    for seed in range(5):
        q, to = gaussian(shapes, seed), gaussian(shapes, seed + 10)
        pair = OBJECTIVES["w2"].features(q, to, sym)
        table = ScoreTable(pair, sym.random(key=jax.random.key(seed)))
        for name in ("a", "b", "c", "a", "b"):
            matrix = table.scores(name)
            n = len(matrix)
            rest = []
            for p in permutations(range(min(n, 4))):
                moved = np.array([*p, *range(len(p), n)])
                score = table.total({**table.indices, name: moved})
                rest.append(score - matrix[np.arange(n), moved].sum())
            assert np.ptp(rest) <= 1e-10 * np.abs(matrix).sum(), name
            table.indices[name] = np.roll(table.indices[name], 1)
        found = align(q, to=to, symmetry=sym, starts=STARTS, key=jax.random.key(seed))
        assert (np.diff(found.trace) > 0).all()
        assert found.score == pytest.approx(ScoreTable(pair, found.permutation).total(), rel=1e-12)
        planted = sym.random(key=jax.random.key(seed + 1))
        back = align(
            sym.act(planted, to), to=to, symmetry=sym, starts=STARTS, key=jax.random.key(1)
        )
        assert same_tree(back.posterior, to)
