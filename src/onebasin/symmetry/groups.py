"""Groups of hidden units that move together, and everywhere they sit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from onebasin.symmetry.layout import Layout, Units, describe, occurrences

Layouts = Mapping[str, tuple[Layout, ...]]  # key path of a leaf → the layout of each axis


@dataclass(frozen=True)
class Place:
    """One place where the units of a group sit: positions along one axis of one leaf.

    `positions` [size, m] holds, for each unit, the m positions along the axis that
    move with it: m is 1 where the whole axis is the group's, and H·W where a
    convolution's channels were flattened into a dense layer.
    """

    leaf: str
    axis: int
    positions: np.ndarray = field(repr=False, compare=False)
    layout: str = ""
    where: str = "params"
    occurrence: int = 0  # which of the places along this axis it is
    role: str = "other"
    """What the axis does: "incoming" (of a kernel: it computes these units), "outgoing" (it reads
    them), "add" (a bias or shift), "multiply" (a gain), or "other"."""

    def rows(self, array: Any, lead: int = 0) -> Any:
        """One row for each unit, [size, K], everything else flattened (after `lead` axes)."""
        axis = self.axis + lead
        size = len(self.positions)
        moved = array.swapaxes(axis, lead) if axis != lead else array
        kept = (slice(None),) * lead
        return moved[(*kept, self._along)].reshape(*array.shape[:lead], size, -1)

    @cached_property
    def _along(self) -> slice | np.ndarray:
        """All positions, unit by unit; a slice where they follow one another, which copies less."""
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
    """Hidden units that may be permuted together, and everywhere they sit."""

    name: str
    size: int
    places: tuple[Place, ...]

    @property
    def quadratic(self) -> bool:
        """Whether the group sits on two axes (or twice on one axis) of one array.

        Twice on one axis is bilinear only as a product; one after the other is not, but
        treating it as quadratic is safe: a linearised step is accepted only if it helps.
        """
        leaves = [(place.where, place.leaf) for place in self.places]
        return len(set(leaves)) < len(leaves)


def find_groups(
    params_layouts: Layouts, state_layouts: Layouts, roles: Mapping[tuple[str, int], str]
) -> tuple[Group, ...]:
    """The groups in the order in which their first place appears in the layouts."""
    sizes: dict[str, int] = {}
    places: dict[str, list[Place]] = {}
    for where, layouts in (("params", params_layouts), ("state", state_layouts)):
        for leaf, axes in layouts.items():
            for axis, layout in enumerate(axes):
                text = "" if isinstance(layout, Units) else describe(layout)
                for nth, (name, positions) in enumerate(occurrences(layout)):
                    if sizes.setdefault(name, len(positions)) != len(positions):
                        raise ValueError(
                            f"group '{name}' has {sizes[name]} units in one place and "
                            f"{len(positions)} on axis {axis} of '{leaf}'"
                        )
                    role = roles.get((leaf, axis), "other") if where == "params" else "other"
                    place = Place(leaf, axis, positions, text, where, nth, role)
                    places.setdefault(name, []).append(place)
    return tuple(Group(name, sizes[name], tuple(places[name])) for name in sizes)
