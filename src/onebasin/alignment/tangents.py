"""The richer group near one of its elements: what is differentiated to learn scales and matrices.

A group with a matrix A is learned by steps A ← exp(X)·A, where X is a direction of its Lie algebra:
any matrix for invertible maps, an antisymmetric one for rotations (with zero row sums if the vector
of ones is kept). So rotations stay rotations, and no matrix becomes singular. The slope is that at
X = 0, where places that compute the units are multiplied by I + X and those that read them by the
contragredient I − Xᵀ; the element itself has been applied before, in double precision. Scales are
learned by their logarithms, the direction that multiplies a place of exponent e by exp(e·x).
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from scipy.linalg import expm

from onebasin.symmetry import Place, Symmetry, Transform
from onebasin.symmetry.kinds import Mixing, key_of
from onebasin.trees import PyTree, leaves_by_path, with_leaves

Directions: TypeAlias = Mapping[str, Any]
"""By group, X for each block [blocks, size, size], or logarithms of scales [scalings, units]."""


def at_rest(symmetry: Symmetry) -> dict[str, np.ndarray]:
    """The direction that moves nothing, for every group with scales or matrices."""
    found: dict[str, np.ndarray] = {}
    for name, mixing in symmetry.mixings.items():
        size = symmetry[name].size
        if mixing.matrices is not None:
            count = symmetry.blocks[name].count if name in symmetry.blocks else 1
            found[name] = np.zeros((count, size // count, size // count), np.float32)
        elif mixing.scales:
            found[name] = np.zeros((len(mixing.scales), size), np.float32)
    return found


def tangent_act(
    symmetry: Symmetry, directions: Directions, tree: PyTree, *, spread: bool = False
) -> PyTree:
    """The tree multiplied to first order in X, and by scales exactly; differentiable in both.

    Of standard deviations (`spread`) the marginal ones: to first order √(Σⱼ (I + X)ᵢⱼ² σⱼ²) is
    (1 + Xᵢᵢ) σᵢ.
    """
    leaves = leaves_by_path(tree)
    for group in symmetry.groups:
        if group.name not in directions:
            continue
        mixing = symmetry.mixings[group.name]
        for place in group.places:
            if place.where == "params":
                leaves[place.leaf] = _moved(
                    leaves[place.leaf], place, mixing, directions[group.name], spread
                )
    return with_leaves(tree, leaves)


def _moved(array: Any, place: Place, mixing: Mixing, direction: Any, spread: bool) -> Any:
    """A leaf multiplied along the axis of one place."""
    key = key_of(place)
    direction = jnp.asarray(direction).astype(array.dtype)
    if mixing.matrices is None:
        logs = sum(p[key] * log for p, log in zip(mixing.scales, direction, strict=True))
        if not any(pattern[key] for pattern in mixing.scales):
            return array
        return _along(array, place, lambda rows: rows * jnp.exp(logs)[:, None])
    exponent = mixing.matrices[key]
    if not exponent:
        return array
    step = direction if exponent > 0 else -direction.swapaxes(1, 2)

    def turned(rows: Any) -> Any:
        if spread:
            return rows * (1 + jnp.diagonal(step, axis1=1, axis2=2).reshape(-1))[:, None]
        blocks, size, _ = step.shape
        return rows + jnp.matmul(step, rows.reshape(blocks, size, -1)).reshape(rows.shape)

    return _along(array, place, turned)


def _along(array: Any, place: Place, change: Any) -> Any:
    """The leaf with the rows of a place changed, [units, all else]."""
    size, each = place.positions.shape
    moved = jnp.moveaxis(array, place.axis, 0)
    flat = place.positions.reshape(-1)
    whole = len(flat) == len(moved) and np.array_equal(flat, np.arange(len(flat)))
    rows = (moved if whole else moved[flat]).reshape(size, -1)
    rows = change(rows).reshape(size * each, *moved.shape[1:])
    moved = rows if whole else moved.at[flat].set(rows, unique_indices=True)
    return jnp.moveaxis(moved, 0, place.axis)


def in_algebra(symmetry: Symmetry, slopes: Directions) -> dict[str, Any]:
    """The slopes along the directions that the kinds of the groups allow."""
    return {name: _allowed(symmetry.mixings[name], slope) for name, slope in slopes.items()}


def _allowed(mixing: Mixing, slope: Any) -> Any:
    if not mixing.orthogonal:
        return slope
    slope = (slope - slope.swapaxes(1, 2)) / 2
    if mixing.centred:
        slope = slope - slope.mean(axis=1, keepdims=True)
        slope = slope - slope.mean(axis=2, keepdims=True)
    return slope


def exponential(symmetry: Symmetry, directions: Directions) -> Transform:
    """The element exp(X) in double precision, with no permutation and no sign."""
    still = symmetry.as_transform(symmetry.identity())
    scales, matrices = dict(still.scales), dict(still.matrices)
    for name, direction in directions.items():
        mixing, own = symmetry.mixings[name], np.asarray(direction, np.float64)
        if mixing.matrices is None:
            scales[name] = np.exp(own)
        else:  # exactly in the algebra, where single precision was nearly there
            matrices[name] = expm(_allowed(mixing, own))
    return Transform(still.permutation, still.signs, scales, matrices)
