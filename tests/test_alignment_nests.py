"""Groups that nest: heads and their dimensions, the groups of a GroupNorm and their channels."""

from functools import cache
from itertools import permutations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.alignment import align
from onebasin.alignment.nests import NestScores, nests_deeply, nests_of, scores_of
from onebasin.alignment.objective import L2
from onebasin.alignment.scores import ScoreTable
from onebasin.networks import MLP, ResNet20
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.symmetry.layout import Fixed, Product, Units
from zoo import linen, normal
from zoo.entries import variables_of


def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def attention(x, p, heads):
    """Kernels of width × width, as most transformers keep them."""
    q, k, v = ((x @ p[n]).reshape(*x.shape[:-1], heads, -1) for n in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["o"]


def transformer(params, tokens):
    x = params["embed"][tokens]
    for block in params["blocks"]:
        x = x + attention(norm(x), block, 4)
        x = x + jax.nn.relu(norm(x) @ block["up"]) @ block["down"]
    return norm(x) @ params["head"]


def transformer_params(seed=0, width=16):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32) / np.sqrt(shape[0])
    block = lambda: {
        **{name: draw(width, width) for name in "qkvo"},
        "up": draw(width, 2 * width),
        "down": draw(2 * width, width),
    }
    blocks = [block(), block()]
    return {"embed": draw(9, width), "blocks": blocks, "head": draw(width, 9)}


class Encoder(nn.Module):
    """GroupNorm in a convolutional network: groups × channels."""

    @nn.compact
    def __call__(self, x):
        for width in (16, 24):
            x = nn.silu(nn.GroupNorm(4)(nn.Conv(width, (3, 3))(x)))
        return nn.Dense(3)(x.mean((1, 2)))


class UNet(nn.Module):
    """GroupNorm on concatenated channels, so that groups nest three deep."""

    @nn.compact
    def __call__(self, x):
        left = nn.silu(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(x)))
        right = nn.silu(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(left)))
        both = nn.GroupNorm(4)(jnp.concatenate([left, right], -1))
        return nn.Conv(2, (1, 1))(nn.silu(both))


@cache
def network(name):
    if name == "transformer":
        params, apply, x = transformer_params(), transformer, jnp.arange(12).reshape(2, 6) % 9
    else:
        module, x = {"GroupNorm": Encoder, "U-Net": UNet}[name](), normal((2, 6, 6, 2))
        params = variables_of(module, x)["params"]
        apply = lambda p, x: module.apply({"params": p}, x)
    return params, find_symmetry(apply, params, x)


def noisy(params, seed, noise=0.1):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda a: np.asarray(a) + noise * np.std(a) * rng.normal(size=a.shape).astype(np.float32),
        params,
    )


@pytest.mark.parametrize(
    ("name", "nests", "deep"),
    [("transformer", 4, False), ("GroupNorm", 2, False), ("U-Net", 0, True)],
)
def test_planted_copies_with_noise_are_recovered_always(name, nests, deep):
    params, symmetry = network(name)
    assert len(nests_of(symmetry)) == nests
    assert nests_deeply(symmetry) == deep
    for seed in range(10):
        planted = symmetry.random(key=jax.random.key(seed))
        copy = symmetry.act(planted, noisy(params, seed))
        found = align(copy, to=params, symmetry=symmetry, objective="l2")
        assert found.permutation == symmetry.inverse(planted)
        assert found.converged


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_no_cheap_restart_escapes_from_where_descent_converged(noise):
    params, symmetry = network("transformer")
    for seed in range(3):
        other = noisy(transformer_params(seed + 1), seed) if noise == 1.0 else noisy(params, seed)
        found = align(other, to=params, symmetry=symmetry, objective="l2")
        assert found.converged
        table = ScoreTable(L2.features(other, params, symmetry), found.permutation)
        for nest in nests_of(symmetry):
            now = [np.asarray(found.permutation[name]) for name in nest.names]
            scores = scores_of(table, nest)
            assert scores.optimum(*now)[0] <= scores.of(*now) + scores.rounding(*now)


def test_scores_of_a_nest_are_those_of_the_whole_network(x64):
    """Every order of both groups, against the score of all leaves."""
    params, symmetry = network("transformer")
    one = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    two = jax.tree.map(lambda a: np.asarray(a, np.float64), transformer_params(5))
    pair = L2.features(two, one, symmetry)
    start = symmetry.random(key=jax.random.key(3))
    rng = np.random.default_rng(0)
    for nest in nests_of(symmetry):
        table = ScoreTable(pair, start)
        scores = scores_of(table, nest)
        totals, predicted = [], []
        for _ in range(4):
            orders = [rng.permutation(table.groups[name]) for name in nest.names]
            moved = {**table.indices, **dict(zip(nest.names, orders, strict=True))}
            totals.append(table.total(moved))
            predicted.append(scores.of(*orders))
        # Leaves without these groups, and the mean taken off the mover, add the same to all.
        np.testing.assert_allclose(np.diff(totals), np.diff(predicted), rtol=1e-9, atol=1e-9)


def test_places_of_one_of_the_two_groups_count(x64):
    """Gains for each head, and for each dimension of all heads, beside the product."""
    both = Product((Units("heads", 2), Units("inside", 3)))
    layouts = {
        "w": (Fixed(5), both),
        "gain": (Units("heads", 2),),
        "shift": (Units("inside", 3),),
        "out": (both, Fixed(4)),
    }
    symmetry = Symmetry(layouts)
    rng = np.random.default_rng(1)
    one, two = ({k: rng.normal(size=s) for k, s in symmetry.shapes.items()} for _ in range(2))
    (nest,) = nests_of(symmetry)
    table = ScoreTable(L2.features(two, one, symmetry), symmetry.identity())
    scores = scores_of(table, nest)
    best = -np.inf
    for sigma in permutations(range(2)):
        for pi in permutations(range(3)):
            orders = dict(zip(nest.names, map(np.array, (sigma, pi)), strict=True))
            total = table.total(orders)
            best = max(best, total)
            shifted = total - table.total()
            expected = scores.of(*orders.values()) - scores.of(np.arange(2), np.arange(3))
            assert shifted == pytest.approx(expected, abs=1e-12)
    found = align(two, to=one, symmetry=symmetry, objective="l2")
    assert found.score == pytest.approx(best, rel=1e-12)


def test_the_optimum_is_that_of_an_exhaustive_search():
    """Copies with as much noise as signal, at sizes where every order can be tried."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.normal(size=(3, 4, 12))
        sigma, pi = rng.permutation(3), rng.permutation(4)
        columns = np.empty_like(rows)
        columns[sigma[:, None], pi] = rows + rng.normal(size=rows.shape)
        together = np.einsum("hik,gjk->higj", rows, columns)
        scores = NestScores(together, rng.normal(size=(3, 3)), rng.normal(size=(4, 4)))
        best = max(
            scores.of(np.array(s), np.array(p))
            for s in permutations(range(3))
            for p in permutations(range(4))
        )
        found, *orders = scores.optimum(np.arange(3), np.arange(4))
        assert found == pytest.approx(best, rel=1e-12)
        assert scores.of(*orders) == found


def test_networks_without_nests_take_the_path_they_took():
    for net, shape in ((MLP(widths=(8, 8), num_classes=3), (6,)), (ResNet20(width=4), (8, 8, 3))):
        traced, x = linen(net, jnp.zeros((2, *shape)))
        symmetry = find_symmetry(traced.apply, traced.params, x, check=False)
        assert len(symmetry.groups) == (2 if isinstance(net, MLP) else 12)
        assert nests_of(symmetry) == ()
        assert not nests_deeply(symmetry)
