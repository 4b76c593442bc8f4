"""A Gaussian whose covariance is a block for every array, diagonal in a Kronecker product of bases.

The axes of an array are split into leading and trailing ones, so that it is a matrix X of a × b
numbers (for a vector, a = 1 or b = 1). With orthogonal L [a, a] and R [b, b] the entries of Lᵀ X R
are independent, as the entries of the weights of a `MeanField` are. The covariance of a block has
(ab)² entries, the two bases a² + b². A permutation of units permutes the rows of L and of R.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from onebasin.posterior.checks import check_numbers
from onebasin.posterior.noise import check_count, gaussian_log_density, normal_like, repeat_state
from onebasin.posterior.protocol import Move, keep
from onebasin.trees import (
    PyTree,
    all_arrays,
    check_same_shapes,
    leaves_by_path,
    num_parameters,
    shapes_by_path,
    with_leaves,
)

TOLERANCE = 1e-3  # of a length that an orthogonal basis keeps, in single precision


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kronecker:
    """A Gaussian with a block per array, whose eigenvectors are products of row and column vectors.

    A draw of an array, as a matrix, is mean + L (std ∘ ε) Rᵀ with ε standard normal. It
    is what a Kronecker-factored Laplace approximation gives.

    Args:
      mean: params.
      std: standard deviations along the eigenvectors, a tree like `mean`: entry (i, j) of a matrix
        belongs to column i of L and column j of R.
      left: the orthogonal matrices L, one for every array of `mean`, with as many rows as some of
        its leading axes have entries.
      right: the orthogonal matrices R.
      state: running statistics, if the network has them.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> turn = jnp.array([[0.6, -0.8], [0.8, 0.6]])
    >>> q = ob.Kronecker({"w": jnp.zeros((1, 2))}, {"w": jnp.array([[2.0, 1.0]])},
    ...                  {"w": jnp.ones((1, 1))}, {"w": turn})
    >>> q
    Kronecker(2 parameters)
    >>> print(q.moments()[1]["w"].round(1))  # √(0.36·4 + 0.64·1), √(0.64·4 + 0.36·1)
    [[1.4 1.7]]
    """

    mean: PyTree
    std: PyTree
    left: PyTree
    right: PyTree
    state: PyTree | None = None

    def __post_init__(self) -> None:
        name = "a Kronecker"
        if all_arrays((self.mean, self.std, self.left, self.right)):
            check_same_shapes(self.mean, self.std, f"the std of {name}")
            _check_bases(self.mean, self.left, self.right)
            check_numbers(f"the mean of {name}", self.mean)
            check_numbers(f"the std of {name}", self.std, positive=True)
            for which, tree in (("left", self.left), ("right", self.right)):
                check_numbers(f"the {which} of {name}", tree)
                _check_orthogonal(f"the {which} of {name}", tree)

    def __repr__(self) -> str:
        return f"Kronecker({num_parameters(self.mean):,} parameters)"

    @property
    def like(self) -> PyTree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        return self.mean

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree:
        """One draw, or `count` draws along a leading axis of every leaf."""
        check_count(count)
        noise = normal_like(self.mean, count, key=key)

        def leaf(m: Any, s: Any, left: Any, right: Any, e: Any) -> jax.Array:
            scaled = (s * e).reshape(*e.shape[: e.ndim - m.ndim], len(left), len(right))
            return m + (left @ scaled @ right.T).reshape(e.shape)

        return jax.tree.map(leaf, self.mean, self.std, self.left, self.right, noise)

    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        del key
        return repeat_state(self.state, count)

    def moments(self) -> tuple[PyTree, PyTree]:
        """Mean and marginal standard deviation of every coordinate."""

        def leaf(s: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
            variances = left**2 @ (s**2).reshape(len(left), len(right)) @ (right**2).T
            return jnp.sqrt(variances).reshape(s.shape)

        return self.mean, jax.tree.map(leaf, self.std, self.left, self.right)

    def log_prob(self, params: PyTree) -> jax.Array:
        """log q(params): that of independent entries of Lᵀ (X − mean) R."""

        def leaf(x: jax.Array, m: jax.Array, s: jax.Array, left: Any, right: Any) -> jax.Array:
            turned = left.T @ (x - m).reshape(len(left), len(right)) @ right
            return gaussian_log_density(turned.reshape(s.shape), jnp.zeros_like(s), s)

        terms = jax.tree.map(leaf, params, self.mean, self.std, self.left, self.right)
        return sum(jax.tree.leaves(terms), start=jnp.zeros(()))

    def relabel(self, move: Move, move_state: Move = keep) -> "Kronecker":
        """Apply `move` to the mean and the rows of L and R, `move_state` to the state.

        Which row goes where is read off a tree of the places of all numbers, moved like the mean.
        """
        mean = move(self.mean, 0)
        places = jax.tree.map(lambda m: np.arange(math.prod(m.shape)).reshape(m.shape), self.mean)
        moved = leaves_by_path(move(places, 0))
        left, right = leaves_by_path(self.left), leaves_by_path(self.right)
        for path in left:
            shape = len(left[path]), len(right[path])
            rows, columns = _rows_and_columns(path, moved[path], shape)
            left[path], right[path] = left[path][rows], right[path][columns]
        std = with_leaves(mean, leaves_by_path(self.std))
        sided = with_leaves(mean, left), with_leaves(mean, right)
        return Kronecker(mean, std, *sided, move_state(self.state, 0))


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape (a, b) of an array as a matrix: the split of its axes with the least a² + b².

    >>> sides((3, 3, 16, 32)), sides((32, 16, 3, 3)), sides((5,)), sides(())
    ((144, 32), (32, 144), (1, 5), (1, 1))
    """
    return min(_splits(shape), key=lambda pair: pair[0] ** 2 + pair[1] ** 2)


def _splits(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """The shapes (a, b) that leading and trailing axes make, a vector's as (1, n) first."""
    return [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(len(shape) + 1)]


def _check_bases(mean: PyTree, left: PyTree, right: PyTree) -> None:
    """Refuse bases that are not square matrices of a and b rows for one of the splits."""
    bases = shapes_by_path(left), shapes_by_path(right)
    for name, shape in shapes_by_path(mean).items():
        own = tuple(tree.get(name, ()) for tree in bases)
        if own not in [((a, a), (b, b)) for a, b in _splits(shape)]:
            given = " and ".join(str(one or "missing") for one in own)
            raise ValueError(
                f"the bases of a Kronecker are {given} for leaf '{name}' of shape {shape}; give "
                "square matrices of which one has a row for every entry of the leading axes and "
                "the other for every entry of the rest"
            )


def _rows_and_columns(
    path: str, places: Any, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Where every row and every column of a moved matrix was, from where its entries were."""
    origin = np.asarray(places).reshape(shape)
    width = shape[1]
    rows, columns = origin[:, 0] // width, origin[0] % width
    permutes = np.array_equal(np.sort(rows), np.arange(shape[0])) and np.array_equal(
        np.sort(columns), np.arange(width)
    )
    if not permutes or not np.array_equal(origin, rows[:, None] * width + columns):
        raise ValueError(
            f"leaf '{path}' of a Kronecker can only be permuted along its axes, and this is "
            "another change of it; make a MeanField of its moments() first"
        )
    return rows, columns


def _check_orthogonal(what: str, tree: PyTree) -> None:
    """Refuse matrices that change the length of a vector."""
    for name, leaf in leaves_by_path(tree).items():
        if isinstance(leaf, Tracer | jax.ShapeDtypeStruct):
            continue
        matrix = np.asarray(leaf, np.float64)
        vector = np.random.default_rng(0).standard_normal(len(matrix))
        back = matrix @ (matrix.T @ vector)
        if not np.allclose(back, vector, rtol=0, atol=TOLERANCE * np.linalg.norm(vector)):
            raise ValueError(
                f"{what} must be orthogonal, but leaf '{name}' is not; give all eigenvectors of a "
                "symmetric matrix"
            )
