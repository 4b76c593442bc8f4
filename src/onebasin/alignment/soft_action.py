"""The action of matrices on the units of a network, linear in each matrix.

Where a permutation gathers, new[i] = old[p[i]], a matrix mixes: new[i] = Σⱼ P[i, j] old[j], along
every place of every group. For a permutation matrix, P[i, p[i]] = 1, both are the same, and for a
doubly stochastic matrix the result is differentiable in P.
"""

from collections.abc import Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.symmetry import Permutation, Place, Symmetry
from onebasin.symmetry.kinds import key_of
from onebasin.trees import PyTree, leaves_by_path, with_leaves

Matrices: TypeAlias = Mapping[str, jax.Array]


def single_units(symmetry: Symmetry) -> tuple[str, ...]:
    """The groups whose units are permuted one by one, and not mixed."""
    return tuple(
        group.name
        for group in symmetry.groups
        if group.kind not in ("orthogonal", "invertible") and group.name not in symmetry.blocks
    )


def matrices_of(permutation: Permutation, dtype: np.dtype | type = np.float32) -> Matrices:
    """The permutation matrix of every group.

    >>> matrices_of(Permutation({"units": np.array([1, 0])}))["units"].tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return {
        name: jnp.asarray(np.eye(len(permutation[name]), dtype=dtype)[permutation[name]])
        for name in permutation
    }


def soft_act(
    symmetry: Symmetry,
    matrices: Matrices,
    tree: PyTree,
    *,
    where: str = "params",
    signs: Matrices | None = None,
) -> PyTree:
    """The tree with its units mixed by the matrices; `where` is "params" or "state".

    Groups without a matrix stay as they are. Where a sign of the units counts, a matrix is
    multiplied entry by entry with the `signs` of the group, of each pair of units.
    """
    leaves = leaves_by_path(tree)
    for group in symmetry.groups:
        for place in group.places:
            if place.where != where or group.name not in matrices:
                continue
            matrix = matrices[group.name]
            if signs and group.name in signs and _is_odd(symmetry, group.name, place):
                matrix = matrix * signs[group.name]
            leaves[place.leaf] = _mixed(leaves[place.leaf], place, matrix)
    return with_leaves(tree, leaves)


def _is_odd(symmetry: Symmetry, name: str, place: Place) -> bool:
    """Whether a sign of the units changes this place."""
    pattern = symmetry.mixings[name].signs
    return pattern is not None and pattern[key_of(place)] % 2 == 1


def _mixed(array: jax.Array, place: Place, matrix: jax.Array) -> jax.Array:
    """The array with the positions of a group along one axis mixed."""
    matrix = matrix.astype(array.dtype)
    size, each = place.positions.shape
    whole = each == 1 and size == array.shape[place.axis]
    if whole and np.array_equal(place.positions[:, 0], np.arange(size)):
        mixed = jnp.tensordot(matrix, array, axes=(1, place.axis))
        return jnp.moveaxis(mixed, 0, place.axis)
    moved = jnp.moveaxis(array, place.axis, 0)
    rows = moved[place.positions.reshape(-1)].reshape(size, -1)
    mixed = (matrix @ rows).reshape(size * each, *moved.shape[1:])
    moved = moved.at[place.positions.reshape(-1)].set(mixed, unique_indices=True)
    return jnp.moveaxis(moved, 0, place.axis)
