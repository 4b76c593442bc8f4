"""Alignment over signs, scales, rotations and invertible maps."""

from functools import cache
from itertools import permutations, product

import jax
import numpy as np
import pytest

from onebasin import MeanField, align
from onebasin.alignment import FrankWolfe
from onebasin.alignment.mixed_solves import (
    Pair,
    Products,
    best_logs,
    procrustes,
    scaled_gains,
    signed_gains,
)
from onebasin.symmetry.find_kinds import across_ones, random_invertible, random_orthogonal
from test_kinds import flat, found, spread_like

PLANTED = ["MLP, tanh", "MLP, ReLU", "MLP, linear", "GPT, RMSNorm", "GPT, LayerNorm", "GRU"]


@cache
def folded(name):
    case, symmetry = found(name)
    return case, symmetry, symmetry.canonical(case.params)


def noisy(params, seed, noise):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: a + noise * np.std(a) * rng.normal(size=a.shape), params)


def other(name, seed):
    """Unrelated params of the same network, with the gains of rotated streams one."""
    _case, symmetry, params = folded(name)
    rng = np.random.default_rng(seed)
    drawn = jax.tree.map(lambda a: np.std(a) * rng.normal(size=a.shape) + np.mean(a), params)
    return symmetry.canonical(drawn)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_elements_are_undone(name, x64):
    _, symmetry, params = folded(name)
    for seed in range(4):
        planted = symmetry.random_transform(key=jax.random.key(seed))
        copy = symmetry.act(planted, params)
        result = align(copy, to=params, symmetry=symmetry, objective="l2")
        assert result.converged
        # What is left is rounding, or where coordinate descent may stop (its share of the norms).
        assert result.distance_after <= 1e-6 * np.sum(flat(params) ** 2)
        assert result.transform.permutation.names == symmetry.identity().names


@pytest.mark.parametrize("name", PLANTED)
def test_the_score_never_falls_and_is_what_it_says(name, x64):
    case, symmetry, params = folded(name)
    for seed in range(3):
        mover = other(name, seed)
        result = align(mover, to=params, symmetry=symmetry, objective="l2")
        assert (np.diff(result.trace) >= 0).all()
        squares = np.sum(flat(params) ** 2) + np.sum(flat(mover) ** 2)
        assert result.score == pytest.approx(0.5 * (squares - result.distance_after), abs=1e-7)
        assert result.trace[-1] == pytest.approx(result.score, abs=1e-9)
        # Never worse than permutations alone, from which it starts too.
        plain = align(mover, to=params, symmetry=symmetry.permutations, objective="l2")
        assert result.distance_after <= plain.distance_after + 1e-9
        x = case.inputs(3)
        moved = case.apply(result.posterior, x)
        np.testing.assert_allclose(moved, case.apply(mover, x), rtol=1e-6, atol=1e-7)


def test_posteriors_are_aligned_by_means_and_spreads(x64):
    for name, exact in (("MLP, tanh", True), ("GPT, RMSNorm", False)):
        _, symmetry, params = folded(name)
        q = MeanField(params, spread_like(params))
        planted = symmetry.random_transform(key=jax.random.key(0))
        result = align(symmetry.act(planted, q), to=q, symmetry=symmetry)
        assert result.exact == exact
        assert (np.diff(result.trace) >= 0).all()
        assert isinstance(result.posterior, MeanField)
        if exact:
            assert result.distance_after < 1e-20
        assert result.score == pytest.approx(
            0.5
            * (
                np.sum(flat((q.mean, q.std)) ** 2)
                + np.sum(flat((result.mover.mean, result.mover.std)) ** 2)
                - result.distance_after
            ),
            abs=1e-6,
        )


def test_starts_and_what_is_refused(x64):
    _, symmetry, params = folded("GPT, RMSNorm")
    planted = symmetry.random_transform(key=jax.random.key(2))
    copy = symmetry.act(planted, params)
    back = symmetry.inverse(planted)
    result = align(copy, to=params, symmetry=symmetry, objective="l2", starts=back)
    assert result.sweeps == 1
    assert result.distance_after < 1e-18
    key = jax.random.key(0)
    ends = align(
        copy, to=params, symmetry=symmetry, starts=("identity", "random", "forward"), key=key
    )
    assert [start.name for start in ends.starts] == ["identity", "random", "forward"]
    with pytest.raises(ValueError, match="use 'w2' or 'l2'"):
        align(copy, to=params, symmetry=symmetry, objective="log-density")
    with pytest.raises(ValueError, match=r"align with symmetry\.permutations"):
        align(copy, to=params, symmetry=symmetry, search=FrankWolfe())
    with pytest.raises(ValueError, match="kinds='all'"):
        align(copy, to=params, symmetry=symmetry.permutations, starts=back)


def test_gains_come_back_as_those_of_the_target(x64):
    """Neither side is folded: the moved params have the target's gains, and their own function."""
    case, symmetry, folded_params = folded("GPT, LayerNorm")
    planted = symmetry.random_transform(key=jax.random.key(5))
    mover = symmetry.act(planted, folded_params)
    for gains in ("norm1", "norm2"):
        own = mover["blocks"][0][gains]
        gain = np.linspace(0.5, 1.5, 6)
        own["gain"], own["shift"] = gain, own["shift"] * gain
        for name in ("query", "key", "value") if gains == "norm1" else ("up",):
            layer = mover["blocks"][0][name]
            layer["kernel"] = layer["kernel"] / gain[:, None]
    x = case.inputs(4)
    np.testing.assert_allclose(case.apply(mover, x), case.apply(case.params, x), rtol=1e-9)
    result = align(mover, to=case.params, symmetry=symmetry, objective="l2")
    assert result.distance_after < 1e-6
    np.testing.assert_allclose(flat(result.posterior), flat(case.params), atol=1e-3)


def test_procrustes_against_brute_force():
    rng = np.random.default_rng(0)
    for centred in (False, True):
        size = 3 if centred else 2  # rotations and reflections of a plane, in both cases
        across = across_ones(size) if centred else np.eye(2)
        keep = np.full((size, size), 1 / size) if centred else np.zeros((2, 2))
        for _ in range(5):
            products = rng.normal(size=(size, size))
            best = procrustes(products, centred=centred)
            np.testing.assert_allclose(best @ best.T, np.eye(size), atol=1e-12)
            if centred:
                np.testing.assert_allclose(best @ np.ones(size), 1, atol=1e-12)
            angles = np.linspace(0, 2 * np.pi, 20_001)
            c, s = np.cos(angles), np.sin(angles)
            turns = np.concatenate(
                [np.array([[c, -s], [s, c]]), np.array([[c, s], [s, -c]])], axis=2
            ).transpose(2, 0, 1)
            tried = keep + across @ turns @ across.T
            most = np.einsum("kij,ij->k", tried, products).max()
            value = np.sum(best * products)
            assert most <= value + 1e-12
            assert value == pytest.approx(most, abs=1e-6)  # the grid of angles


def test_signs_are_assigned_exactly():
    """Against every signed permutation of three units."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        flips, stays = rng.normal(size=(2, 3, 3))
        gains, signs = signed_gains(Products({1: flips}, {1: stays}, {1: np.ones(3)}), signed=True)
        best = max(
            sum(s[i] * flips[i, p[i]] + stays[i, p[i]] for i in range(3))
            for p in permutations(range(3))
            for s in product((1, -1), repeat=3)
        )
        order = max(permutations(range(3)), key=lambda p: sum(gains[i, p[i]] for i in range(3)))
        rows = np.arange(3)
        assert gains[rows, order].sum() == pytest.approx(best)
        taken = signs[rows, order] * flips[rows, order] + stays[rows, order]
        assert taken.sum() == pytest.approx(best)


def test_scales_are_roots_of_the_quartic():
    """With exponents ±1: c³a·a₁ − c⁴‖a₁‖² − c b·b₁ + ‖b₁‖² = 0 at the best c."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.normal(size=2)
        na, nb = rng.uniform(0.2, 3.0, 2)
        inner = {1: np.array([[a]]), -1: np.array([[b]])}
        norms = {1: np.array([na]), -1: np.array([nb])}
        roots = np.roots([-na, a, 0.0, -b, nb])
        real = roots[(abs(roots.imag) < 1e-9) & (roots.real > 0)].real
        value = lambda c: c * a + b / c - 0.5 * (c**2 * na + nb / c**2)  # noqa: B023
        best = max(real, key=value)
        (log,) = best_logs(inner, norms).ravel()
        assert value(np.exp(log)) == pytest.approx(value(best), abs=1e-10)
        gain, sign, log = (
            part.item()
            for part in scaled_gains(
                Products(inner, dict.fromkeys(inner, np.zeros((1, 1))), norms), signed=True
            )
        )
        flipped = max(value(c) for c in -real) if len(real) else -np.inf
        assert gain >= max(value(best), flipped) - 1e-10
        assert gain == pytest.approx(value(sign * np.exp(log)))


def test_scales_of_one_side_only():
    inner, norms = {1: np.array([[2.0, -1.0]])}, {1: np.array([4.0, 4.0])}
    np.testing.assert_allclose(np.exp(best_logs(inner, norms)), [[0.5, 1.0]])


def test_invertible_pairs(x64):
    rng = np.random.default_rng(0)
    for _ in range(10):
        a1, b1 = rng.normal(size=(2, 3, 8))
        m = random_invertible(rng, 3)
        a0, b0 = m @ a1, np.linalg.inv(m).T @ b1
        pair = Pair(a0 @ a1.T, a1 @ a1.T, b0 @ b1.T, b1 @ b1.T)
        start = pair.start()[1]
        np.testing.assert_allclose(pair.minimum(start), m, atol=1e-5)
        # From somewhere else: the slope is that of finite differences, and descent goes down.
        a0, b0 = rng.normal(size=(2, 3, 8))
        pair = Pair(a0 @ a1.T, a1 @ a1.T, b0 @ b1.T, b1 @ b1.T)
        at, step = random_invertible(rng, 3), rng.normal(size=(3, 3))
        numeric = (pair.value(at + 1e-6 * step) - pair.value(at - 1e-6 * step)) / 2e-6
        assert np.sum(pair.slope(at) * step) == pytest.approx(numeric, rel=1e-6, abs=1e-6)
        end = pair.minimum(pair.start()[1])
        others = [np.eye(3), m, random_orthogonal(rng, 3)]
        assert pair.value(end) <= min(map(pair.value, others))


def test_blocks_of_matrices_follow_their_heads(x64):
    """Two heads exchanged, each with a matrix of its own, in queries with keys and in values."""
    _, symmetry, params = folded("GPT, RMSNorm")
    planted = symmetry.random_transform(key=jax.random.key(7))
    result = align(symmetry.act(planted, params), to=params, symmetry=symmetry, objective="l2")
    back = symmetry.compose(result.transform, planted)
    for name in symmetry.mixings:
        if symmetry.mixings[name].kind in ("invertible", "orthogonal"):
            size = symmetry[name].size
            np.testing.assert_allclose(back.matrix(name), np.eye(size), atol=1e-3)
