"""A mass for HMC from the network's own curvature, one Kronecker product per array.

Leapfrog steps are as short as the stiffest direction of the posterior asks, and a trajectory as
long as the widest. On a network of ReLUs the two lie a factor of hundreds apart: images share
their mean, hidden units are positive, so that moving all weights of one output together bends the
likelihood far more than the prior ever does. A mass near the posterior's precision,

    M = 1/v + (ρ/T) F,   F = Σᵢ E[vec Gᵢ vec Gᵢᵀ],   Gᵢ = ∇ log p(yᵢ | xᵢ, θ),

makes all directions about equally wide. Per array, with Gᵢ as a matrix (its last axis the columns),
F is taken to be L ⊗ R / tr F with L = Σ E[GᵢGᵢᵀ] and R = Σ E[GᵢᵀGᵢ], whose traces are tr F: exact
for one row or column, and where a layer's inputs and its outputs' gradients are independent
(Martens and Grosse 2015; Gupta et al. 2018). y is drawn from the network's prediction, and random
signs u turn both sums into plain products, E[(Gu)(Gu)ᵀ] = GGᵀ.

Any constant mass leaves the posterior invariant, so the approximation costs speed only. But units
wander: the curvature of one state is wrong for the same chain a few transitions later, so wrong
that trajectories diverge. What does not wander is its mean over the permutations of hidden units,
under which the posterior itself is invariant. So L and R are averaged over many random orders of
the units, and over the warm-up.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference.full_batch import accurate_sum
from onebasin.inference.metric import Metric
from onebasin.problem import Batch, Problem
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.trees import Tree

ORDERS = 256  # random orders of the hidden units to average over
PIECES = 64  # of examples, per estimate
PIECE = 16  # examples whose gradients are held at once
LARGEST = 4096  # side of an array whose eigenvectors are still taken; longer ones stay diagonal


class Factors(NamedTuple):
    """L and R of one array; only the diagonal of a side longer than LARGEST."""

    rows: jax.Array
    columns: jax.Array


class Kronecker(NamedTuple):
    """An array's inverse mass: eigenvectors of both sides (none if diagonal), and values."""

    rows: jax.Array
    columns: jax.Array
    inverse: jax.Array


class State(NamedTuple):
    """The mean of the estimates so far, as sums; earlier windows count half of later ones."""

    factors: list[Factors]
    weight: jax.Array
    mass: list[Kronecker]


class Curvature(NamedTuple):
    init: Callable[[Tree, jax.Array, Batch], State]
    update: Callable[[State, jax.Array, Tree, jax.Array, Batch], State]


def build_curvature(problem: Problem, warmup: int) -> Curvature:
    """Estimates after each transition of the first two thirds of the warm-up.

    They take force after 1, 2, 4, 8, … of them; the rest of the warm-up is for the step size.
    """
    until = 2 * warmup // 3
    start = problem.init(jax.random.key(0))
    orders = orders_of(find_symmetry(problem.apply, start, problem.x[:2]), start)
    variances = jax.tree.leaves(problem.prior_variances)

    def estimate(position: Tree, key: jax.Array, data: Batch) -> list[Factors]:
        return fisher_factors(problem, position, key, data.x)

    def mass(factors: list[Factors]) -> list[Kronecker]:
        return mass_of(symmetrised(factors, orders), variances)

    def init(position: Tree, key: jax.Array, data: Batch) -> State:
        factors = estimate(position, key, data)
        one = jnp.ones((), factors[0].rows.dtype)
        return State(factors, one, mass(factors))

    def update(state: State, n: jax.Array, position: Tree, key: jax.Array, data: Batch) -> State:
        """The state after transition n."""

        def add() -> State:
            more = estimate(position, key, data)
            factors = jax.tree.map(jnp.add, state.factors, more)
            grown = State(factors, state.weight + 1, state.mass)
            return jax.lax.cond(n & (n + 1) == 0, close, lambda held: held, grown)

        def close(held: State) -> State:
            mean = jax.tree.map(lambda sums: sums / held.weight, held.factors)
            halved = jax.tree.map(lambda sums: sums / 2, held.factors)
            return State(halved, held.weight / 2, mass(mean))

        return jax.lax.cond(n < until, add, lambda: state)

    return Curvature(init, update)


def orders_of(symmetry: Symmetry, params: Tree) -> list[tuple[np.ndarray | None, ...]]:
    """Random orders of every array's rows and columns, [ORDERS, n]; None where they stay."""
    shapes = [sides(leaf.shape) for leaf in jax.tree.leaves(params)]
    places = jax.tree.map(lambda leaf: np.arange(leaf.size).reshape(leaf.shape), params)
    found: list[tuple[list[np.ndarray], ...]] = [([], []) for _ in shapes]
    for key in jax.random.split(jax.random.key(0), ORDERS):
        moved = jax.tree.leaves(symmetry.act(symmetry.random(key=key), places))
        for (rows, columns), came_from, (a, b) in zip(found, moved, shapes, strict=True):
            came_from = np.asarray(came_from).reshape(a, b)
            rows.append(came_from[:, 0] // b)
            columns.append(came_from[0] % b)
    return [
        tuple(None if (np.diff(side) == 1).all() else np.stack(side) for side in both)
        for both in found
    ]


def symmetrised(
    factors: list[Factors], orders: list[tuple[np.ndarray | None, ...]]
) -> list[Factors]:
    """The mean of every side over the orders."""

    def mean(side: jax.Array, orders: np.ndarray | None) -> jax.Array:
        if orders is None:
            return side

        def add(total: jax.Array, order: jax.Array) -> tuple[jax.Array, None]:
            moved = side[order] if side.ndim == 1 else side[order[:, None], order]
            return total + moved, None

        return jax.lax.scan(add, jnp.zeros_like(side), jnp.asarray(orders))[0] / len(orders)

    return [Factors(*map(mean, both, moves)) for both, moves in zip(factors, orders, strict=True)]


def fisher_factors(problem: Problem, params: Tree, key: jax.Array, x: jax.Array) -> list[Factors]:
    """L and R of every array, for all of the data, from random examples; in the order of leaves.

    `x` is [chunks, size, ...].
    """
    leaves = jax.tree.leaves(params)
    x = x.reshape(-1, *x.shape[2:])
    pick_key, key = jax.random.split(key)
    picks = jax.random.randint(pick_key, (PIECES, PIECE), 0, problem.num_examples)

    def log_likelihood(params: Tree, x: jax.Array, key: jax.Array) -> jax.Array:
        outputs = problem.apply(params, x[None])
        y = problem.simulate(jax.lax.stop_gradient(outputs), key)
        return problem.log_likelihood(outputs, y)[0]

    def add(sums: list[Factors], piece: Any) -> tuple[list[Factors], None]:
        rows, key = piece
        keys = jax.random.split(key, PIECE)
        gradients = jax.vmap(jax.grad(log_likelihood), (None, 0, 0))(params, x[rows], keys)
        sign_keys = jax.random.split(jax.random.fold_in(key, PIECE), len(leaves))
        more = map(_probed, jax.tree.leaves(gradients), sign_keys)
        return jax.tree.map(jnp.add, sums, list(more)), None

    def zero(n: int, dtype: Any) -> jax.Array:
        return jnp.zeros((n, n) if n <= LARGEST else n, dtype)

    start = [Factors(*(zero(n, leaf.dtype) for n in sides(leaf.shape))) for leaf in leaves]
    sums, _ = jax.lax.scan(add, start, (picks, jax.random.split(key, PIECES)))
    scale = problem.likelihood_scale * problem.num_examples / (PIECES * PIECE)
    return jax.tree.map(lambda total: scale * total, sums)


def _probed(gradients: jax.Array, key: jax.Array) -> Factors:
    """GGᵀ and GᵀG summed over the examples, each through one vector of random signs."""
    a, b = sides(gradients.shape[1:])
    matrices = gradients.reshape(-1, a, b)
    row_key, column_key = jax.random.split(key)
    signs = jax.random.rademacher(column_key, (len(matrices), b), matrices.dtype)
    rows = jnp.einsum("nab,nb->na", matrices, signs)
    signs = jax.random.rademacher(row_key, (len(matrices), a), matrices.dtype)
    columns = jnp.einsum("nab,na->nb", matrices, signs)
    return Factors(*(v.T @ v if v.shape[1] <= LARGEST else (v**2).sum(0) for v in (rows, columns)))


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of an array as a matrix; a vector is one column."""
    if len(shape) < 2:
        return (shape[0] if shape else 1), 1
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows, shape[-1]


def mass_of(factors: list[Factors], variances: list[float]) -> list[Kronecker]:
    """1 / (1/v + l rᵀ / tr F) in the eigenvectors of both sides."""
    found = []
    for (rows, columns), variance in zip(factors, variances, strict=True):
        (left, u), (right, v) = _eigen(rows), _eigen(columns)
        total = jnp.maximum((left.sum() + right.sum()) / 2, jnp.finfo(left.dtype).tiny)
        found.append(Kronecker(u, v, 1 / (1 / variance + jnp.outer(left, right / total))))
    return found


def _eigen(side: jax.Array) -> tuple[jax.Array, jax.Array]:
    if side.ndim == 1:
        return side, jnp.zeros((0, 0), side.dtype)
    values, vectors = jnp.linalg.eigh(side)
    return jnp.maximum(values, 0), vectors


def kronecker_metric(mass: list[Kronecker]) -> Metric:
    def rotated(momentum: Tree) -> list[jax.Array]:
        """Uᵀ P V of every array."""
        leaves = jax.tree.leaves(momentum)
        return [
            _times(_times(leaf.reshape(m.inverse.shape).T, m.rows).T, m.columns)
            for leaf, m in zip(leaves, mass, strict=True)
        ]

    def sample_momentum(key: jax.Array, position: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(position)
        keys = jax.random.split(key, len(leaves))
        drawn = []
        for leaf, m, own in zip(leaves, mass, keys, strict=True):
            noise = jax.random.normal(own, m.inverse.shape, leaf.dtype) / jnp.sqrt(m.inverse)
            noise = _times(_times(noise, m.columns.T).T, m.rows.T).T
            drawn.append(noise.reshape(leaf.shape))
        return structure.unflatten(drawn)

    def kinetic_energy(momentum: Tree, position: Tree | None = None) -> jax.Array:
        del position
        parts = zip(rotated(momentum), mass, strict=True)
        return 0.5 * sum((accurate_sum(m.inverse * p**2) for p, m in parts), jnp.zeros(()))

    def kinetic_difference(end: Tree, start: Tree) -> jax.Array:
        fall = rotated(jax.tree.map(jnp.subtract, end, start))
        total = rotated(jax.tree.map(jnp.add, end, start))
        parts = zip(fall, total, mass, strict=True)
        return 0.5 * sum((accurate_sum(m.inverse * d * s) for d, s, m in parts), jnp.zeros(()))

    return Metric(sample_momentum, kinetic_energy, kinetic_difference)


def _times(matrix: jax.Array, vectors: jax.Array) -> jax.Array:
    return matrix @ vectors if vectors.size else matrix
