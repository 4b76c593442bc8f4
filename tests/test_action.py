"""The action of permutations on params and posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from onebasin.posterior import Kronecker, LowRank, LowRankPrecision, MeanField, Mixture, Samples
from onebasin.posterior.kronecker import sides
from onebasin.symmetry import Permutation, Symmetry, find_symmetry, stack
from onebasin.trees import leaves_by_path

# Everything that makes the action hard: products, one group on two axes of one array, two groups on
# one array, and a leaf that does not move.
SHAPES = {"w": (3, 4), "gates": (4, 8), "square": (4, 4), "flat": (12, 2), "free": (5,)}
SYMMETRY = Symmetry.by_hand(
    {name: jnp.zeros(shape) for name, shape in SHAPES.items()},
    {
        "h": [("w", 1), ("gates", 0), ("square", 0), ("square", 1), ("flat", 0, (3, 1))],
        "g": [("gates", 1, (1, 2))],
    },
)


def params(seed: int, lead: tuple[int, ...] = ()) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.standard_normal(lead + s)) for k, s in SHAPES.items()}


def positive(tree):
    return {k: jnp.asarray(np.exp(0.3 * np.asarray(leaf))) for k, leaf in tree.items()}


def turned(which: int) -> dict[str, jax.Array]:
    """Orthogonal matrices for one side of every array."""
    rng = np.random.default_rng(which)
    sizes = {name: sides(shape)[which] for name, shape in SHAPES.items()}
    return {k: jnp.asarray(np.linalg.qr(rng.normal(size=(n, n)))[0]) for k, n in sizes.items()}


POSTERIORS = {
    "MeanField": lambda: MeanField(params(0), positive(params(1))),
    "LowRank": lambda: LowRank(params(0), positive(params(1)), params(2, (3,))),
    "LowRankPrecision": lambda: LowRankPrecision(params(0), positive(params(1)), params(2, (3,))),
    "Kronecker": lambda: Kronecker(params(0), positive(params(1)), turned(0), turned(1)),
    "Mixture": lambda: Mixture(
        (
            MeanField(params(0), positive(params(1))),
            LowRank(params(2), positive(params(3)), params(4, (2,))),
        ),
        jnp.array([0.3, 0.7]),
    ),
    "Samples": lambda: Samples(params(5, (6,)), jnp.array([0, 0, 0, 1, 1, 1])),
}
WITH_DENSITY = ["MeanField", "LowRank", "LowRankPrecision", "Kronecker", "Mixture"]


def equal(a, b) -> bool:
    same = jax.tree.map(lambda x, y: bool((np.asarray(x) == np.asarray(y)).all()), a, b)
    return all(jax.tree.leaves(same))


keys = st.integers(0, 10_000).map(jax.random.key)


@pytest.mark.fast
@given(keys, keys, st.sampled_from(list(POSTERIORS)))
@settings(max_examples=25)
def test_the_action_of_a_composition_is_two_actions(k1, k2, kind):
    p, q = SYMMETRY.random(key=k1), SYMMETRY.random(key=k2)
    theta, posterior = params(9), POSTERIORS[kind]()
    for target in (theta, posterior):
        composed = SYMMETRY.act(SYMMETRY.compose(p, q), target)
        assert equal(composed, SYMMETRY.act(p, SYMMETRY.act(q, target)))
        assert equal(SYMMETRY.act(SYMMETRY.inverse(p), SYMMETRY.act(p, target)), target)
        assert equal(SYMMETRY.act(SYMMETRY.identity(), target), target)
        assert type(composed) is type(target)


def moved_by_loops(p: Permutation, tree: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """The action, written as loops over units."""
    h, g = p["h"], p["g"]
    theta = {name: np.asarray(leaf) for name, leaf in tree.items()}
    moved = {name: np.empty_like(leaf) for name, leaf in theta.items()}
    for i in range(4):
        moved["w"][:, i] = theta["w"][:, h[i]]
        for j in range(4):
            moved["square"][i, j] = theta["square"][h[i], h[j]]
            for a in range(2):
                moved["gates"][i, 2 * j + a] = theta["gates"][h[i], 2 * g[j] + a]
        for b in range(3):
            moved["flat"][4 * b + i] = theta["flat"][4 * b + h[i]]
    moved["free"][:] = theta["free"]
    return moved


@pytest.mark.fast
@given(keys)
@settings(max_examples=25)
def test_the_action_is_its_definition(key):
    p = SYMMETRY.random(key=key)
    theta = params(1)
    expected = moved_by_loops(p, theta)
    assert equal(SYMMETRY.act(p, theta), expected)
    assert equal(SYMMETRY.act(p, jax.tree.map(np.asarray, theta)), expected)
    assert equal(jax.jit(lambda t: SYMMETRY.act(p, t))(theta), expected)


@given(keys)
@settings(max_examples=10)
def test_one_permutation_per_draw(key):
    drawn = [SYMMETRY.random(key=k) for k in jax.random.split(key, 6)]
    samples = POSTERIORS["Samples"]()
    stacked = stack(drawn)
    moved = SYMMETRY.act(stacked, samples)
    traced = jax.jit(lambda s: SYMMETRY.act(stacked, s))(samples)
    for i, p in enumerate(drawn):
        expected = SYMMETRY.act(p, samples.draw(i))
        assert equal(moved.draw(i), expected)
        assert equal(traced.draw(i), expected)
    assert equal(moved.chain, samples.chain)


@pytest.mark.fast
@pytest.mark.parametrize("kind", WITH_DENSITY)
def test_density_transport(kind, x64):
    """log P#q(Pθ) = log q(θ): a permutation of coordinates has no volume factor."""
    posterior = POSTERIORS[kind]()
    for seed in range(3):
        p = SYMMETRY.random(key=jax.random.key(seed))
        theta = params(20 + seed)
        moved = SYMMETRY.act(p, posterior).log_prob(SYMMETRY.act(p, theta))
        # Sums in another order: rounding in double precision of a few hundred terms of size one.
        np.testing.assert_allclose(moved, posterior.log_prob(theta), rtol=1e-12)
        assert not np.isclose(posterior.log_prob(SYMMETRY.act(p, theta)), moved, rtol=1e-6)


def test_moments_move_with_the_posterior(x64):
    p = SYMMETRY.random(key=jax.random.key(0))
    for build in POSTERIORS.values():
        posterior = build()
        for before, after in zip(
            posterior.moments(), SYMMETRY.act(p, posterior).moments(), strict=True
        ):
            moved = SYMMETRY.act(p, before)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), after, moved)


def test_large_arrays_move_in_blocks_and_threads():
    shapes = {"w": (700, 900), "conv": (3, 3, 200, 250)}
    theta = {
        k: np.random.default_rng(0).normal(size=s).astype(np.float32) for k, s in shapes.items()
    }
    symmetry = Symmetry.by_hand(
        theta, {"a": [("w", 0)], "b": [("w", 1)], "c": [("conv", 2)], "d": [("conv", 3)]}
    )
    p = symmetry.random(key=jax.random.key(0))
    moved = symmetry.act(p, theta)
    np.testing.assert_array_equal(moved["w"], theta["w"][p["a"]][:, p["b"]])
    np.testing.assert_array_equal(moved["conv"], theta["conv"][:, :, p["c"]][..., p["d"]])


def test_the_result_does_not_change_when_the_original_is_deleted():
    theta = {"w": jnp.arange(3 * 4.0).reshape(3, 4)}
    symmetry = Symmetry.by_hand(theta, {"h": [("w", 1)]})
    moved = symmetry.act(Permutation({"h": [3, 2, 1, 0]}), theta)
    kept = np.array(moved["w"])
    del theta
    for i in range(20):
        jnp.full((3, 4), float(i)).block_until_ready()
    np.testing.assert_array_equal(moved["w"], kept)


def test_params_of_another_network_are_refused():
    p = SYMMETRY.identity()
    with pytest.raises(ValueError, match="leaf 'w' has shape"):
        SYMMETRY.act(p, {**params(0), "w": jnp.zeros((3, 5))})
    with pytest.raises(ValueError, match="leaf 'free' is missing"):
        SYMMETRY.act(p, {k: v for k, v in params(0).items() if k != "free"})
    with pytest.raises(ValueError, match="leaf 'more' is not expected"):
        SYMMETRY.act(p, {**params(0), "more": jnp.zeros(1)})
    with pytest.raises(ValueError, match="stack of 2 but there are 6 draws"):
        SYMMETRY.act(stack([p, p]), POSTERIORS["Samples"]())
    with pytest.raises(ValueError, match="Samples"):
        SYMMETRY.act(stack([p, p]), params(0))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"h": [("nowhere", 0)]}, "names leaf 'nowhere'"),
        ({"h": [("w", 2)]}, "axis 2 of 'w'"),
        ({"h": [("w", 1), ("free", 0)]}, "4 units in one place and 5"),
        ({"h": [("flat", 0, (5, 1))]}, "does not divide"),
        ({"h": [("w", 1)], "g": [("w", 1)]}, "named by two groups"),
    ],
)
def test_impossible_groups_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        Symmetry.by_hand(params(0), groups)


def test_one_row_for_each_unit():
    theta = params(3)
    for group in SYMMETRY.groups:
        for place in group.places:
            array = np.asarray(theta[place.leaf])
            rows = place.rows(array)
            assert rows.shape == (
                group.size,
                place.positions.shape[1] * array.size // array.shape[place.axis],
            )
            for unit in range(group.size):
                expected = np.take(array, place.positions[unit], axis=place.axis)
                assert sorted(rows[unit].tolist()) == sorted(expected.ravel().tolist())
            # Rows of two arrays must correspond entry by entry: a stack has the same order.
            stacked = place.rows(np.stack([array, array]), lead=1)
            np.testing.assert_array_equal(stacked[1], rows)


def test_rows_of_a_moved_array_are_the_moved_rows():
    """Alignment relies on this: permuting one group permutes the rows of its places."""
    network, x = zoo.densely_connected()
    symmetry = find_symmetry(network.apply, network.params, x, check=False)
    for group in symmetry.groups:
        p = Permutation(
            {**symmetry.identity().indices, group.name: np.roll(np.arange(group.size), 1)}
        )
        moved = symmetry.act(p, network.params)
        for place in group.places:
            before = place.rows(leaves_by_path(network.params)[place.leaf])
            after = place.rows(leaves_by_path(moved)[place.leaf])
            np.testing.assert_array_equal(after, before[p[group.name]])
