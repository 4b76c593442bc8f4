"""Score matrices of the groups, kept up to date as the permutations change.

For a group g and one of its places (an axis of a leaf), the matrix is T·Mᵀ: one row for each unit,
everything else flattened, with the mover's other axes permuted by the present permutations. When
the permutation of another axis changes, only the columns c that changed matter:

    S += T[:, c] · (M[:, new[c]] − M[:, old[c]])ᵀ

at a cost in proportion to the share of units that moved. Places on leaves where no other group
moves are computed once.

Adding a constant to all of M adds the same multiple of T's row sums to every column of S, and that
changes no assignment. So the mean of M is subtracted first: standard deviations are nearly equal,
and this keeps the digits of float32 for their differences.

In narrow networks with many small leaves, calls and not flops take the time. So the places of a
group on small leaves where no other group moves are concatenated, and what depends on the symmetry
alone is computed once (`plan_of`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from onebasin.alignment.objective import FeaturePair
from onebasin.alignment.score_plan import Slot, plan_of
from onebasin.symmetry import Permutation, Place
from onebasin.symmetry.layout import Layout, gather_index, without

Indices: TypeAlias = dict[str, np.ndarray]
Shift: TypeAlias = float | np.ndarray  # one number, or one for each row
BATCHED_ENTRIES = 1 << 20  # beyond this, products over the leading axes are added in a loop
BLOCK = 1 << 16  # entries of a dot product at a time


@dataclass
class Panel:
    """One place of a group: what it adds to the group's score matrix.

    The leaf is read as [before, units, after], without a copy.
    """

    groups: frozenset[str]  # the groups whose permutations the panel depends on
    pairs: Sequence[tuple[np.ndarray, np.ndarray]]  # target and mover, per feature
    shifts: Sequence[Shift]  # what is subtracted from the mover
    units: int
    after: int
    axis: int | None  # the one other axis that moves, if any,
    layout: Layout | None  # its layout,
    behind: bool  # and whether it comes after the units
    included: np.ndarray | None = None  # the gather index of the present matrix

    def add_to(self, scores: np.ndarray, indices: Indices) -> None:
        """Update the panel's part of `scores`."""
        if self.layout is None or self.axis is None:
            if self.included is None:
                self.included = np.zeros(0, np.int64)
                for (target, mover), shift in zip(self.pairs, self.shifts, strict=True):
                    self._accumulate(scores, target, _less(mover, shift))
            return
        new = gather_index(self.layout, indices)
        if self.included is None:
            moves = not _is_identity(new)
            for (target, mover), shift in zip(self.pairs, self.shifts, strict=True):
                moved = _taken(mover, new, self.axis) if moves else mover
                self._accumulate(scores, target, _less(moved, shift, inplace=moves))
        else:
            (changed,) = np.nonzero(new != self.included)
            if len(changed) == 0:
                return
            for target, mover in self.pairs:
                moved = _taken(mover, new[changed], self.axis)
                moved -= _taken(mover, self.included[changed], self.axis)
                self._accumulate(scores, _taken(target, changed, self.axis), moved)
        self.included = np.array(new)

    def _accumulate(self, scores: np.ndarray, target: np.ndarray, mover: np.ndarray) -> None:
        """scores[i, j] += Σ target[…, i, …] mover[…, j, …]."""
        after = self.after
        if self.behind and self.axis is not None:
            after = after // self.pairs[0][0].shape[self.axis] * target.shape[self.axis]
        if after == 1:
            scores += target.reshape(-1, self.units).T @ mover.reshape(-1, self.units)
            return
        t, m = (a.reshape(-1, self.units, after) for a in (target, mover))
        if len(t) == 1:
            scores += t[0] @ m[0].T
        elif len(t) * scores.size <= BATCHED_ENTRIES:
            scores += np.matmul(t, m.swapaxes(1, 2)).sum(axis=0)
        else:
            for left, right in zip(t, m, strict=True):
                scores += left @ right.T


@dataclass
class GeneralPanel:
    """A place where several axes move, or units share the axis: recomputed on every change."""

    groups: frozenset[str]
    pairs: Sequence[tuple[np.ndarray, np.ndarray]]
    shifts: Sequence[Shift]
    place: Place
    layouts: tuple[Layout, ...]  # of the leaf, with the place itself held fixed
    included: np.ndarray | None = None
    matrix: np.ndarray | None = None  # its present part of the score matrix

    def add_to(self, scores: np.ndarray, indices: Indices) -> None:
        gathers = [gather_index(layout, indices) for layout in self.layouts]
        key = np.concatenate(gathers)
        if self.included is not None and np.array_equal(key, self.included):
            return
        fresh = np.zeros_like(scores)
        for (target, mover), shift in zip(self.pairs, self.shifts, strict=True):
            moved = _less(mover[np.ix_(*gathers)], shift, inplace=True)
            fresh += self.place.rows(target) @ self.place.rows(moved).T
        scores += fresh if self.matrix is None else fresh - self.matrix
        self.matrix, self.included = fresh, key


class ScoreTable:
    """The score matrix of every group for one pair of features, computed when first asked for."""

    def __init__(self, pair: FeaturePair, start: Permutation) -> None:
        self.pair = pair
        plan = self._plan = plan_of(pair.symmetry)
        # Not part of the plan: equal symmetries may list their groups in another order.
        self.groups = {group.name: group.size for group in pair.symmetry.groups}
        self.indices: Indices = {name: np.array(start[name]) for name in self.groups}
        self.dtype = np.result_type(
            *{a.dtype for feature in pair.target for a in feature.values()}, np.float32
        )
        self._matrices: dict[str, np.ndarray] = {}
        self._shifts: dict[str, list[float]] = {}
        self._alone = {name: self._merged(name) for name in plan.alone}
        self._panels: dict[str, list[Panel | GeneralPanel]] = {
            name: [self._panel(name, slot) for slot in slots] for name, slots in plan.slots.items()
        }
        for name, panel in self._alone.items():
            self._panels[name].insert(0, panel)

    def groups_beside(self, places: Sequence[Place]) -> set[str]:
        """The other groups that move entries at these places, besides the groups of the places."""
        beside, own = set[str](), set[str]()
        for name, slots in self._plan.slots.items():
            for slot in slots:
                if slot.place in places:
                    own.add(name)
                    beside |= slot.groups
        return beside - own

    def neighbours(self) -> dict[str, set[str]]:
        """For each group, the groups whose scores change when it moves."""
        found: dict[str, set[str]] = {name: set() for name in self.groups}
        for name, panels in self._panels.items():
            for other in {other for panel in panels for other in panel.groups}:
                found[other].add(name)
        return found

    def scores(self, name: str, known: set[str] | None = None) -> np.ndarray:
        """S[i, j]: what unit i of the target gains from taking unit j of the mover.

        With `known`, only places whose other groups are all known contribute.
        """
        matrix = self._matrices.get(name)
        if matrix is None:
            size = self.groups[name]
            matrix = self._matrices[name] = np.zeros((size, size), self.dtype)
        # An overflow is reported where the matrix is used, with the group's name.
        with np.errstate(over="ignore", invalid="ignore"):
            for panel in self._panels[name]:
                if known is None or panel.included is not None or panel.groups <= known:
                    panel.add_to(matrix, self.indices)
        return matrix

    def is_whole(self, name: str) -> bool:
        """Whether all places of the group contribute to its matrix."""
        return all(panel.included is not None for panel in self._panels[name])

    def has_known(self, name: str, known: set[str]) -> bool:
        return any(panel.groups <= known for panel in self._panels[name])

    def permutation(self) -> Permutation:
        return Permutation(self.indices)

    def total(self, indices: Mapping[str, np.ndarray] | None = None) -> float:
        """The whole score Σ⟨target, moved⟩, summed in float64."""
        indices = self.indices if indices is None else indices
        still = {name for name, index in indices.items() if _is_identity(index)}
        total = 0.0
        for name, panel in self._alone.items():
            gathers = [None, None if name in still else indices[name]]
            for target, mover in panel.pairs:
                total += _gathered_dot(target, mover, gathers)
        # In the order of the leaves: a sum of floats must not depend on the order of a set.
        for leaf in self.pair.target[0]:
            if leaf in self._plan.held:
                continue
            gathers = [
                None if names <= still else gather_index(layout, indices)
                for layout, names in self._plan.axes.get(leaf, ())
            ]
            for target, mover in zip(self.pair.target, self.pair.mover, strict=True):
                total += _gathered_dot(target[leaf], mover[leaf], gathers)
        return total

    def constant(self) -> float | None:
        """What the score matrices leave out of the total: leaves that nothing moves, and shifts.

        In a forward pass each leaf enters the matrix of the last of its groups only, so the total
        is this constant plus the matched entries of the matrices. None if a leaf enters otherwise.
        """
        if not self._plan.once:
            return None
        total = 0.0
        for panel in self._alone.values():
            (target, _), (shift,) = panel.pairs[0], panel.shifts
            total += float(np.vdot(target.sum(axis=1, dtype=np.float64), shift))
        for leaf in self.pair.target[0]:
            if leaf in self._plan.held:
                continue
            shifts = self._shifts.get(leaf)
            for i, target in enumerate(self.pair.target):
                if shifts is None:
                    total += _gathered_dot(target[leaf], self.pair.mover[i][leaf], ())
                elif shifts[i]:
                    total += shifts[i] * float(target[leaf].sum(dtype=np.float64))
        return total

    def _merged(self, name: str) -> Panel:
        """Places on leaves where no other group moves, concatenated as one array [rest, units]."""
        places = self._plan.alone[name]
        size = self.groups[name]

        def columns(array: np.ndarray, place: Place) -> np.ndarray:
            whole = array.shape[-1] == size and place.axis == array.ndim - 1
            return array.reshape(-1, size) if whole else place.rows(array).T

        def side(features: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
            return np.concatenate([columns(f[p.leaf], p) for f in features for p in places])

        target, mover = side(self.pair.target), side(self.pair.mover)
        shift = np.add.reduce(mover, axis=1, keepdims=True) / mover.dtype.type(max(size, 1))
        return Panel(frozenset(), [(target, mover)], [shift], size, 1, None, None, False)

    def _panel(self, name: str, slot: Slot) -> Panel | GeneralPanel:
        leaf = slot.place.leaf
        pairs = [(t[leaf], m[leaf]) for t, m in zip(self.pair.target, self.pair.mover, strict=True)]
        shifts = self._shifts.get(leaf)
        if shifts is None:
            shifts = self._shifts[leaf] = [shift_of(mover) for _, mover in pairs]
        if slot.after is None:
            layouts = list(self.pair.symmetry.layouts[leaf])
            layouts[slot.place.axis] = without(layouts[slot.place.axis], slot.place.occurrence)
            return GeneralPanel(slot.groups, pairs, shifts, slot.place, tuple(layouts))
        size = self.groups[name]
        return Panel(
            slot.groups, pairs, shifts, size, slot.after, slot.axis, slot.layout, slot.behind
        )


def shift_of(mover: np.ndarray) -> float:
    """The mean if values are nearly equal; zero if they scatter around zero."""
    if mover.size == 0:
        return 0.0
    mean = float(mover.sum()) / mover.size
    return mean if mean**2 * mover.size > 0.01 * float(np.vdot(mover, mover)) else 0.0


def _taken(array: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    """Columns by valid indices; skipping the check of bounds saves a fifth of the time."""
    return array.take(index, axis=axis, mode="wrap")


def _is_identity(index: np.ndarray) -> bool:
    return bool((index == np.arange(len(index))).all())


def _less(array: np.ndarray, shift: Shift, *, inplace: bool = False) -> np.ndarray:
    if isinstance(shift, float) and shift == 0.0:
        return array
    return np.subtract(array, np.asarray(shift, array.dtype), out=array if inplace else None)


def _gathered_dot(
    target: np.ndarray, mover: np.ndarray, gathers: Sequence[np.ndarray | None]
) -> float:
    """⟨target, mover gathered along its axes⟩: rows in their own precision, their sum in float64.

    The rounding errors of rows are independent, so the relative error of the sum is eps / √rows.
    """
    if target.ndim == 0:
        return float(target) * float(mover)
    if target.size == 0:
        return 0.0
    if target.size <= BLOCK:
        return _moved_dot(target, mover, gathers)
    step = max(1, BLOCK // max(target[:1].size, 1))
    total = 0.0
    for start in range(0, len(target), step):
        rows = slice(start, start + step)
        first = gathers[0] if gathers else None
        part = mover[rows if first is None else first[rows]]
        total += _moved_dot(target[rows], part, [None, *gathers[1:]])
    return total


def _moved_dot(
    target: np.ndarray, mover: np.ndarray, gathers: Sequence[np.ndarray | None]
) -> float:
    for axis, gather in enumerate(gathers):
        if gather is not None:
            mover = mover.take(gather, axis=axis)
    last = target.shape[-1]
    rows = np.einsum("ij,ij->i", target.reshape(-1, last), mover.reshape(-1, last))
    return float(rows.sum(dtype=np.float64))
