"""An element of a symmetry with signs, scales and matrices, besides a permutation.

A transform acts on the units of a group as the matrix A·C·S·P: the permutation P first, then signs
S, positive factors C, and a matrix A (one for each block of the units). Since P·D = (P D Pᵀ)·P for
any D, products and inverses have the same form:

    (A₁ C₁ S₁ P₁)(A₂ C₂ S₂ P₂) = A₁(P₁ A₂ P₁ᵀ) · C₁(P₁ C₂ P₁ᵀ) · S₁(P₁ S₂ P₁ᵀ) · P₁P₂.

(A group with a matrix has no signs and scales of its own.) Where there are matrices, permutations
inside the blocks are part of them, so that P moves whole blocks only and the form is unique.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from onebasin.symmetry.permutation import Permutation, compose, inverse

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Transform:
    """One element of a rich symmetry: a permutation, and by group signs, scales or matrices.

    `Symmetry.random_transform` draws one, and `align` with a symmetry of `kinds="all"` finds one.

    >>> flip = Transform(Permutation({"hidden": [1, 0]}), signs={"hidden": np.array([-1, 1])})
    >>> flip
    Transform(hidden: 2 signed)
    >>> flip.matrix("hidden").tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """

    permutation: Permutation
    signs: Arrays = field(default_factory=dict)
    """By group, −1 or 1 for each unit."""
    scales: Arrays = field(default_factory=dict)
    """By group, positive factors [scalings, units]."""
    matrices: Arrays = field(default_factory=dict)
    """By group, one matrix for each block of its units, [blocks, size, size]."""

    def __post_init__(self) -> None:
        if self.permutation.draws is not None:
            raise ValueError("a transform has one permutation, not a stack; take one.draw(i)")
        matrices = {name: np.array(a, np.float64) for name, a in self.matrices.items()}
        indices = dict(self.permutation.indices)
        for name, own in matrices.items():
            outer, inner = _blocks_of(indices[name], len(own))
            matrices[name] = np.take_along_axis(own, _inverse_rows(inner)[:, None, :], axis=2)
            size = own.shape[1]
            indices[name] = (outer[:, None] * size + np.arange(size)).reshape(-1)
        object.__setattr__(self, "permutation", Permutation(indices))
        object.__setattr__(self, "matrices", _frozen(matrices))
        object.__setattr__(self, "signs", _frozen(self.signs))
        object.__setattr__(self, "scales", _frozen(self.scales))

    def __repr__(self) -> str:
        def shown(name: str) -> str:
            parts = [f"{name}: {len(self.permutation[name])}"]
            parts += ["signed"] * (name in self.signs) + ["scaled"] * (name in self.scales)
            parts += ["mixed"] * (name in self.matrices)
            return " ".join(parts)

        return f"Transform({', '.join(map(shown, self.permutation))})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Transform)
            and self.permutation == other.permutation
            and all(
                mine.keys() == theirs.keys()
                and all(np.array_equal(a, theirs[name]) for name, a in mine.items())
                for mine, theirs in zip(self._parts(), other._parts(), strict=True)
            )
        )

    def __hash__(self) -> int:
        return hash(self.permutation)

    def _parts(self) -> tuple[Arrays, ...]:
        return self.signs, self.scales, self.matrices

    def close_to(self, other: "Transform", tolerance: float = 1e-8) -> bool:
        """Whether both have the same matrix in every group, up to rounding."""
        return all(
            np.allclose(a, b, rtol=tolerance, atol=tolerance)
            for name in self.permutation
            for a, b in [(self.matrix(name), other.matrix(name))]
        ) and all(
            np.allclose(a, other.scales[name], rtol=tolerance) for name, a in self.scales.items()
        )

    def matrix(self, name: str) -> np.ndarray:
        """What multiplies the units of a group, [units, units], without its scales."""
        index = self.permutation[name]
        matrix = np.zeros((len(index), len(index)))
        matrix[np.arange(len(index)), index] = self.signs.get(name, 1.0)
        if name in self.matrices:
            own = self.matrices[name]
            blocks = matrix.reshape(len(own), own.shape[1], -1)
            matrix = np.einsum("bij,bjk->bik", own, blocks).reshape(matrix.shape)
        return matrix


def composed(p: Transform, q: Transform) -> Transform:
    """p ∘ q, which acts by q first and then by p."""
    at = p.permutation.indices
    return Transform(
        compose(p.permutation, q.permutation),
        _merged(p.signs, q.signs, lambda name, a, b: a * b[at[name]]),
        _merged(p.scales, q.scales, lambda name, a, b: a * b[:, at[name]]),
        _merged(p.matrices, q.matrices, lambda name, a, b: a @ b[_outer(at[name], len(b))]),
    )


def inverted(p: Transform) -> Transform:
    """The transform that undoes p: (A C S P)⁻¹ = (Pᵀ A⁻¹ P)(Pᵀ C⁻¹ P)(Pᵀ S P) Pᵀ."""
    back = inverse(p.permutation)
    at = back.indices
    return Transform(
        back,
        {name: s[at[name]] for name, s in p.signs.items()},
        {name: 1 / c[:, at[name]] for name, c in p.scales.items()},
        {name: np.linalg.inv(a)[_outer(at[name], len(a))] for name, a in p.matrices.items()},
    )


def _merged(
    a: Arrays, b: Arrays, together: Callable[[str, np.ndarray, np.ndarray], np.ndarray]
) -> Arrays:
    if a.keys() != b.keys():
        raise ValueError("the transforms are of different symmetries; take both of one")
    return {name: together(name, own, b[name]) for name, own in a.items()}


def _frozen(arrays: Arrays) -> Arrays:
    return MappingProxyType({name: np.asarray(a, np.float64) for name, a in arrays.items()})


def _outer(index: np.ndarray, blocks: int) -> np.ndarray:
    return _blocks_of(index, blocks)[0]


def _blocks_of(index: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of the blocks, and the order inside each."""
    rows = index.reshape(blocks, -1)
    size = rows.shape[1]
    outer = rows[:, 0] // size
    if not (rows // size == outer[:, None]).all():
        raise ValueError("the permutation moves units out of their blocks; keep them together")
    return outer, rows % size


def _inverse_rows(inner: np.ndarray) -> np.ndarray:
    return np.argsort(inner, axis=1)
