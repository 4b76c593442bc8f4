"""How a transform multiplies the leaves of a tree, and every kind of posterior.

Along an axis each entry is multiplied by a factor, or the entries of a place by a matrix. Points
and draws move exactly. Of a Gaussian with independent weights, factors give one again, with σ
multiplied by their magnitudes. A matrix A along an axis gives dependent weights: their means are
exact, and σ are the marginal ones, √(Σⱼ Aᵢⱼ² σⱼ²); the covariances are dropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.posterior import LowRank, LowRankPrecision, MeanField, Mixture, Samples
from onebasin.posterior.protocol import Posterior
from onebasin.symmetry.groups import Group
from onebasin.symmetry.kinds import Mixings, key_of
from onebasin.symmetry.transform import Transform
from onebasin.trees import PyTree, path_name

T = TypeVar("T")


@dataclass
class LeafAction:
    """What multiplies one leaf: factors along its axes, and matrices at its places."""

    factors: dict[int, np.ndarray] = field(default_factory=dict)
    matrices: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)
    """(axis, positions [units, m], matrices [blocks, size, size])."""

    def on(self, array: np.ndarray, lead: int = 0) -> np.ndarray:
        """The leaf multiplied, after `lead` leading axes."""
        for axis, own in self.factors.items():
            array = array * own.reshape([-1 if i == axis + lead else 1 for i in range(array.ndim)])
        for axis, positions, own in self.matrices:
            array = multiplied(array, axis + lead, positions, own)
        return array

    def magnitudes(self) -> "LeafAction":
        """What the variances of independent entries are multiplied by."""
        return LeafAction(
            {axis: own**2 for axis, own in self.factors.items()},
            [(axis, positions, own**2) for axis, positions, own in self.matrices],
        )

    def transposed_inverse(self) -> "LeafAction":
        """What a covector is multiplied by, or what undoes factors; there must be no matrices."""
        return LeafAction({axis: 1 / own for axis, own in self.factors.items()})


def multiplied(
    array: np.ndarray, axis: int, positions: np.ndarray, matrices: np.ndarray
) -> np.ndarray:
    """The entries at positions [units, m] of an axis multiplied by matrices, one for each block."""
    moved = np.moveaxis(np.array(array, np.result_type(array, np.float32)), axis, 0)
    rows = moved[positions.reshape(-1)]
    blocks, size, _ = matrices.shape
    product = np.matmul(matrices, rows.reshape(blocks, size, -1))
    moved[positions.reshape(-1)] = product.reshape(rows.shape)
    return np.moveaxis(moved, 0, axis)


def leaf_actions(
    transform: Transform,
    groups: Iterable[Group],
    mixings: Mixings,
    sizes: dict[str, tuple[int, ...]],
) -> dict[str, LeafAction]:
    """What a transform multiplies each leaf by, after it was permuted; leaves not named stay."""
    found: dict[str, LeafAction] = {}
    for group in groups:
        mixing = mixings.get(group.name)
        if mixing is None:
            continue
        signs, scales = transform.signs.get(group.name), transform.scales.get(group.name)
        matrix = transform.matrices.get(group.name)
        contragredient = None if matrix is None else np.linalg.inv(matrix).swapaxes(1, 2)
        for place in group.places:
            if place.where != "params":
                continue
            key = key_of(place)
            factors = np.ones(group.size)
            if signs is not None and mixing.signs is not None and mixing.signs[key] % 2:
                factors = factors * signs
            if scales is not None:
                for own, pattern in zip(scales, mixing.scales, strict=True):
                    factors = factors * own ** pattern[key]
            if (factors != 1).any():
                action = found.setdefault(place.leaf, LeafAction())
                length = sizes[place.leaf][place.axis]
                along = action.factors.setdefault(place.axis, np.ones(length))
                along[place.positions] *= factors[:, None]
            exponent = 0 if mixing.matrices is None else mixing.matrices[key]
            if matrix is not None and contragredient is not None and exponent:
                own = matrix if exponent > 0 else contragredient
                action = found.setdefault(place.leaf, LeafAction())
                action.matrices.append((place.axis, place.positions, own))
    return found


def multiplied_tree(
    tree: PyTree, lead: int, actions: dict[str, LeafAction], *, std: bool = False
) -> PyTree:
    """Every leaf multiplied in double precision; of standard deviations, the marginal ones."""

    def leaf(path: Any, value: Any) -> Any:
        action = actions.get(path_name(path))
        if action is None:
            return value
        wide = np.asarray(value).astype(np.result_type(np.asarray(value), np.float64))
        if std:
            moved = np.sqrt(action.magnitudes().on(wide**2, lead))
        else:
            moved = action.on(wide, lead)
        moved = moved.astype(value.dtype)
        if not isinstance(value, jax.Array):
            return moved
        with jax.enable_x64(True):  # otherwise double precision would become single
            return jnp.asarray(moved)

    return jax.tree_util.tree_map_with_path(leaf, tree)


def multiplied_posterior(q: T, actions: dict[str, LeafAction]) -> T:
    """A posterior multiplied, its units permuted already."""
    if not actions:
        return q

    def linear(tree: PyTree, lead: int = 0) -> PyTree:
        return multiplied_tree(tree, lead, actions)

    def spread(tree: PyTree) -> PyTree:
        return multiplied_tree(tree, 0, actions, std=True)

    moved: Any
    match q:
        case Samples():
            moved = Samples(linear(q.draws, 1), q.chain, q.state)
        case MeanField():
            moved = MeanField(linear(q.mean), spread(q.std), q.state)
        case LowRank():
            moved = LowRank(linear(q.mean), spread(q.std), linear(q.factors, 1), q.state)
        case LowRankPrecision() if not any(own.matrices for own in actions.values()):
            covectors = {leaf: own.transposed_inverse() for leaf, own in actions.items()}
            factors = multiplied_tree(q.factors, 1, covectors)
            moved = LowRankPrecision(linear(q.mean), spread(q.std), factors, q.state)
        case Mixture():
            parts = tuple(multiplied_posterior(part, actions) for part in q.components)
            moved = Mixture(parts, q.weights)
        case Posterior():
            raise ValueError(
                f"signs, scales and matrices cannot act on a {type(q).__name__}; give params, "
                "Samples, MeanField or LowRank, or a symmetry found without kinds"
            )
        case _:
            moved = linear(q)
    return moved
