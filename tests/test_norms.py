"""The gauge of scale-free units: which they are, and paths that keep their norms."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import onebasin as ob
from alignment_cases import gaussian, mlp_shapes
from onebasin.alignment.norms import ScaleFree, find_scale_free, keep_norms
from onebasin.cli import barrier
from onebasin.networks import MLP, to_config
from onebasin.networks.convolution import Conv
from onebasin.networks.normalisation import FilterResponseNorm

X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 6, 2)), jnp.float32)


class Blocks(nn.Module):
    """Two convolutions, each with a normalisation, and a dense output."""

    norm: type[nn.Module] | None

    @nn.compact
    def __call__(self, x):
        for number in range(2):
            x = Conv(4, name=f"conv{number}")(x)
            if self.norm is nn.GroupNorm:
                x = nn.GroupNorm(num_groups=2, name=f"norm{number}")(x)
            elif self.norm is not None:
                x = self.norm(name=f"norm{number}")(x)
            x = nn.relu(x)
        return nn.Dense(3, name="head")(x.mean(axis=(1, 2)))


def network(norm, seed=0):
    module = Blocks(norm)
    apply = lambda params, x: jnp.asarray(module.apply({"params": params}, x))
    template = jax.eval_shape(module.init, jax.random.key(0), X)["params"]
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), jnp.float32), template)
    return apply, params


@pytest.mark.parametrize(
    ("norm", "axis"),
    [(FilterResponseNorm, 3), (nn.LayerNorm, None), (nn.GroupNorm, None), (None, "not free")],
)
def test_kernels_before_a_normalisation_are_scale_free(norm, axis):
    apply, params = network(norm)
    found = find_scale_free(apply, params, X)
    kernels = {"conv0/kernel", "conv1/kernel"}
    expected = {} if axis == "not free" else dict.fromkeys(kernels, axis)
    assert found.axes == expected


@pytest.mark.parametrize("axis", [3, None])
def test_norms_are_interpolated_and_the_ends_stay(x64, axis):
    rng = np.random.default_rng(0)
    ends = [{"k": jnp.asarray(rng.normal(size=(3, 3, 2, 4))), "b": jnp.ones(4)} for _ in range(2)]
    free = ScaleFree({"k": axis})
    for t in (0.0, 0.3, 1.0):
        plain = jax.tree.map(lambda a, b, t=t: (1 - t) * a + t * b, *ends)
        kept = keep_norms(free, t, ends[0], ends[1], plain)
        norm = lambda k: np.sqrt(np.sum(np.asarray(k) ** 2, axis=(0, 1, 2) if axis else None))
        goal = (1 - t) * norm(ends[0]["k"]) + t * norm(ends[1]["k"])
        np.testing.assert_allclose(norm(kept["k"]), goal, rtol=1e-12)
        np.testing.assert_allclose(  # only the length changes
            kept["k"] / norm(kept["k"]), plain["k"] / norm(plain["k"]), rtol=1e-12
        )
        assert kept["b"] is plain["b"]
        if t in (0.0, 1.0):
            np.testing.assert_allclose(kept["k"], ends[int(t)]["k"], rtol=1e-12)


def test_a_mean_of_zero_is_left_alone():
    ends = [{"k": jnp.ones((2, 3))}, {"k": -jnp.ones((2, 3))}]
    middle = {"k": jnp.zeros((2, 3))}
    assert not keep_norms(ScaleFree({"k": 1}), 0.5, ends[0], ends[1], middle)["k"].any()


@pytest.fixture(scope="module")
def pair():
    """Two warm posteriors of one network with filter response normalisation."""
    apply, params = network(FilterResponseNorm)
    _, other = network(FilterResponseNorm, seed=1)
    std = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.2), params)
    return apply, ob.MeanField(params, std), ob.MeanField(other, jax.tree.map(jnp.add, std, std))


def test_the_path_keeps_norms_and_its_ends(pair):
    apply, q0, q1 = pair
    path = ob.keep_norms(ob.geodesic(q0, q1), apply, X)
    assert path.kept == ("conv0/kernel", "conv1/kernel")
    assert path.kind == "norm-keeping geodesic"
    for t, q in ((0.0, q0), (1.0, q1)):
        for found, end in zip(jax.tree.leaves(path(t)), jax.tree.leaves(q), strict=True):
            np.testing.assert_allclose(found, end, rtol=1e-6)  # a float32 factor of one
    norm = lambda q: np.sqrt(np.sum(np.asarray(q.mean["conv1"]["kernel"]) ** 2, axis=(0, 1, 2)))
    np.testing.assert_allclose(norm(path(0.5)), (norm(q0) + norm(q1)) / 2, rtol=1e-5)
    plain = ob.geodesic(q0, q1)(0.5)
    assert np.all(norm(plain) < norm(path(0.5)))
    np.testing.assert_array_equal(path(0.5).std["conv1"]["kernel"], plain.std["conv1"]["kernel"])


def test_scaling_the_mean_is_dividing_the_noise(pair):
    """The same function: f·m + s∘ε is f times m + (s/f)∘ε, and the factor f does not matter."""
    apply, q0, q1 = pair
    path = ob.keep_norms(ob.geodesic(q0, q1), apply, X)
    plain, factors = ob.geodesic(q0, q1)(0.5), path.factors(0.5)
    noise = network(FilterResponseNorm, seed=5)[1]
    divided = {k: dict(v) for k, v in plain.std.items()}
    for leaf in path.kept:
        module, name = leaf.split("/")
        divided[module][name] = divided[module][name] / factors[leaf]
    draw = lambda mean, std: jax.tree.map(lambda m, s, e: m + s * e, mean, std, noise)
    scaled = apply(draw(path(0.5).mean, plain.std), X)
    # ε = 1e-6 in the normalisation and float32 sums
    np.testing.assert_allclose(scaled, apply(draw(plain.mean, divided), X), rtol=1e-3, atol=1e-4)
    assert np.abs(scaled - apply(draw(plain.mean, plain.std), X)).max() > 0.01


@pytest.mark.parametrize("repaired", [False, True])
def test_profiles_take_the_corrections_of_the_path_and_show_the_plain_one(pair, repaired):
    apply, q0, q1 = pair
    plain = ob.geodesic(q0, q1)
    path = ob.keep_norms(plain, apply, X)
    if repaired:
        path = ob.repair(path, apply, X)
        assert path.kind == "repaired norm-keeping geodesic"
        assert path.repaired
    options = {"key": jax.random.key(0), "points": 3, "num_samples": 4, "progress": "silent"}
    data = (X, jnp.array([0, 1, 2, 0]))
    found = ob.profile(path, apply, data, **options)
    # The same posteriors one at a time, with the same noise.
    expected = ob.profile(lambda t: path(t), apply, data, **options)
    np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-4)
    assert found.plain is not None
    np.testing.assert_allclose(found.plain.nll, ob.profile(plain, apply, data, **options).nll)
    assert abs(found.nll[1] - found.plain.nll[1]) > 1e-3


def test_paths_without_noise_are_refused(pair):
    apply, q0, _ = pair
    line = ob.line(q0.mean, q0.mean)
    with pytest.raises(ValueError, match="a path between Samples has no noise around a mean"):
        ob.keep_norms(line, apply, X)
    kept = ob.keep_norms(ob.geodesic(q0, q0), apply, X)
    with pytest.raises(ValueError, match="only means are scaled; drop scale='all'"):
        ob.repair(kept, apply, X, scale="all")


def test_permutations_are_learned_on_the_norm_keeping_path(pair):
    """The judged loss is that of the norm-keeping path, which is not that of the geodesic."""
    apply, q0, q1 = pair
    symmetry = ob.find_symmetry(apply, q0.mean, X)
    x = np.random.default_rng(0).normal(size=(40, 6, 6, 2)).astype(np.float32)
    y = np.asarray(apply(q0.mean, x)).argmax(axis=1)
    run = lambda keep: ob.align(
        q1,
        to=q0,
        symmetry=symmetry,
        objective=ob.PathLoss(
            apply, (x, y), steps=0, exchanges=2, judged=20, batch_size=20, keep_norms=keep
        ),
        starts="identity",
        key=jax.random.key(0),
    )
    kept, plain = run(True), run(False)
    assert kept.starts[0].score != plain.starts[0].score
    assert kept.score >= kept.starts[0].score


def test_the_command_measures_the_norm_keeping_path(tmp_path, capsys):
    """On a network without normalisation it is the geodesic, and the note says so."""
    config = to_config(MLP(widths=(4,), num_classes=10), input_shape=(8, 8, 1))
    first, second = (
        ob.save(
            tmp_path / f"{seed}.safetensors",
            gaussian(mlp_shapes((4,), inputs=64, outputs=10), seed),
            network=config,
        )
        for seed in (0, 1)
    )
    barrier.run(
        barrier.Barrier(
            first, second, path="norm-keeping", json=True, limit=20, points=3, num_samples=2
        )
    )
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["path"] == "norm-keeping geodesic"
    assert "no unit is followed by a normalisation" in found["note"]
    assert found["barrier"] == found["plain"]["barrier"]
