"""Alignment of whole networks: planted permutations, noise, activations."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from alignment_cases import mlp_shapes, mlp_symmetry, random_like, relu_mlp, same_tree
from onebasin.alignment import Activations, align
from onebasin.networks import MLP, ResNet20
from onebasin.posterior import MeanField
from onebasin.symmetry import find_symmetry

NETWORKS = {
    "MLP": (MLP(widths=(512, 512, 512), num_classes=10), (28, 28, 1)),
    "ResNet20": (ResNet20(width=16), (32, 32, 3)),
}


@cache
def untrained(name):
    """A posterior before training: random means, one std for all."""
    net, shape = NETWORKS[name]
    x = jnp.zeros((2, *shape))
    params = jax.jit(net.init)(jax.random.key(0), x)["params"]
    apply = lambda p, x: net.apply({"params": p}, x)
    std = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.01), params)
    return MeanField(params, std), find_symmetry(apply, params, x)


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("objective", ["w2", "l2"])
def test_planted_permutations_are_undone_exactly(name, objective):
    q, sym = untrained(name)
    assert len(sym.groups) == (3 if name == "MLP" else 12)
    for seed in range(3):
        planted = sym.random(key=jax.random.key(seed))
        found = align(sym.act(planted, q), to=q, symmetry=sym, objective=objective)
        assert same_tree(found.posterior, q)
        assert found.distance_after == 0


@pytest.mark.parametrize("name", list(NETWORKS))
def test_noise_on_the_copy(name):
    """Noise of 0.3 of each array's std, on an untrained network: every unit is still right."""
    q, sym = untrained(name)
    for seed in range(2):
        keys = iter(jax.random.split(jax.random.key(seed), 200))
        noisy = jax.tree.map(
            lambda m, keys=keys: m + 0.3 * jnp.std(m) * jax.random.normal(next(keys), m.shape),
            q.mean,
        )
        planted = sym.random(key=jax.random.key(seed))
        copy = sym.act(planted, MeanField(noisy, q.std))
        found = align(copy, to=q, symmetry=sym)
        assert found.permutation == sym.inverse(planted)


@pytest.mark.parametrize(
    "options", [{}, {"centred": True}, {"correlation": True}], ids=["plain", "centred", "corr"]
)
def test_activations_undo_what_was_planted(options):
    shapes = mlp_shapes((16, 12))
    params = random_like(shapes, 0)
    sym = mlp_symmetry(params)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(50, 5)))
    planted = sym.random(key=jax.random.key(1))
    objective = Activations(relu_mlp, x, **options)
    found = align(sym.act(planted, params), to=params, symmetry=sym, objective=objective)
    assert found.permutation == sym.inverse(planted)
    assert found.distance_after == pytest.approx(0, abs=1e-8)
    assert found.distance_before > 1
    assert found.solves <= len(sym.groups)  # groups do not depend on each other


def record(params, x, symmetry, state):
    """The hidden units of an MLP with one hidden layer, by hand."""
    del symmetry, state
    hidden = x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    return {"hidden_0": jax.nn.relu(hidden).T}


def test_centred_and_correlated_activations_are_covariances_and_correlations(x64):
    shapes = mlp_shapes((6,))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(40, 5)))
    differs = {"centred": 0, "correlation": 0}
    for seed in range(6):
        # Biases keep every unit active on some inputs: a dead unit has no correlation.
        a, b = random_like(shapes, seed), random_like(shapes, seed + 50)
        a["Dense_0"]["bias"], b["Dense_0"]["bias"] = jnp.ones(6), jnp.ones(6)
        sym = mlp_symmetry(a)
        za, zb = (np.asarray(record(p, x, sym, None)["hidden_0"]) for p in (a, b))
        plain = align(b, to=a, symmetry=sym, objective=Activations(relu_mlp, x)).permutation
        expected = {
            "centred": 40 * np.cov(za, zb, bias=True)[:6, 6:],
            "correlation": 40 * np.corrcoef(za, zb)[:6, 6:],
        }
        for option, pairs in expected.items():
            centred, correlation = option == "centred", option == "correlation"
            objective = Activations(
                relu_mlp, x, centred=centred, correlation=correlation, sites="after"
            )
            found = align(b, to=a, symmetry=sym, objective=objective)
            rows, columns = linear_sum_assignment(pairs, maximize=True)
            assert found.permutation["hidden_0"].tolist() == columns.tolist()
            assert found.score == pytest.approx(pairs[rows, columns].sum(), rel=1e-12)
            differs[option] += found.permutation != plain
    assert min(differs.values()) > 0  # otherwise plain inner products would pass, too


def test_activations_score_is_the_inner_product():
    shapes = mlp_shapes((6,))
    a, b = random_like(shapes, 0), random_like(shapes, 1)
    sym = mlp_symmetry(a)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(30, 5)))

    by_hand = align(b, to=a, symmetry=sym, objective=Activations(relu_mlp, x, record=record))
    traced = align(b, to=a, symmetry=sym, objective=Activations(relu_mlp, x))
    assert by_hand.permutation == traced.permutation
    za, zb = (np.asarray(record(p, x, sym, None)["hidden_0"], np.float64) for p in (a, b))
    inner = np.vdot(za, zb[by_hand.permutation["hidden_0"]])
    # float32 activations, 180 products
    assert by_hand.score == pytest.approx(inner, rel=1e-5)
    distance = np.sum((za - zb[by_hand.permutation["hidden_0"]]) ** 2) / 30
    assert by_hand.distance_after == pytest.approx(distance, rel=1e-5)


def test_a_start_from_data():
    shapes = mlp_shapes((16, 12))
    to = random_like(shapes, 0)
    noise = random_like(shapes, 1, 0.2)
    sym = mlp_symmetry(to)
    planted = sym.random(key=jax.random.key(1))
    q = sym.act(planted, jax.tree.map(jnp.add, to, noise))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(50, 5)))
    found = align(q, to=to, symmetry=sym, starts=(Activations(relu_mlp, x), "identity"))
    assert [s.name for s in found.starts] == ["activations", "identity"]
    assert found.permutation == sym.inverse(planted)
