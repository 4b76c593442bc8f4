"""Joint alignment: planted frames, a decreasing dispersion, log-density, kinds of members."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import gaussian, mlp_shapes, mlp_symmetry, random_like, same_tree
from onebasin.alignment import Objective, align, align_many
from onebasin.alignment.joint import _JointDescent
from onebasin.alignment.members import Match
from onebasin.posterior import MeanField, Samples
from onebasin.symmetry import stack
from onebasin.trees import stack_trees

SHAPES = mlp_shapes((14, 11))


def scattered(count, noise, seed=0):
    """Noisy copies of one network, each under a permutation of its own."""
    base = random_like(SHAPES, seed)
    sym = mlp_symmetry(base)
    planted, members = [], []
    for i in range(count):
        near = jax.tree.map(lambda a, b: a + noise * b, base, random_like(SHAPES, seed + 1 + i))
        planted.append(sym.random(key=jax.random.key(i)))
        members.append(sym.act(planted[-1], near))
    return members, planted, sym


def in_one_frame(found, planted, sym):
    """How many members are in the frame of the first, counting the planted permutations."""
    frames = [sym.compose(p, q) for p, q in zip(found.permutations, planted, strict=True)]
    return sum(frame == frames[0] for frame in frames)


def dispersion(trees):
    return float(sum(jnp.sum(jnp.var(leaf, 0)) for leaf in jax.tree.leaves(stack_trees(trees))))


@pytest.mark.parametrize("count", [2, 3, 12])
@pytest.mark.parametrize("objective", ["l2", "log-density"])
def test_planted_frames_are_found(x64, count, objective):
    members, planted, sym = scattered(count, 0.3)
    found = align_many(members, symmetry=sym, objective=objective)
    assert in_one_frame(found, planted, sym) == count
    assert found.converged
    assert (np.diff(found.trace) >= 0).all()
    if objective == "l2":
        assert -found.trace[-1] == pytest.approx(dispersion(found.posteriors), rel=1e-10)
    mean = jax.tree.map(lambda *leaves: sum(leaves) / count, *found.posteriors)
    for a, b in zip(jax.tree.leaves(found.barycenter.mean), jax.tree.leaves(mean), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("count", [5, 10])
def test_the_dispersion_decreases_for_members_that_share_little(x64, count):
    members, _, sym = scattered(count, 2.0)
    found = align_many(members, symmetry=sym, objective="l2")
    assert (np.diff(found.trace) >= 0).all()
    assert -found.trace[-1] == pytest.approx(dispersion(found.posteriors), rel=1e-10)
    assert -found.trace[-1] < dispersion(members)
    assert -found.trace[-1] < -found.trace[0]
    again = align_many(members, symmetry=sym, objective="l2")
    assert again.permutations == found.permutations


@pytest.mark.parametrize("seed", [40, 60, 80])
def test_the_start_matters(x64, monkeypatch, seed):
    """Noisy members: from the identity, the rounds to the barycentre end in a worse optimum."""
    members, _, sym = scattered(12, 1.0, seed)
    found = align_many(members, symmetry=sym, objective="l2")
    assert -found.trace[0] < 0.75 * dispersion(members)

    def unmatched(self, anchor, which):
        return {i: Match(self.indices[i], 0.0) for i in which}

    monkeypatch.setattr(_JointDescent, "_match_to", unmatched)
    from_identity = align_many(members, symmetry=sym, objective="l2")
    assert -from_identity.trace[0] == pytest.approx(dispersion(members), rel=1e-10)
    assert -from_identity.trace[-1] > 1.1 * -found.trace[-1]


def test_draws_are_moved_as_samples(x64):
    members, planted, sym = scattered(12, 0.3, seed=40)
    draws = as_samples(members)
    found = align_many(draws, symmetry=sym, objective="l2")
    assert in_one_frame(found, planted, sym) == 12
    assert isinstance(found.posteriors, Samples)
    assert same_tree(found.posteriors, sym.act(found.stacked, draws))
    assert found.stacked == stack(list(found.permutations))
    mean, std = found.posteriors.moments()
    assert same_tree(found.barycenter, MeanField(mean, std))


@pytest.mark.fast
def test_posteriors_with_std(x64):
    """W₂: the barycentre of Gaussians averages means and standard deviations."""
    base = gaussian(SHAPES, 0)
    sym = mlp_symmetry(base.mean)
    members = [sym.act(sym.random(key=jax.random.key(i)), base) for i in range(3)]
    found = align_many(members, symmetry=sym)
    assert found.trace[-1] == pytest.approx(0, abs=1e-9)
    for moved in found.posteriors:
        assert same_tree(moved, found.posteriors[0])
    np.testing.assert_allclose(
        found.barycenter.std["Dense_0"]["kernel"],
        found.posteriors[0].std["Dense_0"]["kernel"],
        rtol=1e-12,
    )


def test_two_members_are_aligned_as_well_as_a_pair(x64):
    q, to = gaussian(SHAPES, 3), gaussian(SHAPES, 4)
    sym = mlp_symmetry(q.mean)
    found = align_many([to, q], symmetry=sym)
    pair = align(q, to=to, symmetry=sym)
    # V = ½ Σᵢ ‖fᵢ − f̄‖² = W₂²/4
    assert -4 * found.trace[-1] <= pair.distance_after * (1 + 1e-12)


def test_log_density_beats_l2_under_the_compact_gaussian(x64):
    """Coordinates of very different variance: the Gaussian knows which of them to trust."""
    base = random_like(SHAPES, 0)
    scale = jax.tree.map(lambda a: jnp.exp(1.5 * a), random_like(SHAPES, 1))
    sym = mlp_symmetry(base)
    members = []
    for i in range(40):
        noise = random_like(SHAPES, 10 + i)
        near = jax.tree.map(lambda b, s, e: b + 0.4 * s * e, base, scale, noise)
        members.append(sym.act(sym.random(key=jax.random.key(i)), near))
    draws = as_samples(members)

    by_l2 = align_many(draws, symmetry=sym, objective="l2")
    by_density = align_many(draws, symmetry=sym, objective="log-density")
    assert len(by_density.trace) > 1
    assert (np.diff(by_density.trace) > 0).all()
    before, after = floored_log_density(by_l2), floored_log_density(by_density)
    assert after > before
    assert by_density.trace[0] == pytest.approx(before, rel=1e-12)


def floored_log_density(found):
    """The mean log-density of the draws under their own Gaussian, with variances of at least a
    thousandth of their leaf's mean variance."""
    total = 0.0
    for leaf in jax.tree.leaves(found.posteriors.draws):
        draws = np.asarray(leaf, np.float64)
        variance = draws.var(axis=0)
        floored = np.maximum(variance, 1e-3 * variance.mean())
        squares = (draws - draws.mean(axis=0)) ** 2
        terms = squares / floored + np.log(2 * np.pi * floored)
        total -= 0.5 * terms.mean(axis=0).sum()
    return total


def as_samples(members):
    return Samples(stack_trees(members))


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-4])
def test_the_log_density_of_similar_draws_survives_single_precision(noise):
    members, _, sym = scattered(12, noise)
    assert jax.tree.leaves(members[0])[0].dtype == jnp.float32
    found = align_many(as_samples(members), symmetry=sym, objective="log-density")
    assert found.trace[-1] == pytest.approx(floored_log_density(found), rel=1e-10)


@pytest.mark.parametrize("value", [0.0, 0.1, 10.0, 1000.0])
def test_leaves_that_are_equal_in_all_draws_are_harmless(value):
    members, _, sym = scattered(12, 0.3)
    for q in members:
        q["Dense_0"]["bias"] = jnp.full_like(q["Dense_0"]["bias"], value)
    found = align_many(as_samples(members), symmetry=sym, objective="log-density")
    assert np.isfinite(found.trace).all()
    # A leaf without information about the units does not change their permutation.
    for q in members:
        q["Dense_0"]["bias"] = jnp.zeros_like(q["Dense_0"]["bias"])
    without = align_many(as_samples(members), symmetry=sym, objective="log-density")
    assert found.permutations == without.permutations


def test_equal_members_are_brought_together():
    (q,), _, sym = scattered(1, 0.3)
    copies = [sym.act(sym.random(key=jax.random.key(i)), q) for i in range(4)]
    found = align_many(copies, symmetry=sym, objective="log-density")
    assert found.converged
    assert all(same_tree(moved, found.posteriors[0]) for moved in found.posteriors)


@pytest.mark.parametrize("objective", ["w2", "l2", "log-density"])
def test_points_and_posteriors_together(objective, x64):
    members, _, sym = scattered(4, 0.1)
    std = jax.tree.map(lambda a: jnp.full_like(a, 0.2), members[0])
    mixed = [MeanField(members[0], std), MeanField(members[1], std), *members[2:]]
    by_means = align_many(members, symmetry=sym, objective="l2")
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        found = align_many([mixed[i] for i in order], symmetry=sym, objective=objective)
        frame = [sym.act(p, members[i]) for p, i in zip(found.permutations, order, strict=True)]
        assert dispersion(frame) == pytest.approx(-by_means.trace[-1], rel=1e-9)
        # Points have no std: half of that of the two posteriors is left on average.
        assert jax.tree.leaves(found.barycenter.std)[0] == pytest.approx(0.1)


def test_single_draws_are_points(x64):
    members, _, sym = scattered(4, 0.1)
    single = [Samples(jax.tree.map(lambda a: a[None], q)) for q in members]
    by_draws = align_many(single, symmetry=sym)
    by_params = align_many(members, symmetry=sym)
    assert by_draws.permutations == by_params.permutations
    assert same_tree(by_draws.barycenter, by_params.barycenter)


def test_a_custom_objective_is_used_on_points_too(x64):
    def signs(q):
        return ({k: np.sign(m) for k, m in q.mean.items()},)

    own = Objective("signs", target=signs, mover=signs, has_barycentre=True)
    members, _, sym = scattered(5, 1.0)
    by_signs = align_many(members, symmetry=sym, objective=own)
    signed = [jax.tree.map(jnp.sign, q) for q in by_signs.posteriors]
    assert by_signs.trace[-1] == pytest.approx(-dispersion(signed), rel=1e-12)


@pytest.mark.fast
def test_invalid_arguments_are_refused():
    members, _, sym = scattered(3, 0.3)
    with pytest.raises(ValueError, match=r"'kl' has no barycentre; use w2, l2 or log-density"):
        align_many(members, symmetry=sym, objective="kl")
    with pytest.raises(ValueError, match="takes a list"):
        align_many([], symmetry=sym)
    foreign = mlp_symmetry(random_like(mlp_shapes((14, 12)), 0))
    with pytest.raises(ValueError, match=r"not those of this symmetry: .*Dense_1/kernel"):
        align_many(members, symmetry=foreign)
    other = random_like(mlp_shapes((14, 12)), 0)
    with pytest.raises(ValueError, match=r"posterior 2: .*leaf 'Dense_1/bias'"):
        align_many([*members[:2], other], symmetry=sym)
    bad = jax.tree.map(lambda m: m.at[0].set(jnp.nan), members[0])
    with pytest.raises(ValueError, match=r"posterior 1: .*NaN or infinity in leaf 'Dense_0/bias'"):
        align_many([members[0], bad], symmetry=sym)


@pytest.mark.fast
def test_one_member_alone():
    members, _, sym = scattered(1, 0.3)
    found = align_many(members, symmetry=sym, objective="l2")
    assert found.permutations == (sym.identity(),)
    assert found.converged
