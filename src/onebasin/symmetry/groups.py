"""Groups of hidden units that are permuted together, and all their places."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias, TypeVar

import jax
import numpy as np

from onebasin.symmetry.layout import Layout, Layouts, Units, describe, occurrences

Where: TypeAlias = Literal["params", "state"]
Role: TypeAlias = Literal["incoming", "outgoing", "add", "multiply", "other"]
Kind: TypeAlias = Literal["permutation", "signed", "scaled", "monomial", "orthogonal", "invertible"]
Array = TypeVar("Array", np.ndarray, jax.Array)
Roles: TypeAlias = Mapping[tuple[str, int], Role]  # (key path of a leaf, axis) → role


@dataclass(frozen=True)
class Place:
    """The positions along one axis of one leaf that belong to the units of a group.

    >>> from onebasin.symmetry import Symmetry
    >>> groups = {"conv": [("conv", 3), ("dense", 0, (4, 1))]}
    >>> shapes = {"conv": np.ones((3, 3, 1, 2)), "dense": np.ones((8, 5))}
    >>> _, flattened = Symmetry.by_hand(shapes, groups)["conv"].places
    >>> print(flattened)
    dense[0] (4×conv)
    >>> flattened.positions.tolist()
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """

    leaf: str
    axis: int
    positions: np.ndarray = field(repr=False, compare=False)
    """[size, m]: the m positions that move with each unit. m is 1 where the group has the whole
    axis to itself, and H·W where a convolution's channels are flattened into a dense layer."""
    layout: str = ""
    """The layout of the axis in a few characters, where the group does not fill it."""
    where: Where = "params"
    """Whether the leaf is a parameter or a running statistic."""
    occurrence: int = 0
    """The number of this place among all places along the axis."""
    role: Role = "other"
    """What the axis does: "incoming" belongs to a kernel that computes these units, "outgoing" to
    one that reads them, "add" to a bias or shift, "multiply" to a gain, "other" to all else."""

    def rows(self, array: Array, lead: int = 0) -> Array:
        """One flat row for each unit, [size, K], after `lead` leading axes."""
        axis = self.axis + lead
        size = len(self.positions)
        moved = array.swapaxes(axis, lead) if axis != lead else array
        kept = (slice(None),) * lead
        return moved[(*kept, self._along)].reshape(*array.shape[:lead], size, -1)

    @cached_property
    def _along(self) -> slice | np.ndarray:
        """All positions, unit by unit; a slice where they are consecutive, which copies less."""
        flat = self.positions.reshape(-1)
        start = int(flat[0]) if len(flat) else 0
        follow = np.array_equal(flat, np.arange(start, start + len(flat)))
        return slice(start, start + len(flat)) if follow else flat

    def __str__(self) -> str:
        layout = f" ({self.layout})" if self.layout else ""
        state = "state:" if self.where == "state" else ""
        return f"{state}{self.leaf}[{self.axis}]{layout}"


@dataclass(frozen=True)
class Group:
    """Hidden units that may be permuted among themselves, with all their places.

    >>> from onebasin.symmetry import Symmetry
    >>> params = {"w1": np.ones((2, 3)), "w2": np.ones((3, 1))}
    >>> Symmetry.by_hand(params, {"hidden": [("w1", 1), ("w2", 0)]})["hidden"]
    Group('hidden', 3 units, 2 places)
    """

    name: str
    size: int
    places: tuple[Place, ...]
    kind: Kind = "permutation"
    """What may be done to the units besides permuting them (`find_symmetry(kinds="all")`)."""

    def __repr__(self) -> str:
        kind = "" if self.kind == "permutation" else f"{self.kind}, "
        return f"Group({self.name!r}, {kind}{self.size} units, {len(self.places)} places)"

    @property
    def quadratic(self) -> bool:
        """Whether the group has two places in one array.

        Two parts of one axis give a quadratic objective only in a product, not in a concatenation.
        Treating both as quadratic is safe: a linearised step is accepted only if it helps.
        """
        leaves = [(place.where, place.leaf) for place in self.places]
        return len(set(leaves)) < len(leaves)


def find_groups(params: Layouts, state: Layouts, roles: Roles) -> tuple[Group, ...]:
    """The groups, in the order of their first places in the layouts."""
    sizes: dict[str, int] = {}
    places: dict[str, list[Place]] = {}
    trees: dict[Where, Layouts] = {"params": params, "state": state}
    # Axes with the same layout share their positions: a large network has many.
    known: dict[Layout, tuple[tuple[str, np.ndarray], ...]] = {}
    for where, layouts in trees.items():
        for leaf, axes in layouts.items():
            for axis, layout in enumerate(axes):
                text = "" if isinstance(layout, Units) else describe(layout)
                if layout not in known:
                    known[layout] = tuple(occurrences(layout))
                for nth, (name, positions) in enumerate(known[layout]):
                    if sizes.setdefault(name, len(positions)) != len(positions):
                        raise ValueError(
                            f"group '{name}' has {sizes[name]} units in one place and "
                            f"{len(positions)} on axis {axis} of '{leaf}'; give it one size "
                            "everywhere"
                        )
                    role = roles.get((leaf, axis), "other") if where == "params" else "other"
                    place = Place(leaf, axis, positions, text, where, nth, role)
                    places.setdefault(name, []).append(place)
    return tuple(Group(name, sizes[name], tuple(places[name])) for name in sizes)
