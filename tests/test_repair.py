"""Repaired paths: statistics meet their targets, ends stay, and what cannot be repaired is said."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from onebasin.evaluation.measures import nll
from onebasin.evaluation.predicting import predictive
from onebasin.evaluation.profiles import profile
from onebasin.networks import MLP
from onebasin.networks.convolution import Conv
from onebasin.networks.normalisation import FilterResponseNorm
from onebasin.paths import geodesic, line, mixture_path, repair
from onebasin.paths.merging import repaired_mean
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.symmetry import find_symmetry
from onebasin.symmetry.recording import Recorder

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 80)
NET = MLP(widths=(12, 9), num_classes=4)


def apply(params, x) -> jax.Array:
    return jnp.asarray(NET.apply({"params": params}, x))


def params(seed, net: nn.Module = NET, x=X):
    drawn = net.init(jax.random.key(seed), x[:1])["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: a + jnp.asarray(0.1 * rng.normal(size=a.shape), a.dtype), drawn)


def mean_field(seed, std=0.05):
    mean = params(seed)
    return MeanField(mean, jax.tree.map(lambda a: jnp.full_like(a, std), mean))


def statistics(recorder, p):
    return [(np.asarray(z).mean(1), np.asarray(z).std(1)) for z in recorder.pre_activations(p)]


@pytest.fixture(scope="module")
def symmetry():
    return find_symmetry(apply, params(0), X[:2])


@pytest.fixture(scope="module")
def recorder(symmetry):
    return Recorder(apply, params(0), X, symmetry)


@pytest.fixture(scope="module")
def repaired(symmetry):
    """Means repaired; made once, since every repair compiles its own recorder."""
    return repair(geodesic(mean_field(1), mean_field(2)), apply, X, symmetry=symmetry)


@pytest.fixture(scope="module")
def repaired_all(symmetry):
    path = geodesic(mean_field(1), mean_field(2))
    return repair(path, apply, X, symmetry=symmetry, scale="all", draws=3, key=KEY)


@pytest.mark.parametrize("t", [0.25, 0.5])
def test_statistics_are_the_interpolation_of_the_ends(repaired, recorder, t):
    ends = [statistics(recorder, params(seed)) for seed in (1, 2)]
    plain = statistics(recorder, repaired.path(t).mean)
    found = statistics(recorder, repaired(t).mean)
    for layer in range(2):
        for kind in (0, 1):
            goal = (1 - t) * ends[0][layer][kind] + t * ends[1][layer][kind]
            np.testing.assert_allclose(found[layer][kind], goal, rtol=1e-3, atol=1e-4)
        # and plain averaging does shrink the std
        goal = (1 - t) * ends[0][layer][1] + t * ends[1][layer][1]
        assert (plain[layer][1] / goal).mean() < 0.95


def test_a_mean_of_many_has_their_mean_statistics(symmetry, recorder):
    """Members join one after another; no order is left in what the units do."""
    seeds = (1, 2, 3)
    merged = repaired_mean([mean_field(seed) for seed in seeds], apply, X, symmetry=symmetry)
    found = statistics(recorder, merged.mean)
    ends = [statistics(recorder, params(seed)) for seed in seeds]
    for layer in range(2):
        for kind in (0, 1):
            goal = np.mean([end[layer][kind] for end in ends], axis=0)
            np.testing.assert_allclose(found[layer][kind], goal, rtol=2e-3, atol=2e-4)
    jax.tree.map(lambda s: np.testing.assert_allclose(s, 0.05, rtol=1e-6), merged.std)


def test_ends_are_left_as_they_are(repaired):
    for t, q in ((0.0, mean_field(1)), (1.0, mean_field(2))):
        jax.tree.map(np.testing.assert_array_equal, repaired(t), q)
    assert repaired.left_alone == {}
    assert repaired.repaired == ("Dense_0/kernel", "Dense_1/kernel")


def test_by_default_the_noise_of_a_gaussian_is_left(repaired):
    jax.tree.map(np.testing.assert_array_equal, repaired(0.5).std, repaired.path(0.5).std)
    assert (repaired.scale, repaired.statistics) == ("mean", "the mean network")


def test_noise_and_factors_scale_too_when_asked(repaired_all):
    """Mean, standard deviation and factors of incoming weights by one scale; the rest stays."""
    plain, fixed = repaired_all.path(0.5), repaired_all(0.5)
    scale = repaired_all.change(0.5)["Dense_0/kernel"][0]
    expected = plain.std["Dense_0"]["kernel"] * scale
    np.testing.assert_allclose(fixed.std["Dense_0"]["kernel"], expected, rtol=1e-5)
    np.testing.assert_array_equal(fixed.std["Dense_2"]["kernel"], plain.std["Dense_2"]["kernel"])
    assert scale.mean() > 1
    q0, q1 = mean_field(1), mean_field(2)
    factors = jax.tree.map(lambda a: 0.1 * jnp.stack([a, a**2]), q0.mean)
    ends = [LowRank(q.mean, q.std, factors) for q in (q0, q1)]
    wide = replace(repaired_all, path=geodesic(*ends))  # the same units, so the same change
    np.testing.assert_allclose(
        wide(0.5).factors["Dense_0"]["kernel"], factors["Dense_0"]["kernel"] * scale, rtol=1e-4
    )


@pytest.mark.parametrize("how", ["repaired", "repaired_all"])
def test_profile_and_path_agree_and_plain_comes_along(how, request):
    path = request.getfixturevalue(how)
    found = profile(path, apply, (X, Y), key=KEY, points=3, num_samples=6)
    direct = predictive(path(0.5), apply, X, key=KEY, num_samples=6)
    np.testing.assert_allclose(found.nll[1], nll(direct, Y), rtol=1e-4)
    plain = profile(path.path, apply, (X, Y), key=KEY, points=3, num_samples=6)
    assert found.plain is not None
    np.testing.assert_allclose(found.plain.nll, plain.nll, rtol=1e-6)
    np.testing.assert_allclose(found.nll[[0, -1]], plain.nll[[0, -1]], rtol=1e-5)
    assert found.summary()["plain"]["barrier"] == plain.barrier
    assert "plain" in str(found)


def test_samples_are_repaired_too(symmetry):
    draws = [
        Samples(jax.tree.map(lambda *a: jnp.stack(a), *(params(s) for s in seeds)))
        for seeds in ((1, 2, 3), (4, 5, 6))
    ]
    path = repair(geodesic(*draws), apply, X, symmetry=symmetry)
    assert (path.scale, path.statistics) == ("all", "3 draws")
    found = profile(path, apply, (X, Y), key=KEY, points=3)
    np.testing.assert_allclose(
        found.nll[1], nll(predictive(path(0.5), apply, X, key=KEY), Y), rtol=1e-4
    )


@pytest.mark.parametrize("ours", [True, False])
def test_a_normalised_layer_is_repaired_by_its_gain(ours):
    """Convolution, normalisation with gain and bias, ReLU: the kernel's scale has no effect.

    Our own convolution is made of slices, products and sums, through which the trace follows
    no layer: there the bias is the anchor.
    """

    class Small(nn.Module):
        @nn.compact
        def __call__(self, x):
            conv = Conv(5, name="conv") if ours else nn.Conv(5, (3, 3), use_bias=False, name="conv")
            x = nn.relu(FilterResponseNorm(name="norm")(conv(x)))
            return nn.Dense(3, name="head")(x.mean(axis=(1, 2)))

    # Inputs away from zero: the mean square is normalised, so the std still varies.
    net = Small()
    x = 1 + np.random.default_rng(2).normal(size=(16, 6, 6, 2)).astype(np.float32)
    run = lambda p, x: jnp.asarray(net.apply({"params": p}, x))
    ends = [params(seed, net, x) for seed in (1, 2)]
    path = repair(line(*ends), run, x)
    assert path.left_alone == {}
    change = path.change(0.5)
    assert all(np.all(scale == 1) for name, (scale, _) in change.items() if "conv" in name)
    assert np.abs(change["norm/scale"][0] - 1).max() > 0.01

    def normalised(p):  # what stands before the ReLU
        y = Conv(5).apply({"params": p["conv"]}, x)
        y = FilterResponseNorm().apply({"params": p["norm"]}, y)
        return np.asarray(y).reshape(-1, 5)

    goals = [(z.mean(0), z.std(0)) for z in map(normalised, ends)]
    found = normalised(path(0.5).draw(0))
    np.testing.assert_allclose(found.mean(0), (goals[0][0] + goals[1][0]) / 2, atol=1e-3)
    np.testing.assert_allclose(found.std(0), (goals[0][1] + goals[1][1]) / 2, rtol=1e-2)


def test_a_layer_without_bias_is_left_alone_and_named():
    def without(p, x):
        return jax.nn.relu(x @ p["w1"]) @ p["w2"]

    rng = np.random.default_rng(3)
    ends = [
        {
            "w1": jnp.asarray(rng.normal(size=(6, 8)), jnp.float32),
            "w2": jnp.asarray(rng.normal(size=(8, 4)), jnp.float32),
        }
        for _ in range(2)
    ]
    path = repair(line(*ends), without, X)
    assert path.repaired == ()
    assert path.left_alone == {"w1": "it has no bias that could shift it"}
    assert "w1: it has no bias" in path.note
    plain = line(*ends)(0.5).draw(0)
    jax.tree.map(np.testing.assert_array_equal, path(0.5).draw(0), plain)


def test_bad_input_is_named():
    ends = [mean_field(1), mean_field(2)]
    with pytest.raises(ValueError, match="cannot be repaired"):
        repair(mixture_path(*ends), apply, X)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least two examples"):
        repair(geodesic(*ends), apply, X[:1])
    with pytest.raises(ValueError, match="give the key"):
        repair(geodesic(*ends), apply, X, draws=2)
