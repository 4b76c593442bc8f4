"""The Kronecker-factored generalised Gauss–Newton matrix, a block for every array of weights.

For one array, as a matrix of a × b weights, let the rows of the Jacobians be matrices M too, with
one for every example and every root of the inner Hessian. The block of G is Σ vec(M) vec(M)ᵀ, and
its partial traces are

    A = Σ M Mᵀ  [a, a],    B = Σ Mᵀ M  [b, b],    tr A = tr B = tr G = t.

A ⊗ B / t has the same partial traces. As the product of the marginals is the closest independent
distribution, it is the Kronecker product closest to the block in relative entropy (of the matrices
divided by t, as density matrices). No layer has to be recognised for it: the array of a
convolution, of an attention or of a layer that is used twice is treated alike. For a dense layer,
M is x ⊗ g with the layer's input x and a gradient g of its output, and A ⊗ B / t is the usual
(Σ x xᵀ / N) ⊗ (Σ g gᵀ) (Martens and Grosse 2015), in which every example has in addition the weight
|g|² or |x|². The two agree where these are constant or independent, as in a linear network with
Gaussian noise, where both are exact. The block of a vector, such as a bias, is kept whole.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference.curvature import over_jacobian_rows
from onebasin.posterior import Kronecker
from onebasin.posterior.kronecker import sides
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, leaves_by_path, take_entry

LARGEST = 8192  # rows of a factor, with 256 MB in single precision


class Traces(NamedTuple):
    """The partial traces A and B of the blocks."""

    left: PyTree
    right: PyTree


class KroneckerFactored:
    """A ⊗ B / t for every array, one chunk of the data per step; the posterior is a `Kronecker`."""

    def __init__(self, problem: Problem, chunks: int) -> None:
        self.problem, self.steps = problem, chunks
        for name, leaf in leaves_by_path(problem.shapes).items():
            if max(sides(leaf.shape)) > LARGEST:
                raise ValueError(
                    f"array '{name}' of shape {leaf.shape} needs a factor of "
                    f"{max(sides(leaf.shape)):,} rows, more than {LARGEST:,}; give the structure "
                    "low-rank or diagonal"
                )

    @property
    def trees(self) -> int:
        """The size of the posterior's file, in trees of params, rounded up."""
        leaves = jax.tree.leaves(self.problem.shapes)
        bases = sum(a**2 + b**2 for a, b in (sides(leaf.shape) for leaf in leaves))
        return 2 + -(-bases // sum(leaf.size for leaf in leaves))

    def init(self, params: PyTree, key: jax.Array) -> Traces:
        del key
        zeros = lambda which: jax.tree.map(
            lambda p: jnp.zeros((sides(p.shape)[which],) * 2, p.dtype), params
        )
        return Traces(zeros(0), zeros(1))

    def step(
        self, kept: Traces, params: PyTree, j: jax.Array, key: jax.Array, data: Batch
    ) -> Traces:
        del key

        def of_rows(rows: PyTree, weight: jax.Array) -> Traces:
            matrices = jax.tree.map(lambda r: r.reshape(len(r), *sides(r.shape[1:])), rows)
            own = lambda subscripts: jax.tree.map(
                lambda m: weight.astype(m.dtype) * jnp.einsum(subscripts, m, m), matrices
            )
            return Traces(own("cio,cjo->ij"), own("cio,cip->op"))

        found = over_jacobian_rows(self.problem, params, take_entry(data, j), of_rows)
        return jax.tree.map(jnp.add, kept, found)

    def _spectrum(self, kept: Traces) -> tuple[PyTree, PyTree, PyTree]:
        """The eigenvalues of G̃ as matrices, and the bases L and R, in double precision."""

        def leaf(left: Any, right: Any, variance: float) -> tuple[np.ndarray, ...]:
            a, own_left = np.linalg.eigh(np.asarray(left, np.float64))
            b, own_right = np.linalg.eigh(np.asarray(right, np.float64))
            a, b = np.maximum(a, 0), np.maximum(b, 0)  # rounding makes some zeros negative
            trace = np.sqrt(a.sum() * b.sum())  # equal but for rounding; zero for unused weights
            values = np.outer(a, b) / trace if trace > 0 else np.zeros((len(a), len(b)))
            return variance * values, own_left, own_right

        found = jax.tree.map(leaf, kept.left, kept.right, self.problem.prior_variances)
        return jax.tree.transpose(
            jax.tree.structure(self.problem.shapes), jax.tree.structure((0, 0, 0)), found
        )

    def eigenvalues(self, kept: Traces) -> np.ndarray:
        return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(self._spectrum(kept)[0])])

    def posterior(self, kept: Traces, mean: PyTree, precision: float) -> Kronecker:
        values, left, right = self._spectrum(kept)

        def std(m: jax.Array, k: np.ndarray, variance: float) -> jax.Array:
            return jnp.asarray(np.sqrt(variance / (k + precision)).reshape(m.shape), m.dtype)

        bases = (
            jax.tree.map(lambda m, basis: jnp.asarray(basis, m.dtype), mean, side)
            for side in (left, right)
        )
        return Kronecker(
            mean, jax.tree.map(std, mean, values, self.problem.prior_variances), *bases
        )

    def newton_gain(self, kept: Traces, gradient: PyTree) -> float:
        values, left, right = self._spectrum(kept)

        def leaf(g: Any, k: np.ndarray, own_left: np.ndarray, own_right: np.ndarray) -> float:
            turned = own_left.T @ np.asarray(g, np.float64).reshape(k.shape) @ own_right
            return float(0.5 * np.sum(turned**2 / (1 + k)))

        return float(sum(jax.tree.leaves(jax.tree.map(leaf, gradient, values, left, right))))
