"""The generalised Gauss–Newton matrix of the log likelihood, and what a Laplace fit keeps of it.

G = Σᵢ Jᵢᵀ Λᵢ Jᵢ, where Jᵢ is the Jacobian of the outputs for example i, and Λᵢ is the Hessian of
−(ρ/T) log p(yᵢ | f) with respect to the outputs f, by automatic differentiation. Everything is in
coordinates θ/√v, with v the variances of the prior: there the prior has precision one, and
G̃ = √v G √v.

A structure is accumulated in steps of the loop of a fit. It knows the eigenvalues λ of what it
keeps of G̃, and turns them into a posterior for a prior of precision τ.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.derivatives import along
from onebasin.inference.noise import fast_normal_like
from onebasin.posterior import LowRankPrecision, MeanField
from onebasin.problem import Batch, Problem, weight_of_predictions
from onebasin.trees import PyTree, num_parameters, take_entry, tree_dot

ROWS_BYTES = 1 << 26  # Jacobians of a few examples at once
NEGLIGIBLE = 100  # rounding errors of the largest eigenvalue below which a remainder is noise


class Structure(Protocol):
    """What a Laplace fit keeps of G̃, over `steps` steps of the loop."""

    steps: int

    @property
    def trees(self) -> int:
        """The size of the posterior's file, in trees of params."""
        ...

    def init(self, params: PyTree, key: jax.Array) -> Any: ...
    def step(self, kept: Any, params: PyTree, j: jax.Array, key: jax.Array, data: Batch) -> Any: ...
    def eigenvalues(self, kept: Any) -> np.ndarray:
        """The eigenvalues of G̃, as far as they are not zero."""
        ...

    def posterior(self, kept: Any, mean: PyTree, precision: float) -> Any: ...
    def newton_gain(self, kept: Any, gradient: PyTree) -> float:
        """½ gᵀ(G̃ + I)⁻¹g for the gradient g of the log posterior in these coordinates."""
        ...


def gauss_newton_times(problem: Problem, params: PyTree, batch: Batch, vector: PyTree) -> PyTree:
    """G times a vector for one batch, without a matrix."""
    outputs = lambda p: problem.apply(p, batch.x)
    weight = batch.weight

    def loss(f: jax.Array) -> jax.Array:
        log_p = problem.log_likelihood(f, batch.y)
        weighted = log_p if weight is None else weight_of_predictions(weight, log_p) * log_p
        return -problem.likelihood_scale * jnp.sum(weighted)

    out, moved = along(outputs, params, vector)
    _, curved = jax.jvp(jax.grad(loss), (out,), (moved,))
    (product,) = jax.vjp(outputs, params)[1](curved)
    return product


def gauss_newton_diagonal(problem: Problem, params: PyTree, batch: Batch) -> PyTree:
    """The diagonal of G for one batch, exactly."""

    def of_rows(rows: PyTree, weight: jax.Array) -> PyTree:
        return jax.tree.map(lambda r: weight.astype(r.dtype) * jnp.sum(r**2, axis=0), rows)

    return over_jacobian_rows(problem, params, batch, of_rows)


def over_jacobian_rows(
    problem: Problem,
    params: PyTree,
    batch: Batch,
    of_rows: Callable[[PyTree, jax.Array], PyTree],
) -> PyTree:
    """ρ/T times the sum over the examples of `of_rows(rows, weight)`, a few of them at a time.

    The rows [c, ...] of an example are Jᵢᵀ lᵢ_c with Λᵢ = Σ_c lᵢ_c lᵢ_cᵀ, so that its part of G is
    Σ_c of their outer products.
    """
    width = math.prod(jax.eval_shape(problem.apply, params, batch.x[:1]).shape[1:])
    row = 4 * max(width, 1) * num_parameters(params)
    group = max(1, min(len(batch.x), ROWS_BYTES // row))
    groups = -(-len(batch.x) // group)
    picks = jnp.minimum(jnp.arange(groups * group), len(batch.x) - 1).reshape(groups, group)
    real = (jnp.arange(groups * group) < len(batch.x)).reshape(groups, group)

    def of_example(x: jax.Array, y: jax.Array, weight: jax.Array) -> PyTree:
        outputs = lambda p: problem.apply(p, x[None])
        out, back = jax.vjp(outputs, params)
        loss = lambda f: -problem.log_likelihood(f.reshape(out.shape), y[None]).sum()
        values, vectors = jnp.linalg.eigh(jax.hessian(loss)(out.reshape(-1)))
        # Rounding makes some zeros negative.
        roots = (vectors * jnp.sqrt(jnp.maximum(values, 0))).T.reshape(-1, *out.shape)
        (rows,) = jax.vmap(back)(roots)
        return of_rows(rows, weight)

    def add(total: PyTree, group: tuple[jax.Array, jax.Array]) -> tuple[PyTree, None]:
        index, counts = group
        weight = counts if batch.weight is None else counts * batch.weight[index]
        squares = jax.vmap(of_example)(batch.x[index], batch.y[index], weight)
        return jax.tree.map(lambda t, s: t + s.sum(0), total, squares), None

    one = jax.eval_shape(lambda: of_example(batch.x[0], batch.y[0], jnp.ones(())))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), one)
    total, _ = jax.lax.scan(add, zeros, (picks, real))
    return jax.tree.map(lambda leaf: problem.likelihood_scale * leaf, total)


class Diagonal:
    """diag(G̃), one chunk of the data per step; the posterior is a `MeanField`."""

    def __init__(self, problem: Problem, chunks: int) -> None:
        self.problem, self.steps, self.trees = problem, chunks, 2

    def init(self, params: PyTree, key: jax.Array) -> PyTree:
        del key
        return jax.tree.map(jnp.zeros_like, params)

    def step(self, kept: PyTree, params: PyTree, j: jax.Array, key: jax.Array, data: Batch) -> Any:
        del key
        found = gauss_newton_diagonal(self.problem, params, take_entry(data, j))
        return jax.tree.map(lambda k, g, v: k + v * g, kept, found, self.problem.prior_variances)

    def eigenvalues(self, kept: PyTree) -> np.ndarray:
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(kept)])

    def posterior(self, kept: PyTree, mean: PyTree, precision: float) -> MeanField:
        variances = self.problem.prior_variances
        std = jax.tree.map(lambda k, v: jnp.sqrt(v / (jnp.asarray(k) + precision)), kept, variances)
        return MeanField(mean, std)

    def newton_gain(self, kept: PyTree, gradient: PyTree) -> float:
        return float(sum(jax.tree.leaves(jax.tree.map(_gain, gradient, kept))))


class Basis(NamedTuple):
    """Lanczos vectors [rank, ...], the tridiagonal matrix in their basis, and the next vector."""

    vectors: PyTree
    diagonal: jax.Array
    beside: jax.Array
    following: PyTree


class LowRank:
    """The Rayleigh–Ritz approximation of G̃ in a Krylov space; the posterior a `LowRankPrecision`.

    One step is one product with all data and one Lanczos vector, orthogonalised twice against all
    before. If the space is invariant, as it is when eigenvalues coincide, it goes on from a random
    vector. A rank as large as the number of weights therefore gives G̃ itself.
    """

    def __init__(self, problem: Problem, rank: int) -> None:
        self.problem, self.steps = problem, min(rank, num_parameters(problem.shapes))
        self.scales = jax.tree.map(math.sqrt, problem.prior_variances)
        self.trees = 2 + self.steps

    def init(self, params: PyTree, key: jax.Array) -> Basis:
        vectors = jax.tree.map(lambda p: jnp.zeros((self.steps, *p.shape), p.dtype), params)
        zeros = jnp.zeros(self.steps, jax.tree.leaves(params)[0].dtype)
        start = fast_normal_like(params, key=key)
        return Basis(vectors, zeros, zeros, _normalised(start))

    def step(self, kept: Basis, params: PyTree, j: jax.Array, key: jax.Array, data: Batch) -> Basis:
        vector = kept.following
        vectors = jax.tree.map(lambda b, v: b.at[j].set(v), kept.vectors, vector)
        scaled = jax.tree.map(jnp.multiply, vector, self.scales)

        def add(total: PyTree, chunk: Batch) -> tuple[PyTree, None]:
            product = gauss_newton_times(self.problem, params, chunk, scaled)
            return jax.tree.map(jnp.add, total, product), None

        product, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), data)
        product = jax.tree.map(jnp.multiply, product, self.scales)
        diagonal = kept.diagonal.at[j].set(_dot(vector, product))
        remainder = _orthogonal(vectors, _orthogonal(vectors, product))
        length = jnp.sqrt(_dot(remainder, remainder))
        largest = jnp.max(jnp.abs(diagonal))
        ends = length <= NEGLIGIBLE * jnp.finfo(length.dtype).eps * largest
        fresh = fast_normal_like(params, key=jax.random.fold_in(key, j))
        fresh = _orthogonal(vectors, _orthogonal(vectors, fresh))
        chosen = jax.tree.map(lambda f, r: jnp.where(ends, f, r), fresh, remainder)
        beside = kept.beside.at[j].set(jnp.where(ends, 0, length))
        return Basis(vectors, diagonal, beside, _normalised(chosen))

    def _spectrum(self, kept: Basis) -> tuple[np.ndarray, np.ndarray]:
        """Ritz values, and the coefficients of the Ritz vectors (columns) in the basis."""
        beside = np.asarray(kept.beside, np.float64)[:-1]
        matrix = np.diag(np.asarray(kept.diagonal, np.float64))
        matrix += np.diag(beside, 1) + np.diag(beside, -1)
        values, vectors = np.linalg.eigh(matrix)
        return np.maximum(values, 0), vectors

    def eigenvalues(self, kept: Basis) -> np.ndarray:
        return self._spectrum(kept)[0]

    def posterior(self, kept: Basis, mean: PyTree, precision: float) -> LowRankPrecision:
        values, vectors = self._spectrum(kept)
        combine = (vectors * np.sqrt(values)).T

        def factors(basis: jax.Array, scale: float) -> jax.Array:
            flat = np.asarray(basis).reshape(self.steps, -1)
            own = combine.astype(flat.dtype) @ flat / np.asarray(scale, flat.dtype)
            return jnp.asarray(own.reshape(basis.shape))

        std = jax.tree.map(
            lambda m, s: jnp.full_like(m, s / math.sqrt(precision)), mean, self.scales
        )
        return LowRankPrecision(mean, std, jax.tree.map(factors, kept.vectors, self.scales))

    def newton_gain(self, kept: Basis, gradient: PyTree) -> float:
        values, vectors = self._spectrum(kept)
        along = vectors.T @ np.asarray(_projections(kept.vectors, gradient), np.float64)
        return 0.5 * (
            float(tree_dot(gradient, gradient)) - float(np.sum(along**2 * values / (1 + values)))
        )


def _gain(gradient: jax.Array, curvature: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(gradient**2 / (1 + curvature))


def _dot(a: PyTree, b: PyTree) -> jax.Array:
    # `tree_dot` begins with a zero of single precision.
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, a, b))


def _normalised(tree: PyTree) -> PyTree:
    # All directions may be used up: then zero stays zero.
    length = jnp.sqrt(_dot(tree, tree))
    return jax.tree.map(lambda t: t / jnp.maximum(length, jnp.finfo(length.dtype).tiny), tree)


def _projections(vectors: PyTree, tree: PyTree) -> jax.Array:
    """The inner products [rank] with every vector of a basis."""
    along = jax.tree.map(lambda b, t: b.reshape(len(b), -1) @ t.reshape(-1), vectors, tree)
    return jax.tree.reduce(jnp.add, along)


def _orthogonal(vectors: PyTree, tree: PyTree) -> PyTree:
    """The part of a tree orthogonal to a basis; rows of zeros do no harm."""
    weights = _projections(vectors, tree)
    return jax.tree.map(lambda t, b: t - jnp.tensordot(weights, b, axes=1), tree, vectors)
