"""Scale symmetry: found where it exists and only there; balancing changes no function."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import mlp_shapes, random_like, relu_mlp
from compact_cases import covariance, draws_of, flat
from onebasin.compaction import compact
from onebasin.networks import MLP, LeNet, ResNet20
from onebasin.posterior import LowRank, LowRankPrecision, MeanField, Samples
from onebasin.symmetry import find_scales, find_symmetry


def built(network, shape, seed=0):
    """A Flax network as (apply, random params in double precision, x)."""
    x = np.random.default_rng(seed).normal(size=(3, *shape))
    shapes = jax.eval_shape(network.init, jax.random.key(0), x.astype(np.float32))["params"]
    params = random_like(jax.tree.map(lambda s: s.shape, shapes), seed, scale=0.4)

    def apply(p: Any, x: Any) -> jax.Array:
        return cast(jax.Array, network.apply({"params": p}, x))

    return apply, params, x


def leaky(params, x):
    for i in range(2):
        x = jax.nn.leaky_relu(x @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"])
    return x @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"]


def cases():
    mlp = random_like(mlp_shapes((6, 5)), 0)
    x = np.random.default_rng(1).normal(size=(4, 5))
    return {
        "mlp": (relu_mlp, mlp, x),
        "leaky": (leaky, mlp, x),
        "lenet": built(LeNet(width=2, num_classes=3), (8, 8, 1)),
    }


def norms(scales, params):
    """‖in‖ and ‖out‖ of every unit of every group, from the definition."""
    leaves = {
        "/".join(str(k.key) for k in path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    for sites in scales.sites.values():
        sums = {1: 0.0, -1: 0.0}
        for site in sites:
            rows = np.moveaxis(leaves[site.leaf], site.axis, 0)[site.positions]
            sums[site.exponent] += (rows.reshape(len(rows), -1) ** 2).sum(1)
        yield np.sqrt(sums[1]), np.sqrt(sums[-1])


@pytest.mark.parametrize("name", ["mlp", "leaky", "lenet"])
def test_balancing(x64, name):
    apply, params, x = cases()[name]
    symmetry = find_symmetry(apply, params, x)
    scales = find_scales(apply, params, x, symmetry=symmetry)
    assert list(scales.sites) == [g.name for g in symmetry.groups]
    assert not scales.left_out
    factors = scales.balance(params)
    balanced = scales.act(factors, params)
    # Rounding of a few layers in double precision.
    np.testing.assert_allclose(apply(balanced, x), apply(params, x), rtol=1e-11, atol=1e-11)
    for incoming, outgoing in norms(scales, balanced):
        np.testing.assert_allclose(incoming, outgoing, rtol=1e-10)
    for again in scales.balance(balanced).values():
        np.testing.assert_allclose(again, 1, rtol=1e-10)
    back = scales.act(scales.inverse(factors), balanced)
    np.testing.assert_allclose(flat(back), flat(params), rtol=1e-12)
    # The balance has the least norm among all scalings, which have the same function.
    other = {
        k: np.exp(0.01 * np.random.default_rng(0).normal(size=f.shape)) for k, f in factors.items()
    }
    assert np.sum(flat(balanced) ** 2) < np.sum(flat(scales.act(other, balanced)) ** 2)
    # The balance does not depend on the scales and the order of the units before.
    unbalanced = scales.act({k: f**5 for k, f in other.items()}, params)
    rebalanced = scales.act(scales.balance(unbalanced), unbalanced)
    np.testing.assert_allclose(flat(rebalanced), flat(balanced), rtol=1e-9, atol=1e-12)
    p = symmetry.random(key=jax.random.key(3))
    moved = symmetry.act(p, params)
    first_moved = scales.act(scales.balance(moved), moved)
    np.testing.assert_allclose(flat(first_moved), flat(symmetry.act(p, balanced)), rtol=1e-9)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_units_that_are_not_homogeneous_are_named(activation):
    apply, params, x = built(MLP(widths=(5,), num_classes=3, activation=activation), (4,))
    scales = find_scales(apply, params, x, symmetry=find_symmetry(apply, params, x))
    assert not scales.sites
    assert "not homogeneous" in scales.left_out["Dense_0"]
    samples = draws_of(3, jax.tree.map(jnp.shape, params))
    with pytest.raises(ValueError, match="no group of this network can be balanced"):
        compact(samples, symmetry=find_symmetry(apply, params, x), balance=True, network=apply, x=x)


def test_normalised_and_mixed_networks(x64):
    apply, params, x = built(ResNet20(width=2, num_classes=3), (8, 8, 1))
    symmetry = find_symmetry(apply, params, x)
    scales = find_scales(apply, params, x, symmetry=symmetry)
    # Behind a normalisation it is the gain, the shift and the threshold that are scaled.
    assert scales.sites.keys() == {g.name for g in symmetry.groups}
    assert {site.leaf for site in scales.sites["stage3_block3/conv1"] if site.exponent > 0} == {
        f"stage3_block3/{leaf}" for leaf in ("norm1/scale", "norm1/bias", "threshold1/threshold")
    }
    balanced = scales.act(scales.balance(params), params)
    np.testing.assert_allclose(apply(balanced, x), apply(params, x), rtol=1e-8)

    def mixed(p, x):
        x = jnp.tanh(x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"])
        x = jax.nn.relu(x @ p["Dense_1"]["kernel"] + p["Dense_1"]["bias"])
        return x @ p["Dense_2"]["kernel"]

    params = random_like(mlp_shapes((6, 5)), 0)
    del params["Dense_2"]["bias"]
    x = np.random.default_rng(1).normal(size=(4, 5))
    scales = find_scales(mixed, params, x, symmetry=find_symmetry(mixed, params, x))
    assert list(scales.sites) == ["Dense_1"]
    assert list(scales.left_out) == ["Dense_0"]
    balanced = scales.act(scales.balance(params), params)
    np.testing.assert_allclose(mixed(balanced, x), mixed(params, x), rtol=1e-12)


@pytest.mark.fast
def test_a_dead_unit_is_not_scaled(x64):
    params = random_like(mlp_shapes((4,)), 0)
    symmetry = find_symmetry(relu_mlp, params, np.ones((2, 5)))
    scales = find_scales(relu_mlp, params, np.ones((2, 5)), symmetry=symmetry)
    params["Dense_1"]["kernel"] = params["Dense_1"]["kernel"].at[2].set(0)
    (factors,) = scales.balance(params).values()
    assert factors[2] == 1
    assert (factors[[0, 1, 3]] != 1).all()


def test_posteriors_are_scaled(x64):
    """Standard deviations scale with their weights, so every draw predicts the same as before."""
    mean = random_like(mlp_shapes((6, 5)), 0)
    x = np.random.default_rng(1).normal(size=(4, 5))
    symmetry = find_symmetry(relu_mlp, mean, x)
    scales = find_scales(relu_mlp, mean, x, symmetry=symmetry)
    q = MeanField(
        mean, jax.tree.map(lambda a: 0.1 + jnp.abs(a), random_like(mlp_shapes((6, 5)), 1))
    )
    balanced = scales.act(scales.balance(mean), q)
    key = jax.random.key(0)
    np.testing.assert_allclose(
        relu_mlp(balanced.sample(key=key), x), relu_mlp(q.sample(key=key), x), rtol=1e-11
    )


def test_compact_undoes_scales_and_permutations_alike(x64):
    """Draws that differ only by scales and permutations are one network."""
    params = random_like(mlp_shapes((6, 5)), 0)
    x = np.random.default_rng(1).normal(size=(4, 5))
    symmetry = find_symmetry(relu_mlp, params, x)
    scales = find_scales(relu_mlp, params, x, symmetry=symmetry)
    rng = np.random.default_rng(2)
    trees = []
    for i in range(12):
        near = jax.tree.map(lambda a: a + 0.01 * rng.normal(size=a.shape), params)
        factors = {g.name: np.exp(rng.normal(size=g.size)) for g in symmetry.groups}
        trees.append(
            symmetry.act(symmetry.random(key=jax.random.key(i)), scales.act(factors, near))
        )
    samples = Samples(jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees))
    for rank in (0, 2):
        found = compact(samples, symmetry=symmetry, balance=True, network=relu_mlp, x=x, rank=rank)
        plain = compact(samples, symmetry=symmetry, rank=rank)
        assert np.trace(covariance(found.posterior)) < 1e-2 * np.trace(covariance(plain.posterior))
        outputs = relu_mlp(found.posterior.mean, x)
        np.testing.assert_allclose(outputs, relu_mlp(params, x), atol=0.3)
        for i in (0, 7):
            np.testing.assert_allclose(
                relu_mlp(found.samples.draw(i), x), relu_mlp(samples.draw(i), x), rtol=1e-10
            )
        mean, _ = found.samples.moments()
        np.testing.assert_allclose(flat(found.posterior.mean), flat(mean), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [LowRank, LowRankPrecision])
def test_a_scaled_posterior_has_the_density_of_the_scaled_params(kind, x64):
    """log q'(cθ) = log q(θ) − log |det c|, and the determinant is the same for every θ."""
    params = random_like(mlp_shapes((6, 5)), 0)
    x = np.random.default_rng(1).normal(size=(4, 5))
    scales = find_scales(relu_mlp, params, x, symmetry=find_symmetry(relu_mlp, params, x))
    std = jax.tree.map(lambda leaf: 0.5 + np.abs(leaf), params)
    factors = jax.tree.map(
        lambda *f: np.stack(f), *(random_like(mlp_shapes((6, 5)), s) for s in (1, 2))
    )
    q = kind(params, std, factors)
    moved = scales.act(found := scales.balance(params), q)
    changes = [
        float(moved.log_prob(scales.act(found, theta)) - q.log_prob(theta))
        for theta in (random_like(mlp_shapes((6, 5)), s) for s in (3, 4, 5))
    ]
    np.testing.assert_allclose(changes, changes[0], atol=1e-8)
