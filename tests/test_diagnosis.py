"""Diagnostics on planted chains, whose answers are known."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import mlp_shapes, mlp_symmetry, random_like, relu_mlp
from onebasin.cli.diagnose import Diagnose, run
from onebasin.diagnosis import align_draws, diagnose, scramble, to_arviz
from onebasin.diagnosis.connectivity import choose_pairs
from onebasin.diagnosis.geometry import geometry
from onebasin.diagnosis.weights import folded_share, folding_ratio, series
from onebasin.networks import MLP, to_config
from onebasin.posterior import Samples, load, save
from onebasin.symmetry import stack
from onebasin.trees import leaves_by_path

KEY = jax.random.key(0)
SHAPES = mlp_shapes((8, 6))
MODE = random_like(SHAPES, 7)
SYMMETRY = mlp_symmetry(MODE)
CHAINS, DRAWS = 4, 30
CHAIN = np.repeat(np.arange(CHAINS), DRAWS)


def planted(std=0.1, seed=0):
    """Independent draws around one mode; every chain then permuted as a whole."""
    rng = np.random.default_rng(seed)
    draws = jax.tree.map(
        lambda m: m + std * rng.normal(size=(CHAINS * DRAWS, *m.shape)).astype(np.float32), MODE
    )
    moves = [SYMMETRY.random(key=jax.random.fold_in(KEY, c)) for c in range(CHAINS)]
    return SYMMETRY.act(stack([moves[c] for c in CHAIN]), Samples(draws, jnp.asarray(CHAIN)))


@pytest.fixture(scope="module")
def found():
    x = np.random.default_rng(1).normal(size=(50, 5)).astype(np.float32)
    y = np.asarray(relu_mlp(MODE, x).argmax(-1))
    return diagnose(
        planted(), symmetry=SYMMETRY, key=KEY, network=relu_mlp, data=(x, y), pairs=6, points=5
    )


def test_chains_of_one_mode_agree_once_they_are_aligned(found):
    before, after, null = found.before, found.after, found.null
    assert np.median(before.weights.rhat) > 2
    # Independent draws: as R-hat of 4 chains of 30 independent draws is (up to about 1.07).
    assert np.quantile(after.weights.rhat, 0.95) < 1.09
    assert np.median(after.weights.ess) > 0.7 * CHAINS * DRAWS
    # The null has no mode to find: alignment helps it, and hardly.
    assert np.median(null.weights.rhat) > 1.5
    assert np.median(null.weights.rhat) < np.median(before.weights.rhat)
    np.testing.assert_allclose(np.median(after.sigma), 0.1, rtol=0.05)
    assert np.median(before.sigma) > 0.4
    # Independent draws of one law: the variance between chains is (chains − 1)/(draws − 1).
    expected = after.geometry.between_expected
    assert expected == 3 / 119
    assert after.geometry.between == pytest.approx(expected, rel=0.2)
    assert found.between_expected == pytest.approx(expected, rel=0.2)
    assert before.geometry.between > 0.9
    # Barriers: high between unaligned chains, after alignment as within a chain.
    across = found.after.across.barrier.mean()
    assert found.before.across.barrier.mean() > 0.5
    assert across < found.within.barrier.mean() + 0.1
    assert found.effective == pytest.approx(120, rel=0.2)
    assert after.not_unimodal == 0  # normal draws have a ratio of 0.36, far above ¼
    summary = json.loads(json.dumps(found.summary()))
    assert summary["after"]["rhat"]["0.5"] < summary["null"]["rhat"]["0.5"]
    medians = summary["median_rhat_by_leaf"]
    assert list(medians) == list(leaves_by_path(MODE))
    own = found.before.weights.rhat[8:48]  # after the eight of Dense_0/bias
    assert medians["Dense_0/kernel"]["before"] == pytest.approx(np.median(own))
    assert "across chains, after" in found.table()


def test_per_chain_recovers_the_planted_mode():
    samples = planted()
    by_chain = align_draws(samples, symmetry=SYMMETRY, per="chain")
    by_draw = align_draws(samples, symmetry=SYMMETRY, per="draw")
    # Both are the mode up to one permutation of all, so their draws are equally spread.
    for moved in (by_chain, by_draw):
        _, std = moved.moments()
        for leaf in jax.tree.leaves(std):
            np.testing.assert_allclose(leaf, 0.1, rtol=0.25)
    with pytest.raises(ValueError, match="per draw or per chain"):
        align_draws(samples, symmetry=SYMMETRY, per="weight")  # pyright: ignore[reportArgumentType]


@pytest.mark.fast
def test_the_null_keeps_series_and_coordinates_and_loses_units():
    samples = planted()
    null = scramble(samples, symmetry=SYMMETRY, key=KEY)
    first, moved = (np.asarray(s.draws["Dense_0"]["kernel"]) for s in (samples, null))
    for c in range(CHAINS):
        own = np.isin(CHAIN, c)
        for pixel in range(5):
            # The series of one input's weights are the same set, in another order of units.
            a, b = first[own, pixel].T, moved[own, pixel].T
            assert {tuple(row) for row in a} == {tuple(row) for row in b}
    # In no chain do all inputs' weights follow one permutation of units.
    order = [[np.flatnonzero(first[0, p] == v)[0] for v in moved[0, p]] for p in range(5)]
    assert len({tuple(o) for o in order}) > 1
    # What belongs to no unit stays.
    np.testing.assert_array_equal(null.draws["Dense_2"]["bias"], samples.draws["Dense_2"]["bias"])
    # Between hidden layers entries move among both.
    a, b = (np.sort(s.draws["Dense_1"]["kernel"][0].ravel()) for s in (samples, null))
    np.testing.assert_array_equal(a, b)
    # A convolution's channels, flattened into a dense layer: the place keeps its pixel.
    from onebasin.symmetry import Symmetry

    leaf = jnp.arange(24.0).reshape(1, 12, 2)
    flat = Symmetry.by_hand({"k": leaf[0]}, {"c": [("k", 0, (4, 1))]})
    got = np.asarray(scramble(Samples({"k": leaf}), symmetry=flat, key=KEY).draws["k"])
    pixels = leaf.reshape(4, 3, 2)
    np.testing.assert_array_equal(np.sort(got.reshape(4, 3, 2), 1), pixels)


def test_projections_are_those_of_a_dense_principal_component_analysis(x64):
    rng = np.random.default_rng(0)
    draws = {
        "a": jnp.asarray(rng.normal(size=(20, 3, 2))),
        "b": jnp.asarray(rng.normal(size=(20, 4))),
    }
    chain = np.repeat([0, 1], 10)
    got = geometry(Samples(draws, chain), directions=3)
    dense = np.concatenate([np.asarray(leaf).reshape(20, -1) for leaf in draws.values()], axis=1)
    centred = dense - dense.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    scores = centred @ vectors[:, ::-1][:, :3]
    np.testing.assert_allclose(np.abs(got.scores), np.abs(scores), atol=1e-9)
    np.testing.assert_allclose(got.explained, values[::-1][:3] / values.sum(), rtol=1e-9)
    assert (got.scores[np.abs(got.scores).argmax(0), range(3)] > 0).all()
    means = np.stack([dense[chain == c].mean(0) - dense.mean(0) for c in (0, 1)])
    assert got.between == pytest.approx(10 * (means**2).sum() / (centred**2).sum(), rel=1e-9)


@pytest.mark.fast
def test_draws_that_a_chain_repeats_count_once_for_the_directions(x64):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(8, 5))
    # Draw 2 is repeated in its chain; draw 4, the first of the second chain, equals the last of the
    # first: another chain's draw is not a repetition.
    values[4] = values[3]
    times = np.array([1, 1, 6, 1, 1, 1, 1, 1])
    chain = np.repeat([0, 1], 4)
    plain = geometry(Samples({"w": jnp.asarray(values)}, chain))
    picks = np.repeat(np.arange(8), times)
    repeated = geometry(Samples({"w": jnp.asarray(values[picks])}, chain[picks]))
    np.testing.assert_allclose(repeated.scores, plain.scores[picks], atol=1e-9)
    np.testing.assert_allclose(repeated.explained, plain.explained, rtol=1e-9)
    centred = values[picks] - values[picks].mean(0)
    means = [centred[chain[picks] == c] for c in (0, 1)]
    between = sum(len(m) * (m.mean(0) ** 2).sum() for m in means) / (centred**2).sum()
    assert repeated.between == pytest.approx(between, rel=1e-9)
    still = geometry(Samples({"w": jnp.ones((6, 3))}, np.repeat([0, 1], 3)))
    np.testing.assert_array_equal(still.scores, np.zeros((6, 2)))
    np.testing.assert_array_equal(still.explained, [0.0, 0.0])
    stuck = geometry(Samples({"w": jnp.ones((6, 3))}, np.zeros(6, int)))
    assert stuck.scores.shape == (6, 2)


@pytest.mark.fast
def test_folding_ratio_and_its_null():
    rng = np.random.default_rng(0)
    shape = (2, 200, 3000)
    uniform, normal = rng.uniform(size=shape), rng.normal(size=shape)
    ratios = folding_ratio(uniform)
    # The uniform law is the hardest unimodal one: ¼, with the spread that the formula says.
    assert ratios.mean() == pytest.approx(0.25, abs=0.002)
    assert ratios.std() == pytest.approx(np.sqrt(3 / 40 / 400), rel=0.05)
    # 5 % within the error of 3000 trials and what 400 draws are short of infinity.
    assert 0.03 < folded_share(ratios, 400) < 0.08
    assert folding_ratio(normal).mean() == pytest.approx(1 - 2 / np.pi, abs=0.005)
    assert folded_share(folding_ratio(normal), 400) == 0
    skewed = rng.exponential(size=shape)
    assert folded_share(folding_ratio(skewed), 400) == 0
    two = normal + 4 * rng.integers(0, 2, size=shape)
    assert folded_share(folding_ratio(two), 400) > 0.99
    # Shifting, scaling and mirroring change nothing.
    np.testing.assert_allclose(folding_ratio(3 - 2 * two), folding_ratio(two), rtol=1e-9)


@pytest.mark.fast
def test_series_and_pairs():
    samples = planted()
    flat = np.concatenate(
        [np.asarray(leaf).reshape(CHAINS * DRAWS, -1) for leaf in jax.tree.leaves(samples.draws)], 1
    )
    picks = np.array([0, 11, 60, flat.shape[1] - 1])
    np.testing.assert_array_equal(
        series(samples, picks).reshape(-1, 4), flat[:, picks].astype(np.float64)
    )
    across, within = choose_pairs(CHAIN, 9, key=KEY)
    assert (CHAIN[across[:, 0]] != CHAIN[across[:, 1]]).all()
    assert (CHAIN[within[:, 0]] == CHAIN[within[:, 1]]).all()
    assert (within[:, 1] - within[:, 0] == DRAWS // 2).all()
    with pytest.raises(ValueError, match="at least two chains"):
        diagnose(Samples(samples.draws), symmetry=SYMMETRY, key=KEY)
    with pytest.raises(ValueError, match="both network and data"):
        diagnose(samples, symmetry=SYMMETRY, key=KEY, network=relu_mlp)


def test_arviz_sees_chains_and_agrees(found):
    arviz = pytest.importorskip("arviz")
    data = to_arviz(found.aligned)
    leaf = data.posterior["Dense_0.kernel"]
    assert leaf.shape == (CHAINS, DRAWS, 5, 8)
    assert leaf.dims[:2] == ("chain", "draw")
    # Distances from the median tie in single precision, so both work in double.
    draws = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found.aligned.draws)
    kernel = to_arviz(Samples(draws, found.aligned.chain)).posterior["Dense_0.kernel"]
    theirs = arviz.rhat(kernel.values.reshape(CHAINS, DRAWS, -1)[..., 0])
    # All weights are looked at, in the order of leaves: Dense_0's bias and then its kernel.
    assert found.after.weights.rhat[8] == pytest.approx(float(theirs), rel=1e-6)


def test_command(tmp_path, capsys):
    net = MLP(widths=(6,), num_classes=10)
    mean = net.init(KEY, np.zeros((1, 8, 8, 1), np.float32))["params"]
    rng = np.random.default_rng(0)
    draws = jax.tree.map(
        lambda m: m + 0.1 * rng.normal(size=(16, *m.shape)).astype(np.float32), mean
    )
    samples = Samples(draws, jnp.repeat(jnp.arange(2), 8))
    path = save(tmp_path / "c.safetensors", samples, network=to_config(net, (8, 8, 1)))
    figure, out = tmp_path / "f.png", tmp_path / "aligned.safetensors"
    options = {"data": "digits", "limit": 50, "pairs": 2, "weights": 100}
    run(Diagnose(path, **options, figure=figure, out=out, json=True))
    report = json.loads(capsys.readouterr().out)
    assert report["weights_looked_at"] == 100
    assert report["barriers_within_chains"]["pairs"] == 2
    assert figure.stat().st_size > 2000
    assert load(out).num_draws == 16
    run(Diagnose(path, per="chain", weights=50))
    assert "median R-hat" in capsys.readouterr().out
    with pytest.raises(ValueError, match="exists; give --overwrite"):
        run(Diagnose(path, out=out))
    q = save(tmp_path / "q.safetensors", found_gaussian(samples), network=to_config(net, (8, 8, 1)))
    with pytest.raises(ValueError, match="holds a MeanField"):
        run(Diagnose(q))


def found_gaussian(samples):
    from onebasin.posterior import MeanField

    return MeanField(*samples.moments())
