"""Every score against the definition of the distance it stands for."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import gaussian, mlp_shapes, mlp_symmetry, random_like
from onebasin.alignment import Objective, align
from onebasin.alignment import moments as moments_module
from onebasin.alignment.moments import read
from onebasin.alignment.objective import OBJECTIVES, objective_named
from onebasin.alignment.scores import ScoreTable
from onebasin.posterior import LowRank, MeanField, Mixture, Posterior, Samples
from onebasin.symmetry import Permutation, Symmetry

SHAPES = mlp_shapes((4, 6))


class Bare(NamedTuple):
    """A user's own posterior, of a kind without weak references."""

    mean: Any
    std: Any

    @property
    def like(self):
        return self.mean

    def moments(self):
        return self.mean, self.std

    def sample(self, count=None, *, key):
        return MeanField(self.mean, self.std).sample(count, key=key)

    def states(self, count=None, *, key):
        del count, key

    def relabel(self, move, move_state=None):
        del move_state
        return Bare(move(self.mean, 0), move(self.std, 0))


def flat(tree):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def normal_kl(m, s, m0, s0):
    return np.sum(np.log(s0 / s) + (s**2 + (m - m0) ** 2) / (2 * s0**2) - 0.5)


# The distance of N(m, s²) from N(m0, s0²), written out on flat vectors, and the multiple of the
# score that it contains.
DEFINITIONS = {
    "w2": (lambda m, s, m0, s0: np.sum((m - m0) ** 2) + np.sum((s - s0) ** 2), 2),
    "l2": (lambda m, s, m0, s0: np.sum((m - m0) ** 2), 2),
    "kl": (normal_kl, 1),
    "reverse-kl": (lambda m, s, m0, s0: normal_kl(m0, s0, m, s), 1),
    "kl-reduced": (lambda m, s, m0, s0: np.sum((m - m0) ** 2 / s0**2), 2),
    "log-density": (
        lambda m, s, m0, s0: np.sum(0.5 * (m - m0) ** 2 / s0**2 + 0.5 * np.log(2 * np.pi * s0**2)),
        1,
    ),
}


@pytest.mark.fast
@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_score_is_the_distance_up_to_a_constant(x64, name):
    define, factor = DEFINITIONS[name]
    q, to = gaussian(SHAPES, 0), gaussian(SHAPES, 1)
    sym = mlp_symmetry(q.mean)
    objective = OBJECTIVES[name]
    table = ScoreTable(objective.features(q, to, sym), sym.identity())
    constants = []
    for seed in range(5):
        p = sym.random(key=jax.random.key(seed))
        moved = sym.act(p, q)
        direct = define(*map(flat, (moved.mean, moved.std, to.mean, to.std)))
        # float64 sums over some hundred terms
        assert objective.measure(moved, to, sym) == pytest.approx(direct, rel=1e-12)
        constants.append(direct + factor * table.total(p.indices))
    assert np.ptp(constants) <= 1e-10 * abs(constants[0])


@pytest.mark.fast
@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_score_matrix_is_the_change_of_the_score(x64, name):
    """S[i, p[i]] sums to the score, up to what no permutation of the group changes."""
    q, to = gaussian(SHAPES, 2), gaussian(SHAPES, 3)
    sym = mlp_symmetry(q.mean)
    start = sym.random(key=jax.random.key(9))
    table = ScoreTable(OBJECTIVES[name].features(q, to, sym), start)
    for group in sym.groups:
        matrix = table.scores(group.name)
        rest = []
        for seed in range(4):
            p = np.random.default_rng(seed).permutation(group.size)
            score = table.total({**table.indices, group.name: p})
            rest.append(score - matrix[np.arange(group.size), p].sum())
        assert np.ptp(rest) <= 1e-9 * np.abs(matrix).sum()


@pytest.mark.fast
def test_updated_scores_are_those_made_afresh(x64):
    q, to = gaussian(SHAPES, 2), gaussian(SHAPES, 3)
    sym = mlp_symmetry(q.mean)
    pair = OBJECTIVES["w2"].features(q, to, sym)
    table = ScoreTable(pair, sym.identity())
    for seed in range(6):
        for group in sym.groups:
            table.scores(group.name)
        name = sym.groups[seed % 2].name
        swapped = table.indices[name].copy()
        swapped[:2] = swapped[1::-1]
        table.indices[name] = swapped if seed < 4 else swapped[::-1].copy()
    fresh = ScoreTable(pair, table.permutation())
    for group in sym.groups:
        np.testing.assert_allclose(
            table.scores(group.name), fresh.scores(group.name), rtol=0, atol=1e-12
        )


def reflected(mean0, std0):
    """The 2-D case of the appendix of Rossi et al.: q₁ is the reflection of q₀ at y = x."""
    tree = lambda v: {"w": jnp.asarray(v)}
    q0 = MeanField(tree(mean0), tree(std0))
    q1 = MeanField(tree(mean0[::-1]), tree(std0[::-1]))
    return q0, q1, Symmetry.by_hand(q0.mean, {"axes": [("w", 0)]})


@pytest.mark.fast
def test_kl_against_w2_in_two_dimensions(x64):
    """Means on the diagonal: only the standard deviations distinguish the axes.

    W₂ and the exact KL undo the reflection; the reduced KL cannot, and stays at the identity.
    """
    q0, q1, sym = reflected([1.0, 1.0], [0.3, 1.5])
    swap = Permutation({"axes": np.array([1, 0])})
    for name in ("w2", "kl", "reverse-kl"):
        found = align(q1, to=q0, symmetry=sym, objective=name)
        assert found.permutation == swap, name
        assert found.distance_before > 0.5
        assert found.distance_after == pytest.approx(0, abs=1e-12)
    reduced = align(q1, to=q0, symmetry=sym, objective="kl-reduced")
    assert reduced.permutation == sym.identity()
    assert reduced.distance_before == reduced.distance_after == 0
    # Off the diagonal the means decide and all four agree.
    q0, q1, sym = reflected([1.0, -1.0], [0.3, 1.5])
    for name in ("w2", "kl", "reverse-kl", "kl-reduced"):
        assert align(q1, to=q0, symmetry=sym, objective=name).permutation == swap, name


@pytest.mark.fast
def test_points_and_posteriors(x64):
    q, to = gaussian(SHAPES, 4), gaussian(SHAPES, 5)
    sym = mlp_symmetry(q.mean)
    point = random_like(SHAPES, 6)
    by_params = align(point, to=to.mean, symmetry=sym, objective="l2")
    one_draw = Samples(jax.tree.map(lambda leaf: leaf[None], point))
    by_draw = align(one_draw, to=to, symmetry=sym, objective="l2")
    assert by_params.permutation == by_draw.permutation
    assert isinstance(by_draw.posterior, Samples)
    assert by_params.distance_after == pytest.approx(by_draw.distance_after)
    # A point has no standard deviations, so w2 scores its mean only.
    assert align(point, to=to, symmetry=sym).permutation == by_params.permutation
    for posterior in (
        q,
        LowRank(q.mean, q.std, jax.tree.map(lambda m: 0.1 * jnp.stack([m, m**2]), q.mean)),
        Samples(jax.tree.map(lambda m: jnp.stack([m, m + 0.1, 0.9 * m]), q.mean)),
    ):
        found = align(posterior, to=to, symmetry=sym)
        assert type(found.posterior) is type(posterior)
        assert found.distance_after <= found.distance_before


@pytest.mark.fast
def test_invalid_arguments_are_refused():
    q, to = gaussian(SHAPES, 4), gaussian(SHAPES, 5)
    sym = mlp_symmetry(q.mean)
    with pytest.raises(ValueError, match="no objective 'w3'; use one of w2"):
        align(q, to=to, symmetry=sym, objective="w3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"Mixture.*align_many"):
        align(Mixture((q, to), jnp.array([0.5, 0.5])), to=to, symmetry=sym)
    with pytest.raises(ValueError, match="single point; use 'l2', 'w2' or 'log-density', or"):
        align(q.mean, to=to, symmetry=sym, objective="kl")
    with pytest.raises(ValueError, match="single point; use 'l2' or 'w2', or"):
        align(q, to=to.mean, symmetry=sym, objective="log-density")
    lopsided = replace(OBJECTIVES["w2"], name="lopsided", mover=lambda q: (q.mean,))
    with pytest.raises(ValueError, match="'lopsided' has 2 features of the target and 1 of the"):
        align(q, to=to, symmetry=sym, objective=lopsided)
    # A MeanField refuses such values when it is made; Bare stands for posteriors that do not.
    flat_std = Bare(q.mean, jax.tree.map(jnp.zeros_like, q.std))
    with pytest.raises(ValueError, match=r"leaf 'Dense_0/bias'.*not positive"):
        align(q, to=flat_std, symmetry=sym, objective="kl")
    nan = Bare(jax.tree.map(lambda m: m.at[0].set(jnp.nan), q.mean), q.std)
    with pytest.raises(ValueError, match=r"NaN or infinity in leaf 'mean/Dense_0/bias'"):
        align(nan, to=to, symmetry=sym)
    other = gaussian(mlp_shapes((4, 7)), 0)
    with pytest.raises(
        ValueError, match=r"different networks: leaf 'Dense_1/bias'.*\(7,\).*\(6,\)"
    ):
        align(other, to=to, symmetry=sym)
    with pytest.raises(ValueError, match=r"only the target has leaf 'Dense_0/bias'"):
        align({"w": jnp.zeros(3)}, to=to, symmetry=sym)
    with pytest.raises(ValueError, match="needs a key"):
        align(q, to=to, symmetry=sym, starts=("random",))
    with pytest.raises(ValueError, match="a shaken start needs a key"):
        align(q, to=to, symmetry=sym, starts=("auto", "shaken"))
    with pytest.raises(ValueError, match="give another before it"):
        align(q, to=to, symmetry=sym, starts=("shaken",), key=jax.random.key(0))
    with pytest.raises(ValueError, match="no start 'zero'"):
        align(q, to=to, symmetry=sym, starts=("zero",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no order 'up'"):
        align(q, to=to, symmetry=sym, order="up")  # pyright: ignore[reportArgumentType]
    huge = MeanField(jax.tree.map(lambda m: 1e30 * m, q.mean), q.std)
    with pytest.raises(ValueError, match="objective 'kl' exceeds single precision"):
        align(huge, to=huge, symmetry=sym, objective="kl")


@pytest.mark.fast
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("field", ["mean", "std"])
@pytest.mark.parametrize("culprit", ["posterior", "target"])
def test_a_value_that_is_not_finite_is_found_on_either_side(culprit, field, bad):
    # Also where the other side is zero: the two are checked by their product.
    q, to = gaussian(SHAPES, 4), gaussian(SHAPES, 5)
    sym = mlp_symmetry(q.mean)

    def spoilt(posterior, value):
        trees = {"mean": posterior.mean, "std": posterior.std}
        trees[field] = jax.tree.map(lambda a: a.at[0].set(value), trees[field])
        return Bare(**trees)

    sides = {"posterior": spoilt(q, 0.0), "target": spoilt(to, 0.0)}
    sides[culprit] = spoilt(sides[culprit], bad)
    message = f"the {culprit} holds NaN or infinity in leaf '{field}/Dense_0/bias'"
    for objective in ("w2", "l2"):
        with pytest.raises(ValueError, match=message):
            align(sides["posterior"], to=sides["target"], symmetry=sym, objective=objective)
    if culprit == "posterior":  # against a point, which has no standard deviations
        with pytest.raises(ValueError, match=message):
            align(sides["posterior"], to=to.mean, symmetry=sym)


@pytest.mark.fast
def test_a_new_objective_is_one_value(x64):
    q, to = gaussian(SHAPES, 4), gaussian(SHAPES, 5)
    sym = mlp_symmetry(q.mean)
    signs = lambda m: ({leaf: np.sign(v) for leaf, v in m.mean.items()},)
    objective = Objective("signs", target=signs, mover=signs)
    found = align(q, to=to, symmetry=sym, objective=objective)
    assert objective_named(objective) is objective
    assert found.distance_after == pytest.approx(-found.score)
    assert found.distance_after < found.distance_before


@pytest.mark.fast
def test_a_cached_posterior_is_read_again_when_it_changes():
    q, to = gaussian(SHAPES, 4), gaussian(SHAPES, 5)
    sym = mlp_symmetry(q.mean)
    first = align(q, to=to, symmetry=sym)
    assert read(to) is read(to)
    assert align(q, to=to, symmetry=sym).score == first.score
    # Replace a leaf inside the same posterior, as a careless user may.
    to.mean["Dense_0"]["kernel"] = -to.mean["Dense_0"]["kernel"]
    changed = jax.tree.map(jnp.copy, to)
    expected = align(q, to=changed, symmetry=sym).score
    assert expected != first.score
    assert align(q, to=to, symmetry=sym).score == expected
    to.std["Dense_1"]["bias"] = to.std["Dense_1"]["bias"].at[0].set(jnp.nan)
    with pytest.raises(ValueError, match="target holds NaN or infinity in leaf 'std/Dense_1/bias'"):
        align(q, to=to, symmetry=sym)
    # NumPy arrays are mutable, so they are always read.
    loose = MeanField(*(jax.tree.map(np.array, tree) for tree in (q.mean, q.std)))
    before = align(loose, to=changed, symmetry=sym).score
    loose.mean["Dense_0"]["kernel"] *= -1
    assert align(loose, to=changed, symmetry=sym).score != before


@pytest.mark.fast
def test_posteriors_of_any_kind_and_deleted_arrays():
    q, to = gaussian(SHAPES, 4), gaussian(SHAPES, 5)
    sym = mlp_symmetry(q.mean)
    expected = align(q, to=to, symmetry=sym).score
    bare = Bare(to.mean, to.std)
    assert isinstance(bare, Posterior)
    assert align(q, to=bare, symmetry=sym).score == expected
    assert isinstance(align(bare, to=q, symmetry=sym).posterior, Bare)
    to.mean["Dense_0"]["kernel"].delete()
    with pytest.raises(RuntimeError, match="deleted"):
        align(q, to=to, symmetry=sym)


@pytest.mark.fast
def test_the_cache_forgets_a_posterior_that_is_gone():
    q = gaussian(SHAPES, 4)
    mark = id(q)
    read(q)
    assert mark in moments_module._CACHE
    del q
    assert mark not in moments_module._CACHE
