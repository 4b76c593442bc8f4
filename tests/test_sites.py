"""Sites of units, and their moments over data: against NumPy, and one batch against many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import mlp_shapes, random_like, relu_mlp
from onebasin.alignment import Activations, align, sites
from onebasin.alignment.sites import PairMoments, UnitSites
from onebasin.networks import ResNet20
from onebasin.symmetry import find_symmetry


@pytest.fixture
def residual(x64):
    """A stream of 3 units with two blocks: its sites are known by hand."""

    def apply(params, x, taps=None):
        stream = x @ params["stem"]
        for block in ("a", "b"):
            normed = jnp.tanh(stream)
            inner = normed @ params[f"{block}_in"] + params[f"{block}_bias"]
            made = jnp.maximum(inner, 0) @ params[f"{block}_out"]
            if taps is not None:
                taps |= {f"{block}_read": normed, f"{block}_inner": inner}
                taps |= {f"{block}_relu": jnp.maximum(inner, 0), f"{block}_made": made}
            stream = stream + made
        if taps is not None:
            taps |= {"stem": x @ params["stem"], "head": stream}
        return stream @ params["head"]

    rng = np.random.default_rng(0)
    shapes = {"stem": (4, 3), "a_in": (3, 5), "a_bias": (5,), "a_out": (5, 3), "head": (3, 2)}
    shapes |= {"b_in": (3, 6), "b_bias": (6,), "b_out": (6, 3)}
    # The shifts keep every unit alive.
    pair = [
        {k: jnp.asarray(rng.normal(size=s) + len(s) % 2) for k, s in shapes.items()}
        for _ in range(2)
    ]
    return apply, pair, jnp.asarray(rng.normal(size=(50, 4)))


STREAM = {"a_read", "b_read", "head", "stem", "a_made", "b_made"}


def test_every_site_of_a_residual_stream_counts_alike(residual, x64):
    apply, (a, b), x = residual
    sym = find_symmetry(apply, a, x)
    objective = Activations(apply, x, correlation=True)
    (scores,) = objective.features(b, a, sym).target
    taps = ({}, {})
    apply(a, x, taps[0])
    apply(b, x, taps[1])
    by_hand = {
        "stem": STREAM,
        "a_in": {"a_inner", "a_relu"},
        "b_in": {"b_inner", "b_relu"},
    }
    for name, tapped in by_hand.items():
        count = len(tapped)
        each = [np.corrcoef(taps[0][t].T, taps[1][t].T) for t in sorted(tapped)]
        size = sym[name].size
        expected = sum(c[:size, size:] for c in each) / count
        np.testing.assert_allclose(scores[name], expected, rtol=1e-10, atol=1e-12)


def test_with_equal_sites_the_scale_of_one_site_does_not_matter(residual, x64):
    """A layer whose weights are a thousand times larger does not outweigh the other sites."""
    shapes = mlp_shapes((6,))
    a, b = random_like(shapes, 0), random_like(shapes, 1)
    sym = find_symmetry(relu_mlp, a, jnp.ones((2, 5)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(40, 5)))
    objective = Activations(relu_mlp, x, centred=True, sites="all")
    (plain,) = objective.features(b, a, sym).target
    grown = {**b, "Dense_0": jax.tree.map(lambda leaf: 1000 * leaf, b["Dense_0"])}
    (scaled,) = objective.features(grown, a, sym).target
    np.testing.assert_allclose(scaled["Dense_0"], plain["Dense_0"], rtol=1e-10)


@pytest.mark.parametrize("which", ["all", "after"])
@pytest.mark.parametrize("options", [{}, {"centred": True}, {"correlation": True}])
def test_many_batches_equal_one(residual, monkeypatch, options, which):
    apply, (a, b), x = residual
    sym = find_symmetry(apply, a, x)

    def run():
        objective = Activations(apply, x, sites=which, **options)
        pair = objective.features(b, a, sym)
        assert pair.distance is not None
        return pair.target[0], pair.distance(sym.identity())

    scores, distance = run()
    monkeypatch.setattr(sites, "BATCH", 7)  # the last batch has fewer examples
    streamed, streamed_distance = run()
    for name, expected in scores.items():
        np.testing.assert_allclose(streamed[name], expected, rtol=1e-10, atol=1e-10)
    assert streamed_distance == pytest.approx(distance, rel=1e-10)


def test_merged_moments_do_not_cancel():
    """Units with a mean a thousand times their spread, in float32, against float64."""
    rng = np.random.default_rng(0)
    z0, z1 = (1000 + rng.normal(size=(3, 400)).astype(np.float32) for _ in range(2))
    found = PairMoments.of(z0[:, :10], z1[:, :10])
    for start in range(10, 400, 30):
        found.add(PairMoments.of(z0[:, start : start + 30], z1[:, start : start + 30]))
    expected = np.cov(z0.astype(float), z1.astype(float), bias=True) * 400
    np.testing.assert_allclose(found.cross, expected[:3, 3:], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.squares[0], np.diag(expected)[:3], rtol=1e-9)


def test_a_constant_unit_has_no_correlation():
    z = np.ones((2, 30), np.float32) * np.float32(0.1)
    z[1] = np.linspace(0, 1, 30)
    cross, a, b = PairMoments.of(z, z).products(centred=True)
    assert a[0] == b[0] == 0 < a[1]
    assert not cross[0].any()


def test_the_network_is_run_once_for_each_side(residual):
    """One trace, one program, and one pass for each side, distances included."""
    apply, (a, b), x = residual
    sym = find_symmetry(apply, a, x)
    calls = []

    def counted(params, x):
        calls.append(1)
        return apply(params, x)

    objective = Activations(counted, x, correlation=True)
    found = align(b, to=a, symmetry=sym, objective=objective)
    assert found.distance_after <= found.distance_before
    assert len(calls) == 1
    moved = Activations(apply, x, correlation=True).measure(found.posterior, a, sym)
    assert found.distance_after == pytest.approx(moved, rel=1e-10)


def test_filters_of_a_residual_network_are_seen_before_and_after():
    network = ResNet20(width=2)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 3)), jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), params)

    def apply(params, x):
        return jnp.asarray(network.apply({"params": params}, x))

    sym = find_symmetry(apply, params, x, check=False)
    found = UnitSites(apply, (params, None), x, sym, "all").found
    count = {}
    for site in found:
        count[site.group, site.where] = count.get((site.group, site.where), 0) + 1
    stem, inner = "stem", "stage1_block1/conv1"
    assert count[stem, "before"] == 4  # the stem and the second layer of three blocks
    assert count[stem, "after"] >= 4  # read by three blocks and the next stage
    assert count[inner, "before"] == count[inner, "after"] == 1
