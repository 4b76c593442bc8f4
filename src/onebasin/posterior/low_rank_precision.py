"""A Gaussian whose precision (inverse covariance) is diagonal plus low rank."""

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
class LowRankPrecision:
    """A Gaussian whose precision is diagonal plus low rank, N(mean, (diag(std⁻²) + FFᵀ)⁻¹).

    It is what a Laplace approximation gives: the prior has the standard deviations `std`, and the
    data make it narrower along the factors. (A `LowRank` is wider along its factors.)

    Args:
      mean: params.
      std: standard deviations without the factors, a tree like `mean`.
      factors: the columns of F, a tree of leaves [rank, *leaf].
      state: running statistics, if the network has them.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q = ob.LowRankPrecision({"w": jnp.zeros(2)}, {"w": jnp.ones(2)},
    ...                         {"w": jnp.array([[0.0, 3.0]])})
    >>> q
    LowRankPrecision(2 parameters, rank 1)
    >>> print((q.moments()[1]["w"] ** 2).round(3))  # marginal variances
    [1.  0.1]
    """

    mean: PyTree
    std: PyTree
    factors: PyTree
    state: PyTree | None = None

    def __post_init__(self) -> None:
        name = "a LowRankPrecision"
        if all_arrays((self.mean, self.std, self.factors)):
            check_same_shapes(self.mean, self.std, f"the std of {name}")
            check_same_shapes(self.mean, self.factors, f"the factors of {name}", lead=1)
            ranks = {np.shape(leaf)[0] for leaf in jax.tree.leaves(self.factors)}
            if len(ranks) > 1:
                raise ValueError(
                    f"the factors of {name} have different ranks {sorted(ranks)}; give one"
                )
            check_numbers(f"the mean of {name}", self.mean)
            check_numbers(f"the std of {name}", self.std, positive=True)
            check_numbers(f"the factors of {name}", self.factors)

    def __repr__(self) -> str:
        return f"LowRankPrecision({num_parameters(self.mean):,} parameters, rank {self.rank})"

    @property
    def rank(self) -> int:
        """The number of factors."""
        return jax.tree.leaves(self.factors)[0].shape[0]

    @property
    def like(self) -> PyTree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        return self.mean

    def _whitened(self) -> tuple[PyTree, jax.Array]:
        """A = diag(std) F as a tree like the factors, and the matrix AᵀA [rank, rank].

        In units of std the precision is I + AAᵀ.
        """
        scaled = jax.tree.map(lambda f, s: f * s, self.factors, self.std)
        rows = [a.reshape(self.rank, -1) for a in jax.tree.leaves(scaled)]
        return scaled, sum((a @ a.T for a in rows), start=jnp.zeros((self.rank, self.rank)))

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree:
        """One draw, or `count` draws along a leading axis of every leaf.

        With the eigenvalues κ of AᵀA = Q diag(κ) Qᵀ and s = √(1 + κ),
        (I + AAᵀ)^(−½) = I − A Q diag(1/(s(1 + s))) Qᵀ Aᵀ, by which standard normal noise is
        multiplied.
        """
        check_count(count)
        noise = normal_like(self.mean, count, key=key)
        scaled, gram = self._whitened()
        values, vectors = jnp.linalg.eigh(gram)
        root = jnp.sqrt(1 + jnp.maximum(values, 0))
        shrink = (vectors / (root * (1 + root))) @ vectors.T

        def along(a: jax.Array, e: jax.Array) -> jax.Array:
            flat = a.reshape(self.rank, -1)
            return e.reshape(*e.shape[: e.ndim - a.ndim + 1], -1) @ flat.T  # [..., rank]

        weights = sum(jax.tree.leaves(jax.tree.map(along, scaled, noise))) @ shrink

        def leaf(m: jax.Array, s: jax.Array, a: jax.Array, e: jax.Array) -> jax.Array:
            return m + s * (e - jnp.tensordot(weights.astype(a.dtype), a, axes=1))

        return jax.tree.map(leaf, self.mean, self.std, scaled, noise)

    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        del key
        return repeat_state(self.state, count)

    def moments(self) -> tuple[PyTree, PyTree]:
        """Mean and marginal standard deviation of every coordinate.

        By Woodbury's identity the variances are std² (1 − diag(A (I + AᵀA)⁻¹ Aᵀ)).
        """
        scaled, gram = self._whitened()
        cholesky = jnp.linalg.cholesky(jnp.eye(self.rank) + gram)

        def leaf(s: jax.Array, a: jax.Array) -> jax.Array:
            flat = a.reshape(self.rank, -1)
            solved = jax.scipy.linalg.solve_triangular(cholesky.astype(a.dtype), flat, lower=True)
            left = 1 - jnp.sum(solved**2, axis=0)
            return s * jnp.sqrt(jnp.maximum(left, jnp.finfo(s.dtype).tiny)).reshape(s.shape)

        return self.mean, jax.tree.map(leaf, self.std, scaled)

    def log_prob(self, params: PyTree) -> jax.Array:
        """log q(params), O(rank² · size): ½ log|I + AᵀA| − ½‖Fᵀr‖² more than without factors."""
        diagonal, projected = jnp.zeros(()), jnp.zeros(self.rank)
        leaves = zip(
            *map(jax.tree.leaves, (params, self.mean, self.std, self.factors)), strict=True
        )
        for x, m, s, f in leaves:
            diagonal += gaussian_log_density(x, m, s)
            projected += f.reshape(self.rank, -1) @ (x - m).reshape(-1)
        cholesky = jnp.linalg.cholesky(jnp.eye(self.rank) + self._whitened()[1])
        return diagonal + jnp.sum(jnp.log(jnp.diag(cholesky))) - 0.5 * jnp.sum(projected**2)

    def relabel(self, move: Move, move_state: Move = keep) -> "LowRankPrecision":
        """Apply `move` to mean, std and every factor, `move_state` to the state."""
        moved = move(self.mean, 0), move(self.std, 0), move(self.factors, 1)
        return LowRankPrecision(*moved, move_state(self.state, 0))
