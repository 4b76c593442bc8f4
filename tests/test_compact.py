"""`compact`: planted posteriors recovered, a likelihood that never decreases, ways to rebase."""

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
    random_like,
    relu_mlp,
    same_tree,
)
from compact_cases import covariance, draws_of, flat, permuted
from onebasin.alignment import Activations
from onebasin.alignment.objective import ObjectiveLike
from onebasin.compaction import Rebase, compact
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.symmetry import Symmetry, find_symmetry, stack
from onebasin.trees import stack_trees

SHAPES = mlp_shapes((9, 7))


def planted(count, rank, seed=0):
    """A Gaussian posterior with well separated units, its draws, and the draws permuted."""
    mean = random_like(SHAPES, seed)
    std = jax.tree.map(lambda a: 0.1 + 0.1 * jnp.abs(a), random_like(SHAPES, seed + 1))
    truth = MeanField(mean, std)
    if rank:
        columns = [random_like(SHAPES, seed + 2 + r, scale=0.2) for r in range(rank)]
        truth = LowRank(mean, std, stack_trees(columns))
    draws = Samples(truth.sample(count, key=jax.random.key(seed)))
    symmetry = mlp_symmetry(mean)
    mixed, permutations = permuted(symmetry, draws, seed)
    return truth, draws, mixed, permutations, symmetry


@pytest.mark.parametrize("rank", [0, 2])
def test_a_planted_posterior_is_recovered_from_permuted_draws(x64, rank):
    truth, _, mixed, permutations, symmetry = planted(60, rank)
    found = compact(mixed, symmetry=symmetry, rank=rank)
    assert found.converged
    # All draws end in one frame, which undoes what was planted up to one common permutation.
    frames = symmetry.compose(found.permutations, permutations)
    common = frames.draw(0)
    for name in frames:
        assert (frames[name] == common[name]).all()
    expected = symmetry.act(common, truth)
    sigma = covariance(expected)
    std = np.sqrt(np.diag(sigma))
    error = 4.5 / np.sqrt(60)  # 4.5 standard errors bound the largest of all entries
    assert (np.abs(flat(found.posterior.mean) - flat(expected.mean)) < error * std).all()
    difference = np.abs(covariance(found.posterior) - sigma)
    assert (difference < np.sqrt(2) * error * np.outer(std, std)).all()


@pytest.mark.parametrize(("rank", "rebase"), [(0, "barycentre"), (3, "likelihood")])
def test_permuted_draws_give_the_same_posterior(x64, rank, rebase):
    """q_r of permuted draws is q_r of the draws, up to one common permutation."""
    _, draws, mixed, permutations, symmetry = planted(15, 2, seed=5)
    plain = compact(draws, symmetry=symmetry, rank=rank, rebase=rebase)
    again = compact(mixed, symmetry=symmetry, rank=rank, rebase=rebase)
    frames = symmetry.compose(again.permutations, permutations)
    common = symmetry.compose(frames.draw(0), symmetry.inverse(plain.permutations.draw(0)))
    expected = symmetry.act(common, plain.posterior)
    np.testing.assert_allclose(flat(again.posterior.mean), flat(expected.mean), atol=1e-12)
    np.testing.assert_allclose(covariance(again.posterior), covariance(expected), atol=1e-7)
    assert again.log_likelihood == pytest.approx(plain.log_likelihood, rel=1e-9)


@pytest.mark.parametrize("rank", [0, 3])
def test_the_likelihood_never_decreases(x64, rank):
    """Weights of very different variance: the likelihood is not highest at the barycentre."""
    base = random_like(SHAPES, 0)
    scale = jax.tree.map(lambda a: jnp.exp(1.5 * a), random_like(SHAPES, 1))
    rough = draws_of(25, SHAPES, seed=10)
    draws = Samples(jax.tree.map(lambda b, s, e: b + 0.4 * s * e, base, scale, rough.draws))
    symmetry = mlp_symmetry(base)
    mixed, _ = permuted(symmetry, draws)
    found = compact(mixed, symmetry=symmetry, rank=rank, rebase=Rebase(tolerance=0))
    assert (np.diff(found.trace) >= -1e-12 * abs(found.trace[-1])).all()
    assert found.moves[0] > 0
    assert found.trace[1] > found.trace[0]
    moved = found.samples
    density = [float(found.posterior.log_prob(moved.draw(i))) for i in range(25)]
    assert np.mean(density) == pytest.approx(found.log_likelihood, rel=1e-9)
    start = compact(mixed, symmetry=symmetry, rank=rank, rebase="barycentre")
    assert found.log_likelihood > start.log_likelihood
    unaligned = compact(mixed, symmetry=symmetry, rank=rank, rebase="none")
    assert start.log_likelihood > unaligned.log_likelihood


def test_draws_of_a_chain_stay_together(x64):
    """Where draws are mostly noise, the mean of a chain can be matched; a single draw cannot."""
    base = random_like(SHAPES, 0)
    symmetry = mlp_symmetry(base)
    rough = draws_of(60, SHAPES, seed=10)
    draws = Samples(jax.tree.map(lambda b, e: b + 2.0 * e, base, rough.draws))
    chain = np.repeat([4, 9, 2], 20)
    own = {c: symmetry.random(key=jax.random.key(int(c))) for c in (4, 9, 2)}
    planted_ = stack([own[c] for c in chain])
    mixed = Samples(symmetry.act(planted_, draws).draws, jnp.asarray(chain))
    together = compact(mixed, symmetry=symmetry, rebase="chain")
    frames = symmetry.compose(together.permutations, planted_)
    for name in frames:
        assert (frames[name] == frames[name][0]).all()
    single = compact(mixed, symmetry=symmetry, rebase="barycentre")
    frames = symmetry.compose(single.permutations, planted_)
    assert not all((frames[name] == frames[name][0]).all() for name in frames)
    found = compact(mixed, symmetry=symmetry, rank=3, rebase=Rebase(max_rounds=2))
    assert found.start == max(
        ("chain", "barycentre"),
        key=lambda way: compact(mixed, symmetry=symmetry, rank=3, rebase=way).trace[0],
    )
    # Chains of different files are different, whatever their numbers.
    parts = [Samples(jax.tree.map(lambda a, c=c: a[chain == c], mixed.draws)) for c in (4, 9, 2)]
    apart = compact(parts, symmetry=symmetry, rebase="chain")
    frames = symmetry.compose(apart.permutations, planted_)
    for name in frames:
        assert (frames[name] == frames[name][0]).all()


def test_a_group_on_two_axes_of_one_array(x64):
    base = random_like(RECURRENT, 0)
    symmetry = Symmetry.by_hand(base, RECURRENT_GROUPS)
    rough = draws_of(12, RECURRENT, seed=3)
    draws = Samples(jax.tree.map(lambda b, e: b + 0.5 * e, base, rough.draws))
    found = compact(permuted(symmetry, draws)[0], symmetry=symmetry, rank=2)
    assert (np.diff(found.trace) >= -1e-12 * abs(found.trace[-1])).all()


def test_to_an_anchor_by_weights_and_by_activations(x64):
    base = random_like(SHAPES, 7)
    symmetry = mlp_symmetry(base)
    rough = draws_of(12, SHAPES, seed=20)
    near = Samples(jax.tree.map(lambda b, e: b + 0.02 * e, base, rough.draws))
    mixed, permutations = permuted(symmetry, near)
    x = np.random.default_rng(0).normal(size=(40, 5))
    traced = find_symmetry(relu_mlp, base, x)
    ways: list[tuple[ObjectiveLike, Symmetry]] = [
        ("l2", symmetry),
        (Activations(relu_mlp, x), traced),
    ]
    for objective, own in ways:
        found = compact(mixed, symmetry=own, rebase=Rebase("anchor", anchor=3, objective=objective))
        names = dict(zip([g.name for g in own.groups], permutations, strict=True))
        for name, there in names.items():
            moved = np.take_along_axis(permutations[there], found.permutations[name], axis=1)
            assert (moved == permutations[there][3]).all()
            assert (found.permutations[name][3] == np.arange(own[name].size)).all()


def test_posteriors_move_too(x64):
    base = [gaussian(SHAPES, 0)]
    symmetry = mlp_symmetry(base[0].mean)
    near = [
        MeanField(
            jax.tree.map(lambda m, e: m + 0.2 * e, base[0].mean, random_like(SHAPES, i)),
            base[0].std,
        )
        for i in range(6)
    ]
    mixed = [symmetry.act(symmetry.random(key=jax.random.key(i)), q) for i, q in enumerate(near)]
    for rank in (0, 2):
        found = compact(mixed, symmetry=symmetry, rank=rank)
        assert (np.diff(found.trace) >= -1e-12 * abs(found.trace[-1])).all()
        plain = compact(near, symmetry=symmetry, rank=rank)
        assert found.log_likelihood == pytest.approx(plain.log_likelihood, rel=1e-9)
        for i, moved in enumerate(found.samples):
            assert same_tree(moved, symmetry.act(found.permutations.draw(i), mixed[i]))


def test_running_statistics_move_with_their_units(x64):
    base = random_like(SHAPES, 0)
    state = {"mean": jnp.arange(9.0)}
    symmetry = Symmetry.by_hand(
        base,
        {
            "h": [
                ("Dense_0/kernel", 1),
                ("Dense_0/bias", 0),
                ("Dense_1/kernel", 0),
                ("state:mean", 0),
            ]
        },
        state,
    )
    draws = Samples(
        jax.tree.map(lambda a: jnp.stack([a, a, a]), base),
        state={"mean": jnp.stack([state["mean"]] * 3)},
    )
    mixed, planted_ = permuted(symmetry, draws)
    found = compact(mixed, symmetry=symmetry)
    common = symmetry.compose(found.permutations, planted_).draw(0)
    assert same_tree(found.posterior.state, symmetry.act_on_state(common, state))


@pytest.mark.fast
def test_invalid_arguments_are_refused():
    samples = draws_of(4, SHAPES)
    symmetry = mlp_symmetry(samples.like)
    with pytest.raises(ValueError, match="one draw has no variance to fit a Gaussian to"):
        compact(draws_of(1, SHAPES), symmetry=symmetry)
    with pytest.raises(ValueError, match=r"rank is 4, and 4 members span only 3 .* at most 3"):
        compact(samples, symmetry=symmetry, rank=4)
    with pytest.raises(ValueError, match="rank is -1"):
        compact(samples, symmetry=symmetry, rank=-1)
    with pytest.raises(
        ValueError, match="no way to rebase 'mean'; choose likelihood, contributions"
    ):
        compact(samples, symmetry=symmetry, rebase="mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no draw 4 to be the anchor; give an index below 4"):
        compact(samples, symmetry=symmetry, rebase=Rebase("anchor", anchor=4))
    with pytest.raises(ValueError, match="balance=True needs network and x"):
        compact(samples, symmetry=symmetry, balance=True)
    bad = jax.tree.map(lambda a: a.at[0].set(jnp.nan), samples.draws)
    with pytest.raises(ValueError, match="NaN or infinity in leaf 'Dense_0/bias'"):
        compact(Samples(bad), symmetry=symmetry)
    other = draws_of(4, mlp_shapes((9, 8)))
    with pytest.raises(ValueError, match=r"Samples 1 are of another network: leaf 'Dense_1/bias'"):
        compact([samples, other], symmetry=symmetry)
    with pytest.raises(ValueError, match="the params are not those of this symmetry"):
        compact(other, symmetry=symmetry)
    with pytest.raises(ValueError, match="not a mixture of both"):
        compact([samples, gaussian(SHAPES, 0)], symmetry=symmetry)
    with pytest.raises(ValueError, match="compact takes Samples"):
        compact([], symmetry=symmetry)
