"""The directions in which a continuous symmetry moves params: its generators.

A one-parameter group of scales or matrices exp(tX) moves params θ along the tangent dθ/dt at t = 0,
in which the outputs of the network do not change: J·dθ/dt = 0 with their Jacobian J. So the rank of
all tangents is at most the nullity of J, and equal to it if no generator is missing.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from onebasin.symmetry.find_kinds import across_ones
from onebasin.symmetry.groups import Group
from onebasin.symmetry.kinds import Pattern, key_of
from onebasin.symmetry.linear_action import multiplied

if TYPE_CHECKING:
    from onebasin.symmetry.symmetry import Symmetry

Tangent = dict[str, np.ndarray]
"""The derivative of each leaf that moves."""


def generators(
    symmetry: "Symmetry", leaves: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, Tangent]]:
    """The tangent of every generator at params with folded gains, with the name of its group.

    Scales that `Symmetry.canonical` fixes count as well: they are symmetries that it chooses from.
    """
    for group in symmetry.groups:
        mixing = symmetry.mixings.get(group.name)
        if mixing is None:
            continue
        for pattern in (*mixing.scales, *(pattern for _, pattern in mixing.folded)):
            for unit in range(group.size):
                matrix = np.zeros((group.size, group.size))
                matrix[unit, unit] = 1.0
                yield group.name, _tangent(group, leaves, pattern, matrix, skew=False)
        if mixing.matrices is None:
            continue
        blocks = symmetry.blocks[group.name].count if group.name in symmetry.blocks else 1
        size = group.size // blocks
        for block in range(blocks):
            span = slice(block * size, (block + 1) * size)
            for own in _algebra(size, orthogonal=mixing.orthogonal, centred=mixing.centred):
                matrix = np.zeros((group.size, group.size))
                matrix[span, span] = own
                skew = mixing.orthogonal
                yield group.name, _tangent(group, leaves, mixing.matrices, matrix, skew=skew)


def _algebra(size: int, *, orthogonal: bool, centred: bool) -> Iterator[np.ndarray]:
    """A basis of the Lie algebra: all matrices, or the antisymmetric ones."""
    inner = size - 1 if centred else size
    across = across_ones(size) if centred else np.eye(size)
    for i in range(inner):
        for j in range(inner):
            if orthogonal and j <= i:
                continue
            own = np.zeros((inner, inner))
            own[i, j] = 1.0
            own = own - own.T if orthogonal else own
            yield across @ own @ across.T


def _tangent(
    group: Group,
    leaves: Mapping[str, np.ndarray],
    pattern: Pattern,
    matrix: np.ndarray,
    *,
    skew: bool,
) -> Tangent:
    """d/dt of exp(tX) at places of exponent e > 0 (eX), and of its inverse transposed (−|e| Xᵀ)."""
    found: Tangent = {}
    for place in group.places:
        exponent = pattern[key_of(place)] if place.where == "params" else 0
        if not exponent:
            continue
        own = matrix if skew or exponent > 0 else -matrix.T
        leaf = np.asarray(leaves[place.leaf], np.float64)
        kept = np.zeros(leaf.shape[place.axis], bool)
        kept[place.positions.reshape(-1)] = True
        shape = [-1 if i == place.axis else 1 for i in range(leaf.ndim)]
        moved = multiplied(leaf, place.axis, place.positions, own[None]) * kept.reshape(shape)
        found[place.leaf] = found.get(place.leaf, 0.0) + abs(exponent) * moved
    return found
