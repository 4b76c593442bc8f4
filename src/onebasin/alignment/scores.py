"""Score matrices of the groups, kept up to date as the permutations move.

For a group g and one of its places (axis a of a leaf), the matrix is T·Mᵀ: one row for each
unit, everything else flattened, with the mover's other axes permuted as they are now. When the
units of a neighbouring axis move, only the columns that changed hands matter:

    S += T[:, c] · (M[:, new[c]] − M[:, old[c]])ᵀ

which costs as much as the share of units that moved. Places without a neighbour count once.

Adding a constant to all of M adds to every column of S the same multiple of T's row sums, and
that changes no assignment. So the mean of M is taken out first: for deviations, which are all
alike, this leaves float32 its digits for the differences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onebasin.alignment.objective import Problem
from onebasin.symmetry import Group, Permutation, Place
from onebasin.symmetry.layout import Fixed, Layout, Units, gather_index, moves, occurrences

Indices = dict[str, np.ndarray]
STACK_ENTRIES = 1 << 20  # leaves up to this size are copied into the order they are read in


@dataclass
class Panel:
    """One place of a group: what it adds to the group's score matrix."""

    group: str
    place: Place
    own: Layout
    other: Layout | None  # the one other axis that moves, if there is just one
    groups: frozenset[str]  # the groups whose permutations the panel depends on
    pairs: list[tuple[np.ndarray, np.ndarray]]  # target and mover, per feature
    shifts: list[float]
    order: str  # how `pairs` lie: "ab" [units, other], "ba" [other, units], "abr", or "leaf"
    layouts: tuple[Layout, ...]
    included: np.ndarray | None = field(default=None)  # gather index that is in the matrix now
    matrix: np.ndarray | None = field(default=None)  # of a panel that cannot be updated in part

    def add_to(self, scores: np.ndarray, indices: Indices) -> bool:
        """Bring the panel's part of `scores` up to date; whether that changed anything."""
        if self.order == "leaf":
            return self._replace(scores, indices)
        if self.other is None:
            if self.included is not None:
                return False
            self.included = np.zeros(0, np.int64)
            for (target, mover), shift in zip(self.pairs, self.shifts, strict=True):
                _accumulate(scores, self._rows(target, None), self._rows(mover, None) - shift)
            return True
        new = gather_index(self.other, indices)
        if self.included is None:
            for (target, mover), shift in zip(self.pairs, self.shifts, strict=True):
                moved = self._rows(mover, new)
                moved -= moved.dtype.type(shift)
                _accumulate(scores, self._rows(target, None), moved)
        else:
            (changed,) = np.nonzero(new != self.included)
            if len(changed) == 0:
                return False
            for target, mover in self.pairs:
                moved = self._rows(mover, new[changed])
                moved -= self._rows(mover, self.included[changed])
                _accumulate(scores, self._rows(target, changed), moved)
        self.included = np.array(new)
        return True

    def _rows(self, array: np.ndarray, columns: np.ndarray | None) -> np.ndarray:
        """[units, K]: everything at the given positions of the other axis (None: as it lies)."""
        if self.order == "ba":
            return (array if columns is None else array[columns]).T
        part = array if columns is None else array.take(columns, axis=1)
        return part.reshape(len(part), -1)

    def _replace(self, scores: np.ndarray, indices: Indices) -> bool:
        """The general case: several axes move, or two groups share the unit's own axis."""
        still = {**indices, self.group: np.arange(len(scores))}
        gathers = [
            gather_index(layout, still if axis == self.place.axis else indices)
            for axis, layout in enumerate(self.layouts)
        ]
        key = np.concatenate([*gathers, np.zeros(0, np.int64)])
        if self.included is not None and np.array_equal(key, self.included):
            return False
        fresh = np.zeros_like(scores)
        for (target, mover), shift in zip(self.pairs, self.shifts, strict=True):
            moved = mover[np.ix_(*gathers)] - mover.dtype.type(shift)
            _accumulate(fresh, self.place.rows(target), self.place.rows(moved))
        scores += fresh if self.matrix is None else fresh - self.matrix
        self.matrix, self.included = fresh, key
        return True


def _accumulate(scores: np.ndarray, target: np.ndarray, mover: np.ndarray) -> None:
    # An overflow is reported where the matrix is used, with the group's name.
    with np.errstate(over="ignore", invalid="ignore"):
        scores += target @ mover.T


class ScoreTable:
    """The score matrix of every group for one pair of features, made when first asked for."""

    def __init__(self, problem: Problem, start: Permutation) -> None:
        self.problem = problem
        self.groups: dict[str, Group] = {g.name: g for g in problem.symmetry.groups}
        self.indices: Indices = {name: np.array(start[name]) for name in self.groups}
        leaves = [array for feature in problem.target for array in feature.values()]
        self.dtype = np.result_type(*leaves) if leaves else np.dtype(np.float32)
        self._matrices: dict[str, np.ndarray] = {}
        self._panels = {name: self._make_panels(group) for name, group in self.groups.items()}

    def neighbours(self, name: str) -> set[str]:
        """The groups whose scores change when this one moves."""
        return {
            other
            for other, panels in self._panels.items()
            if any(name in panel.groups for panel in panels)
        }

    def scores(self, name: str, known: set[str] | None = None) -> np.ndarray:
        """S[i, j]: what unit i of the target gains from taking unit j of the mover.

        With `known`, only places whose other groups are all known take part.
        """
        matrix = self._matrices.get(name)
        if matrix is None:
            size = self.groups[name].size
            matrix = self._matrices[name] = np.zeros((size, size), self.dtype)
        for panel in self._panels[name]:
            if known is None or panel.included is not None or panel.groups <= known:
                panel.add_to(matrix, self.indices)
        return matrix

    def has_known(self, name: str, known: set[str]) -> bool:
        return any(panel.groups <= known for panel in self._panels[name])

    def permutation(self) -> Permutation:
        return Permutation(self.indices)

    def total(self, indices: Mapping[str, np.ndarray] | None = None) -> float:
        """The whole score Σ⟨target, moved⟩, summed in float64."""
        indices = self.indices if indices is None else indices
        total = 0.0
        layouts = self.problem.symmetry.layouts
        for target, mover in zip(self.problem.target, self.problem.mover, strict=True):
            for leaf in target:
                axes = layouts.get(leaf, (Fixed(1),) * target[leaf].ndim)
                gathers = [_gather_unless_still(axis, indices) for axis in axes]
                total += _gathered_dot(target[leaf], mover[leaf], gathers)
        return total

    def _make_panels(self, group: Group) -> list[Panel]:
        return [self._make_panel(group, place) for place in group.places if place.where == "params"]

    def _make_panel(self, group: Group, place: Place) -> Panel:
        layouts = self.problem.symmetry.layouts[place.leaf]
        own = layouts[place.axis]
        others = [a for a, layout in enumerate(layouts) if a != place.axis and moves(layout)]
        inside = {name for name, _ in occurrences(own)} - {group.name}
        shared = bool(inside) and place.positions.shape[1] > 1
        groups = {name for axis in others for name, _ in occurrences(layouts[axis])}
        leaves = [
            (t[place.leaf], m[place.leaf])
            for t, m in zip(self.problem.target, self.problem.mover, strict=True)
        ]
        shifts = [float(m.mean(dtype=np.float64)) for _, m in leaves]
        ndim = len(layouts)
        simple = isinstance(own, Units)
        if len(others) > 1 or shared:
            order, pairs = "leaf", leaves
            groups |= inside
        elif simple and ndim == 2 and leaves[0][0].size > STACK_ENTRIES:
            order, pairs = ("ab" if place.axis == 0 else "ba"), leaves
        else:
            order, pairs = "abr", [_arranged(place, leaves, shifts, others)]
            shifts = [0.0]
        other = layouts[others[0]] if order != "leaf" and others else None
        if order in ("ab", "ba") and not others:
            other = None
        return Panel(
            group.name, place, own, other, frozenset(groups), pairs, shifts, order, layouts
        )


def _arranged(
    place: Place,
    leaves: Sequence[tuple[np.ndarray, np.ndarray]],
    shifts: Sequence[float],
    others: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Target and mover as [units, other axis, rest], features side by side in the rest."""

    def arrange(array: np.ndarray) -> np.ndarray:
        # The unit's own positions come out as [size, m, …] with the other axes in their order.
        front = np.moveaxis(array, place.axis, 0)[place.positions]
        if not others:
            return front.reshape(len(front), 1, -1)
        axis = others[0] + 2 - (others[0] > place.axis)
        front = np.moveaxis(front, axis, 1)
        return front.reshape(*front.shape[:2], -1)

    targets = [arrange(t) for t, _ in leaves]
    movers = [arrange(m) - m.dtype.type(s) for (_, m), s in zip(leaves, shifts, strict=True)]
    return (
        np.ascontiguousarray(np.concatenate(targets, axis=-1)),
        np.ascontiguousarray(np.concatenate(movers, axis=-1)),
    )


def _gather_unless_still(layout: Layout, indices: Mapping[str, np.ndarray]) -> np.ndarray | None:
    if not moves(layout):
        return None
    gather = gather_index(layout, indices)
    return None if np.array_equal(gather, np.arange(len(gather))) else gather


def _gathered_dot(
    target: np.ndarray, mover: np.ndarray, gathers: Sequence[np.ndarray | None]
) -> float:
    """⟨target, mover gathered along its axes⟩ in float64, a block of the first axis at a time."""
    if target.ndim == 0:
        return float(target) * float(mover)
    step = max(1, (1 << 16) // max(target[:1].size, 1))
    total = 0.0
    for start in range(0, len(target), step):
        rows = slice(start, start + step)
        part = mover[rows if gathers[0] is None else gathers[0][rows]]
        for axis, gather in enumerate(gathers[1:], start=1):
            if gather is not None:
                part = part.take(gather, axis=axis)
        total += float(np.vdot(target[rows].astype(np.float64), part.astype(np.float64)))
    return total
