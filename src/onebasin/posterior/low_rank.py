"""A Gaussian whose covariance is diagonal plus low rank."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.posterior.checks import check_numbers
from onebasin.posterior.noise import check_count, gaussian_log_density, normal_like, repeat_state
from onebasin.posterior.protocol import Move, keep
from onebasin.trees import PyTree, all_arrays, check_same_shapes, num_parameters


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRank:
    """A Gaussian whose covariance is diagonal plus low rank, N(mean, diag(std²) + FFᵀ).

    A draw is θ = mean + std·ε + Σ_r factors[r]·z_r with ε, z standard normal.

    Args:
      mean: params.
      std: square roots of the diagonal part, a tree like `mean`.
      factors: the columns of F, a tree of leaves [rank, *leaf].
      state: running statistics, if the network has them.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q = ob.LowRank({"w": jnp.zeros(2)}, {"w": jnp.ones(2)}, {"w": jnp.array([[0.0, 2.0]])})
    >>> q
    LowRank(2 parameters, rank 1)
    >>> (q.moments()[1]["w"] ** 2).round(3).tolist()  # marginal variances
    [1.0, 5.0]
    """

    mean: PyTree
    std: PyTree
    factors: PyTree
    state: PyTree | None = None

    def __post_init__(self) -> None:
        if all_arrays((self.mean, self.std, self.factors)):
            check_same_shapes(self.mean, self.std, "the std of a LowRank")
            check_same_shapes(self.mean, self.factors, "the factors of a LowRank", lead=1)
            ranks = {np.shape(leaf)[0] for leaf in jax.tree.leaves(self.factors)}
            if len(ranks) > 1:
                raise ValueError(
                    f"the factors of a LowRank have different ranks {sorted(ranks)}; give one rank"
                )
            check_numbers("the mean of a LowRank", self.mean)
            check_numbers("the std of a LowRank", self.std, positive=True)
            check_numbers("the factors of a LowRank", self.factors)

    def __repr__(self) -> str:
        return f"LowRank({num_parameters(self.mean):,} parameters, rank {self.rank})"

    @property
    def rank(self) -> int:
        """The number of factors."""
        return jax.tree.leaves(self.factors)[0].shape[0]

    @property
    def like(self) -> PyTree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        return self.mean

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree:
        """One draw, or `count` draws along a leading axis of every leaf."""
        check_count(count)
        diagonal_key, factor_key = jax.random.split(key)
        noise = normal_like(self.mean, count, key=diagonal_key)
        lead = () if count is None else (count,)
        z = jax.random.normal(factor_key, (*lead, self.rank), jax.tree.leaves(self.mean)[0].dtype)

        def leaf(m: jax.Array, s: jax.Array, f: jax.Array, e: jax.Array) -> jax.Array:
            return m + s * e + jnp.tensordot(z.astype(f.dtype), f, axes=1)

        return jax.tree.map(leaf, self.mean, self.std, self.factors, noise)

    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        del key
        return repeat_state(self.state, count)

    def moments(self) -> tuple[PyTree, PyTree]:
        """Mean and marginal standard deviation √(std² + Σ_r factors²) of every coordinate."""
        std = jax.tree.map(
            lambda s, f: jnp.sqrt(jnp.square(s) + jnp.sum(jnp.square(f), axis=0)),
            self.std,
            self.factors,
        )
        return self.mean, std

    def log_prob(self, params: PyTree) -> jax.Array:
        """log q(params) by the matrix determinant lemma and Woodbury's identity, O(rank² · size).

        With D = diag(std²), C = I + FᵀD⁻¹F and r = θ − mean:
        log|D + FFᵀ| = log|D| + log|C|,  rᵀ(D + FFᵀ)⁻¹r = rᵀD⁻¹r − uᵀC⁻¹u,  u = FᵀD⁻¹r.
        """
        rank = self.rank
        diagonal = jnp.zeros(())
        gram = jnp.eye(rank)
        projected = jnp.zeros(rank)
        leaves = zip(
            *map(jax.tree.leaves, (params, self.mean, self.std, self.factors)), strict=True
        )
        for x, m, s, f in leaves:
            diagonal += gaussian_log_density(x, m, s)
            scaled = (f / s).reshape(rank, -1)
            gram += scaled @ scaled.T
            projected += scaled @ ((x - m) / s).reshape(-1)
        cholesky = jnp.linalg.cholesky(gram)
        whitened = jax.scipy.linalg.solve_triangular(cholesky, projected, lower=True)
        return diagonal - jnp.sum(jnp.log(jnp.diag(cholesky))) + 0.5 * jnp.sum(whitened**2)

    def relabel(self, move: Move, move_state: Move = keep) -> "LowRank":
        """Apply `move` to mean, std and every factor, `move_state` to the state."""
        moved = move(self.mean, 0), move(self.std, 0), move(self.factors, 1)
        return LowRank(*moved, move_state(self.state, 0))
