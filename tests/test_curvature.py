"""The mass from the curvature against dense algebra, known Fisher information and known orders."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from onebasin.inference import curvature
from onebasin.inference.curvature import (
    Factors,
    fisher_factors,
    kronecker_metric,
    mass_of,
    orders_of,
    sides,
    symmetrised,
)
from onebasin.inference.fit import fit
from onebasin.inference.full_batch import chunked
from onebasin.inference.methods import HMC
from onebasin.problem import Problem
from onebasin.symmetry import find_symmetry

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(5)
SHAPES = {"bias": (3,), "conv": (2, 2, 3, 4), "kernel": (5, 4), "scalar": ()}


def positive(n):
    root = RNG.normal(size=(n, n))
    return jnp.asarray(root @ root.T)


def tree(make):
    return {name: jnp.asarray(make(shape)) for name, shape in SHAPES.items()}


def factors_of_shapes():
    return [Factors(*map(positive, sides(shape))) for shape in SHAPES.values()]


def dense_mass(factors, variances, diagonal=False):
    """1/v + L ⊗ R / tr, block by block, as one matrix."""
    blocks = []
    for (rows, columns), variance in zip(factors, variances, strict=True):
        left, right = (np.diag(np.diag(f)) if diagonal else np.asarray(f) for f in (rows, columns))
        trace = (np.trace(left) + np.trace(right)) / 2
        blocks.append(np.eye(len(left) * len(right)) / variance + np.kron(left, right) / trace)
    whole = np.zeros((sum(map(len, blocks)),) * 2)
    at = np.cumsum([0, *map(len, blocks)])
    for block, start, end in zip(blocks, at, at[1:], strict=False):
        whole[start:end, start:end] = block
    return whole


@pytest.mark.parametrize("largest", [4096, 3])
def test_the_metric_is_that_of_the_dense_mass(monkeypatch, largest):
    """Sides longer than LARGEST keep their diagonal; here either none or all above 3."""
    monkeypatch.setattr(curvature, "LARGEST", largest)
    factors, variances = factors_of_shapes(), [1.0, 0.5, 2.0, 0.1]
    kept = [Factors(*(f if len(f) <= largest else jnp.diag(f) for f in both)) for both in factors]
    cut = [Factors(*(f if f.ndim == 2 else jnp.diag(f) for f in both)) for both in kept]
    mass = dense_mass(cut, variances)
    metric = kronecker_metric(mass_of(kept, variances))
    momentum, other = tree(lambda s: RNG.normal(size=s)), tree(lambda s: RNG.normal(size=s))
    p, o = ravel_pytree(momentum)[0], ravel_pytree(other)[0]
    energies = [0.5 * v @ np.linalg.solve(mass, v) for v in (p, o)]
    np.testing.assert_allclose(metric.kinetic_energy(momentum), energies[0], rtol=1e-10)
    velocity = ravel_pytree(jax.grad(metric.kinetic_energy)(momentum))[0]
    np.testing.assert_allclose(velocity, np.linalg.solve(mass, p), rtol=1e-9)
    rise = metric.kinetic_difference(momentum, other)
    np.testing.assert_allclose(rise, energies[0] - energies[1], rtol=1e-9)


def test_momenta_have_the_mass_as_covariance():
    factors, variances = factors_of_shapes(), [1.0, 0.5, 2.0, 0.1]
    metric = kronecker_metric(mass_of(factors, variances))
    like = tree(np.zeros)
    keys = jax.random.split(jax.random.key(1), 40_000)
    drawn = jax.vmap(lambda key: ravel_pytree(metric.sample_momentum(key, like))[0])(keys)
    # Whitened by the dense mass the draws must be standard normal: entries of their covariance
    # err by 1/√40,000 = 0.005, of some 2,500 the largest by about four times that.
    white = np.linalg.solve(np.linalg.cholesky(dense_mass(factors, variances)), drawn.T)
    np.testing.assert_allclose(white @ white.T / len(keys), np.eye(len(white)), atol=0.03)


def test_the_fisher_information_of_a_linear_model():
    """For y = xW + noise: L = b XᵀX/σ², R = tr(XᵀX)/σ² 1, and for one column F itself."""
    x = RNG.normal(size=(300, 3)) * [3.0, 1.0, 0.2]
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda key: {"w": jax.random.normal(key, (3, 2))},
        data=(x, np.zeros((300, 2))),
        likelihood="gaussian",
        noise_std=0.5,
        temperature=0.1,
    )
    data = chunked(problem, 70)  # with padding, which no estimate may see
    estimate = jax.jit(lambda key: fisher_factors(problem, problem.init(key), key, data.x))
    found = [estimate(key)[0] for key in jax.random.split(jax.random.key(0), 60)]
    rows, columns = (np.mean([np.asarray(f[i]) for f in found], 0) for i in (0, 1))
    second = x.T @ x / 0.25 / 0.1
    # 61,440 examples with normal noise: (Gu)² has a relative deviation of about √8.
    scale = np.sqrt(np.outer(np.diag(second), np.diag(second)))
    assert (np.abs(rows - 2 * second) < 5 * 2 * 3 / np.sqrt(61_440) * scale).all()
    assert (np.abs(columns / np.trace(second) - np.eye(2)) < 5 * 4 / np.sqrt(61_440)).all()


def test_labels_are_drawn_from_the_prediction():
    logits = jnp.log(jnp.array([[0.7, 0.2, 0.1]]))
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda key: {"w": jax.random.normal(key, (2, 3))},
        data=(np.ones((4, 2)), np.array([0, 1, 2, 0])),
    )
    drawn = problem.simulate(jnp.repeat(logits, 20_000, axis=0), jax.random.key(0))
    shares = np.bincount(drawn, minlength=3) / 20_000
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.1], atol=4 * 0.5 / np.sqrt(20_000))


class Convolved(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(3, (2, 2))(x))
        x = nn.relu(nn.Conv(4, (2, 2))(x))
        return nn.Dense(2)(x.reshape(len(x), -1))


def test_orders_move_rows_and_columns_as_the_symmetry_does(monkeypatch):
    monkeypatch.setattr(curvature, "ORDERS", 5)
    net, x = Convolved(), jnp.ones((2, 3, 3, 1))
    params = net.init(jax.random.key(0), x)["params"]
    symmetry = find_symmetry(lambda p, x: net.apply({"params": p}, x), params, x)
    assert len(symmetry.groups) == 2
    orders = orders_of(symmetry, params)
    for k, key in enumerate(jax.random.split(jax.random.key(0), 5)):
        moved = symmetry.act(symmetry.random(key=key), params)
        for (rows, columns), old, new in zip(
            orders, jax.tree.leaves(params), jax.tree.leaves(moved), strict=True
        ):
            matrix = np.asarray(old).reshape(sides(old.shape))
            matrix = matrix if rows is None else matrix[rows[k]]
            matrix = matrix if columns is None else matrix[:, columns[k]]
            np.testing.assert_array_equal(matrix, np.asarray(new).reshape(matrix.shape))


def test_the_mean_over_orders_is_that_over_all_permutations():
    side = positive(4)
    exact = np.mean(
        [np.asarray(side)[np.ix_(p, p)] for p in itertools.permutations(range(4))], axis=0
    )
    rng = np.random.default_rng(0)
    orders = np.stack([rng.permutation(4) for _ in range(20_000)])
    (found,) = symmetrised([Factors(side, side)], [(orders, None)])
    np.testing.assert_array_equal(found.columns, side)
    # Each entry is a mean of 20,000 entries of the matrix.
    error = 5 * float(jnp.abs(side).max()) / np.sqrt(20_000)
    np.testing.assert_allclose(found.rows, exact, atol=error)


def stiff():
    """Directions whose widths lie a factor of 300 apart, and a hidden layer to permute."""
    x = RNG.normal(size=(200, 3)) * [10.0, 1.0, 0.05] + [5.0, 0.0, 0.0]
    y = np.tanh(x[:, :1])
    return Problem(
        apply=lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"],
        init=lambda key: {
            name: 0.3 * jax.random.normal(jax.random.fold_in(key, i), shape)
            for i, (name, shape) in enumerate({"a": (3, 4), "b": (4, 1)}.items())
        },
        data=(x, y),
        likelihood="gaussian",
        noise_std=0.3,
    )


def test_long_steps_are_accepted_where_unit_mass_refuses_all():
    settings = {"draws": 60, "warmup": 60, "chains": 2, "leapfrog_steps": 12, "step_size": 0.13}
    found = {
        mass: fit(
            stiff(),
            HMC(**settings, adapt_step_size=False, mass=mass),
            key=jax.random.key(0),
            progress="silent",
        )
        for mass in ("unit", "curvature")
    }
    assert found["unit"].stats["acceptance"].max() < 0.1
    assert found["curvature"].stats["acceptance"].min() > 0.5


def test_the_mass_stands_still_after_two_thirds_of_the_warm_up():
    problem = stiff()
    mass = curvature.build_curvature(problem, warmup=12)
    data, key = chunked(problem, 200), jax.random.key(0)
    position = problem.init(key)
    states = [mass.init(position, key, data)]
    update = jax.jit(lambda state, n: mass.update(state, n, position, jax.random.key(n + 1), data))
    for n in range(12):
        states.append(update(states[-1], n))
    changed = [
        not np.array_equal(a.mass[0].inverse, b.mass[0].inverse)
        for a, b in itertools.pairwise(states)
    ]
    assert np.flatnonzero(changed).tolist() == [0, 1, 3, 7]
    # 1 estimate at the start and 8 later ones, halved after the 1st, 2nd, 4th and 8th.
    assert float(states[-1].weight) == ((((1 + 1) / 2 + 1) / 2 + 2) / 2 + 4) / 2
