"""Paths: closed forms at the ends and between, couplings against brute force, bad input."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.evaluation.distances import aligned_distance, l2, wasserstein
from onebasin.paths import displacement, geodesic, line, mixture_path
from onebasin.posterior import LowRank, MeanField, Mixture, Samples
from onebasin.symmetry import Symmetry

SHAPES = {"Dense_0": {"kernel": (3, 4), "bias": (4,)}, "Dense_1": {"kernel": (4, 2)}}


def tree(seed, lead=(), positive=False):
    rng = np.random.default_rng(seed)
    leaf = lambda shape: jnp.asarray(rng.normal(size=(*lead, *shape)))
    drawn = jax.tree.map(leaf, SHAPES, is_leaf=lambda s: isinstance(s, tuple))
    return jax.tree.map(lambda a: jnp.abs(a) + 0.1, drawn) if positive else drawn


def symmetry():
    places = [("Dense_0/kernel", 1), ("Dense_0/bias", 0), ("Dense_1/kernel", 0)]
    return Symmetry.by_hand(tree(0), {"hidden": places})


def mean_field(seed):
    return MeanField(tree(seed), tree(seed + 100, positive=True))


def low_rank(seed, rank=2):
    return LowRank(tree(seed), tree(seed + 100, positive=True), tree(seed + 200, (rank,)))


def samples(seed, count=5):
    return Samples(tree(seed, (count,)), jnp.arange(count))


def flat(params, lead=0):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], axis=lead)


def covariance(q):
    """The full covariance of a LowRank, as a matrix."""
    factors = flat(q.factors, 1)
    return np.diag(flat(q.std) ** 2) + factors.T @ factors


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(flat(a), flat(b), rtol=tolerance, atol=tolerance)


@pytest.mark.fast
@pytest.mark.usefixtures("x64")
def test_geodesic_of_mean_fields_is_linear_in_mean_and_std():
    q0, q1 = mean_field(0), mean_field(1)
    q = geodesic(q0, q1)(0.3)
    close(q.mean, jax.tree.map(lambda a, b: 0.7 * a + 0.3 * b, q0.mean, q1.mean))
    close(q.std, jax.tree.map(lambda a, b: 0.7 * a + 0.3 * b, q0.std, q1.std))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [mean_field, samples])
def test_geodesic_has_constant_speed_in_w2(make):
    """W2(q0, q_t) = t·W2(q0, q1): what makes a path a geodesic."""
    q0, q1 = make(0), make(1)
    path = geodesic(q0, q1)
    whole = wasserstein(q0, q1)
    for t in (0.25, 0.6):
        np.testing.assert_allclose(wasserstein(q0, path(t)), t * whole, rtol=1e-9)
        np.testing.assert_allclose(wasserstein(path(t), q1), (1 - t) * whole, rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_pairing_of_draws_is_optimal():
    q0, q1 = samples(0), samples(1)
    path = geodesic(q0, q1)
    a, b = flat(q0.draws, 1), flat(q1.draws, 1)
    best = min(
        sum(((a[i] - b[j]) ** 2).sum() for i, j in enumerate(order))
        for order in itertools.permutations(range(5))
    )
    paired = ((flat(path.q0.draws, 1) - flat(path.q1.draws, 1)) ** 2).sum()
    np.testing.assert_allclose(paired, best, rtol=1e-12)
    # The end holds the same draws, whatever their order.
    np.testing.assert_allclose(np.sort(flat(path(1.0).draws, 1), axis=0), np.sort(b, axis=0))


def test_sets_of_different_size_are_thinned_and_say_so():
    path = geodesic(samples(0, 9), samples(1, 3))
    assert path(0.5).num_draws == 3
    assert "thinned evenly from 9 to 3" in path.note
    np.testing.assert_allclose(flat(path(0.0).draws, 1), flat(samples(0, 9).draws, 1)[[0, 3, 6]])


@pytest.mark.usefixtures("x64")
def test_low_rank_path_is_a_displacement_with_the_right_ends():
    q0, q1 = low_rank(0, rank=2), low_rank(1, rank=3)
    path = geodesic(q0, q1)
    assert path.kind == "displacement"
    assert "not the Wasserstein geodesic" in path.note
    np.testing.assert_allclose(covariance(path(0.0)), covariance(q0), rtol=1e-10)
    np.testing.assert_allclose(covariance(path(1.0)), covariance(q1), rtol=1e-10)
    # Rotating the factors shortens the path: no other rotation does better.
    cost = ((flat(path.q0.factors, 1) - flat(path.q1.factors, 1)) ** 2).sum()
    for seed in range(5):
        turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
        turned = turn @ flat(path.q1.factors, 1)
        assert cost <= ((flat(path.q0.factors, 1) - turned) ** 2).sum()


@pytest.mark.usefixtures("x64")
def test_mean_field_joins_low_rank():
    q0, q1 = mean_field(0), low_rank(1)
    np.testing.assert_allclose(covariance(displacement(q0, q1)(1.0)), covariance(q1), rtol=1e-10)
    np.testing.assert_allclose(np.diag(covariance(displacement(q0, q1)(0.0))), flat(q0.std) ** 2)


def test_mixture_has_the_weights_of_t():
    q = mixture_path(mean_field(0), samples(1))(0.25)
    assert isinstance(q, Mixture)
    np.testing.assert_allclose(q.weights, [0.75, 0.25])


def test_line_is_a_point_mass_and_carries_state():
    path = line(tree(0), tree(1), {"mean": jnp.zeros(4)}, {"mean": jnp.ones(4)})
    q = path(0.25)
    assert q.num_draws == 1
    close(q.draw(0), jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, tree(0), tree(1)), 1e-6)
    assert q.state is not None
    np.testing.assert_allclose(q.state["mean"], np.full((1, 4), 0.25))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [mean_field, samples, low_rank])
def test_a_common_permutation_moves_the_whole_path(make):
    sym = symmetry()
    p = sym.random(key=jax.random.key(0))
    q0, q1 = make(0), make(1)
    moved = sym.act(p, geodesic(q0, q1)(0.4))
    direct = geodesic(sym.act(p, q0), sym.act(p, q1))(0.4)
    for a, b in zip(moved.moments(), direct.moments(), strict=True):
        close(a, b, 1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [mean_field, samples, low_rank])
def test_distances_do_not_change_under_a_common_permutation(make):
    sym = symmetry()
    p = sym.random(key=jax.random.key(1))
    q0, q1 = make(0), make(1)
    for distance in (wasserstein, l2):
        moved = distance(sym.act(p, q0), sym.act(p, q1))
        np.testing.assert_allclose(moved, distance(q0, q1), rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_wasserstein_against_formulas():
    q0, q1 = mean_field(0), mean_field(1)
    by_hand = ((flat(q0.mean) - flat(q1.mean)) ** 2).sum() + (
        (flat(q0.std) - flat(q1.std)) ** 2
    ).sum()
    np.testing.assert_allclose(wasserstein(q0, q1) ** 2, by_hand, rtol=1e-12)
    np.testing.assert_allclose(l2(q0, q1), np.linalg.norm(flat(q0.mean) - flat(q1.mean)))
    # The same Gaussian with its factors turned is at distance zero.
    low = low_rank(0)
    turned = LowRank(low.mean, low.std, jax.tree.map(lambda f: f[::-1], low.factors))
    assert wasserstein(low, turned) < 1e-6


def test_distance_and_transpositions_come_as_a_pair():
    sym = symmetry()
    p = sym.random(key=jax.random.key(0), transpositions=2)
    q1 = mean_field(1)
    q0 = sym.act(p, q1)
    pair = aligned_distance(q0, q1, p, sym)
    assert pair.distance < 1e-6
    assert pair.transpositions.total == 2


@pytest.mark.fast
@pytest.mark.parametrize("t", [-0.01, 1.5, float("nan")])
@pytest.mark.parametrize("make", [geodesic, mixture_path])
def test_t_outside_the_interval_is_refused(t, make):
    with pytest.raises(ValueError, match=r"t in \[0, 1\]"):
        make(mean_field(0), mean_field(1))(t)


@pytest.mark.fast
def test_ends_over_different_params_are_refused_with_the_leaf():
    other = MeanField(
        {**tree(0), "Dense_1": {"kernel": jnp.ones((4, 3))}},
        jax.tree.map(jnp.ones_like, {**tree(0), "Dense_1": {"kernel": jnp.ones((4, 3))}}),
    )
    for join in (geodesic, mixture_path):
        with pytest.raises(ValueError, match="Dense_1/kernel"):
            join(mean_field(0), other)
    with pytest.raises(ValueError, match="Dense_1/kernel"):
        line(mean_field(0).mean, other.mean)


def test_what_has_no_path_is_refused():
    mixed = Mixture((mean_field(0), mean_field(1)), jnp.asarray([0.5, 0.5]))
    with pytest.raises(ValueError, match="use mixture"):
        geodesic(mixed, mean_field(0))
    with pytest.raises(ValueError, match="no coupling"):
        geodesic(mean_field(0), samples(1))
    with pytest.raises(ValueError, match="line joins params"):
        line(mean_field(0), mean_field(1))
    with pytest.raises(ValueError, match="for plain params use line"):
        geodesic(tree(0), tree(1))
    with pytest.raises(ValueError, match="running statistics"):
        geodesic(mean_field(0), MeanField(tree(1), tree(2, positive=True), {"m": jnp.ones(4)}))
