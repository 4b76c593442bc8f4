"""How the leaves of a symmetry are read for the scores of its groups, computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from onebasin.symmetry import Place, Symmetry
from onebasin.symmetry.layout import Fixed, Layout, Product, Units, occurrences

SMALL_LEAF = 1 << 20  # entries up to which leaves with a single group are concatenated


@dataclass(frozen=True)
class Slot:
    """How the leaf of a place is read for the scores of its group."""

    place: Place
    groups: frozenset[str]
    after: int | None  # None if the place needs a `GeneralPanel`
    axis: int | None
    layout: Layout | None
    behind: bool


@dataclass(frozen=True)
class Plan:
    """What the score tables of one symmetry have in common."""

    slots: Mapping[str, tuple[Slot, ...]]
    alone: Mapping[str, tuple[Place, ...]]  # on small leaves where nothing else moves
    held: frozenset[str]  # the leaves of those
    axes: Mapping[str, tuple[tuple[Layout, frozenset[str]], ...]]  # layout and groups of each axis
    once: bool  # whether no place needs a general panel and no group occurs twice on a leaf


@lru_cache(maxsize=8)
def plan_of(symmetry: Symmetry) -> Plan:
    """The plan of a symmetry, kept for the last few of them."""
    # For every leaf and axis the groups on it, with repetitions.
    names = {
        leaf: [[name for name, _ in occurrences(layout)] for layout in axes]
        for leaf, axes in symmetry.layouts.items()
    }
    slots: dict[str, tuple[Slot, ...]] = {}
    alone: dict[str, tuple[Place, ...]] = {}
    for group in symmetry.groups:
        lone, rest = [], []
        for place in group.places:
            if place.where == "params" and prod(symmetry.shapes[place.leaf]):
                (lone if _is_alone(symmetry, place, names[place.leaf]) else rest).append(place)
        slots[group.name] = tuple(_slot(symmetry, group.size, p, names[p.leaf]) for p in rest)
        if lone:
            alone[group.name] = tuple(lone)
    return Plan(
        slots=slots,
        alone=alone,
        held=frozenset(place.leaf for places in alone.values() for place in places),
        axes={
            leaf: tuple(zip(axes, map(frozenset, names[leaf]), strict=True))
            for leaf, axes in symmetry.layouts.items()
        },
        once=all(slot.after is not None for found in slots.values() for slot in found)
        and all(len(set().union(*on)) == sum(map(len, on)) for on in names.values()),
    )


def _is_alone(symmetry: Symmetry, place: Place, names: Sequence[Sequence[str]]) -> bool:
    """Whether the leaf is small and the group occurs there once, alone."""
    layouts = symmetry.layouts[place.leaf]
    once = len(place.positions) * place.positions.shape[1]
    size = prod(layout.size for layout in layouts)
    return size <= SMALL_LEAF and once == layouts[place.axis].size and sum(map(len, names)) == 1


def _slot(symmetry: Symmetry, size: int, place: Place, names: Sequence[Sequence[str]]) -> Slot:
    axis, layouts = place.axis, symmetry.layouts[place.leaf]
    others = [i for i, on in enumerate(names) if on and i != axis]
    groups = frozenset(name for i in others for name in names[i])
    after = _whole_units(layouts[axis], size)
    if after is None or len(others) > 1:
        return Slot(place, groups | _crossing(layouts[axis], place), None, None, None, False)
    after *= prod(layout.size for layout in layouts[axis + 1 :])
    if not others:
        return Slot(place, groups, after, None, None, False)
    return Slot(place, groups, after, others[0], layouts[others[0]], others[0] > axis)


def _crossing(layout: Layout, place: Place) -> frozenset[str]:
    """The groups that move positions of the place's own units: factors of the same product.

    A group that is a factor twice (z ⊗ z, flattened) crosses itself. A group elsewhere along the
    axis does not cross it.
    """
    own = place.positions.reshape(-1)
    return frozenset(
        name
        for nth, (name, positions) in enumerate(occurrences(layout))
        if nth != place.occurrence and np.isin(positions, own).any()
    )


def _whole_units(layout: Layout, size: int) -> int | None:
    """The size of what follows the units if the axis is fixed × units × fixed, else None."""
    if isinstance(layout, Units):
        return 1
    if isinstance(layout, Product):
        at = [i for i, part in enumerate(layout.parts) if not isinstance(part, Fixed)]
        if len(at) == 1 and isinstance(layout.parts[at[0]], Units):
            return layout.size // size // prod(p.size for p in layout.parts[: at[0]])
    return None
