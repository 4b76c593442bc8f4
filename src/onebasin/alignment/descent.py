"""Coordinate descent: one group at a time is moved to its optimum, until none can gain.

The score never decreases. A group is visited again only if a neighbour has moved since. Its last
prices then bound its gain: there is no solve if the bound is zero, and a warm-started one if it is
not. A group on two axes of one array is quadratic: its score matrix is the gradient at its present
permutation, and the step is taken only if the total score rises.

Groups that nest (`alignment/nests.py`) are moved together, from several starts, whenever no group
alone gains; descent has converged when neither gains any more. Groups whose units move in blocks
are moved with all of their family, exactly (`alignment/blocks.py`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from onebasin.alignment.assignment import Assignment, gap, solve
from onebasin.alignment.blocks import solve_family
from onebasin.alignment.nests import Nest, nests_of, scores_of
from onebasin.alignment.scores import ScoreTable
from onebasin.choices import OrderName
from onebasin.symmetry.blocks import BlocksByGroup, families


@dataclass
class Trace:
    """The score after every move, with the seconds since the start."""

    scores: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    solves: int = 0
    began: float = field(default_factory=time.perf_counter)

    def add(self, score: float) -> None:
        self.scores.append(score)
        self.seconds.append(time.perf_counter() - self.began)


@dataclass(frozen=True)
class Descent:
    """Where coordinate descent ended."""

    score: float
    sweeps: int
    converged: bool


@dataclass
class Matcher:
    """A score table, with the prices of the last solve of every group."""

    table: ScoreTable
    trace: Trace
    prices: dict[str, np.ndarray] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    """Groups at their optimum after a forward pass: descent need not visit them first."""

    def forward(self) -> float:
        """A forward pass: match each group by the places whose other groups are matched already.

        At the start nothing is known of the groups ahead, and scoring against their initial
        permutations adds noise; without them, descent ends in a far better optimum. Returns the
        final score.
        """
        score = self.table.constant()
        neighbours = self.table.neighbours()
        known: set[str] = set()
        waiting = list(self.table.groups)
        while waiting:
            ready = (n for n in waiting if self.table.has_known(n, known))
            name = next(ready, waiting[0])
            nest = self._nest_within(waiting, name)
            if nest is not None:
                self._move_together(nest, known)
                known |= set(nest.names)
                waiting = [n for n in waiting if n not in nest.names]
                self.settled -= neighbours[nest.outer] | neighbours[nest.inner]
                score = None
                continue
            family = self.families.get(name)
            if family is not None:
                matrices = {each: self.table.scores(each, known) for each in family}
                self.table.indices |= solve_family(matrices, self.blocks, family)
                self.trace.solves += len(family)
                known |= set(family)
                waiting = [n for n in waiting if n not in family]
                self.settled -= set().union(*(neighbours[each] for each in family))
                score = None
                continue
            waiting.remove(name)
            matrix = self.table.scores(name, known)
            found = solve(matrix, prices=self.prices.get(name), name=name)
            self.trace.solves += 1
            self._remember(name, found)
            self.table.indices[name] = found.columns
            known.add(name)
            self.settled -= neighbours[name]
            if self.table.is_whole(name) and name not in neighbours[name]:
                self.settled.add(name)
            if score is not None:
                score += float(matrix[np.arange(len(matrix)), found.columns].sum(dtype=np.float64))
        return self.table.total() if score is None else score

    def descend(self, orders: "Orders", max_sweeps: int, score: float | None = None) -> Descent:
        """Visit groups until none can gain, or `max_sweeps` sweeps have been made.

        `score` is the present score, if it is known. If not, gains are added up from zero and the
        start is scored at the end; only quadratic groups need the score before.
        """
        table = self.table
        neighbours = table.neighbours()
        if score is None and (self.families or any(n in near for n, near in neighbours.items())):
            score = table.total()
        begun, first = dict(table.indices) if score is None else None, len(self.trace.scores)
        score = 0.0 if score is None else score
        self.trace.add(score)

        def moved(names: tuple[str, ...]) -> None:
            changed = set().union(*(neighbours[name] for name in names))
            waiting.update(changed)
            changed.update(names)
            nests.update(nest for nest in self.nests if not changed.isdisjoint(nest.names))

        waiting = set(table.groups) - self.settled
        nests = set(self.nests)
        self.settled = set()
        sweeps = 0
        while (waiting or nests) and sweeps < max_sweeps:
            sweeps += 1
            while nests and not waiting:
                nest = min(nests, key=self.nests.index)
                nests.discard(nest)
                gain = self._move_together(nest)
                if gain > 0:
                    score += gain
                    self.trace.add(score)
                    moved(nest.names)
                    nests.discard(nest)
            for name in orders.next(list(table.groups)):
                if name not in waiting:
                    continue
                family = self.families.get(name, (name,))
                waiting.difference_update(family)
                quadratic = any(not neighbours[each].isdisjoint(family) for each in family)
                if name in self.families:
                    gain = self._visit_family(family, quadratic=quadratic, score=score)
                else:
                    gain = self._visit(name, quadratic=quadratic, score=score)
                if gain > 0:
                    score += gain
                    self.trace.add(score)
                    moved(family)
        if begun is not None:
            start = table.total(begun)
            score += start
            self.trace.scores[first:] = [start + gained for gained in self.trace.scores[first:]]
        return Descent(score, sweeps, not waiting and not nests)

    @property
    def blocks(self) -> BlocksByGroup:
        return self.table.pair.symmetry.blocks

    @cached_property
    def families(self) -> dict[str, tuple[str, ...]]:
        """The family of every group whose units move in blocks."""
        found = map(tuple, families(self.blocks).values())
        return {name: family for family in found for name in family}

    @cached_property
    def nests(self) -> tuple[Nest, ...]:
        return nests_of(self.table.pair.symmetry)

    def _nest_within(self, waiting: list[str], name: str) -> Nest | None:
        """A nest of this group and another that is not matched yet."""
        own = (nest for nest in self.nests if name in nest.names)
        return next((nest for nest in own if set(nest.names) <= set(waiting)), None)

    def _move_together(self, nest: Nest, known: set[str] | None = None) -> float:
        """Give two groups that nest their best permutations; returns the gain."""
        scores = scores_of(self.table, nest, known)
        sigma, pi = (self.table.indices[name] for name in nest.names)
        now = scores.of(sigma, pi)
        found, *best = scores.optimum(sigma, pi)
        self.trace.solves += 1
        if found - now <= scores.rounding(sigma, pi):
            return 0.0
        for name, index in zip(nest.names, best, strict=True):
            self.table.indices[name] = index
        return found - now

    def _remember(self, name: str, found: Assignment) -> None:
        if found.prices is not None:
            self.prices[name] = found.prices

    def _visit_family(self, family: tuple[str, ...], *, quadratic: bool, score: float) -> float:
        """Give the groups of a family their best permutations; returns the gain."""
        table = self.table
        matrices = {name: table.scores(name) for name in family}
        found = solve_family(matrices, self.blocks, family)
        self.trace.solves += len(family)
        gain = noise = 0.0
        for name, matrix in matrices.items():
            rows = np.arange(len(matrix))
            entries = matrix[rows, table.indices[name]].astype(np.float64)
            noise += float(np.finfo(matrix.dtype).eps * np.abs(entries).sum())
            gain += float(np.sum(matrix[rows, found[name]].astype(np.float64) - entries))
        if gain <= noise:
            return 0.0
        if quadratic:
            total = table.total({**table.indices, **found})
            gain = total - score
            if gain <= max(noise, float(np.finfo(table.dtype).eps) * abs(total)):
                return 0.0
        table.indices |= found
        return gain

    def _visit(self, name: str, *, quadratic: bool, score: float) -> float:
        """Give a group its best permutation; returns the gain (0 if nothing moved)."""
        table = self.table
        matrix = table.scores(name)
        now = table.indices[name]
        rows = np.arange(len(now))
        # A change within the rounding error of the sum is not a gain.
        entries = matrix[rows, now].astype(np.float64)
        noise = float(np.finfo(matrix.dtype).eps * np.abs(entries).sum())
        prices = self.prices.get(name)
        if prices is not None and gap(matrix, now, prices) <= noise:
            return 0.0
        found = solve(matrix, prices=prices, name=name)
        self.trace.solves += 1
        self._remember(name, found)
        gain = float(np.sum(matrix[rows, found.columns].astype(np.float64) - entries))
        if gain <= noise:
            return 0.0
        if quadratic:
            total = table.total({**table.indices, name: found.columns})
            gain = total - score
            if gain <= max(noise, float(np.finfo(matrix.dtype).eps) * abs(total)):
                return 0.0
        table.indices[name] = found.columns
        return gain


@dataclass
class Orders:
    """The order of the groups in each sweep: as data flows, reversed, alternating, or random."""

    kind: OrderName = "forward"
    seed: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(list(self.seed)) if self.kind == "random" else None
        self._count = 0

    def next(self, names: list[str]) -> list[str]:
        self._count += 1
        if self._rng is not None:
            return [names[i] for i in self._rng.permutation(len(names))]
        back = self.kind == "backward" or (self.kind == "alternate" and self._count % 2 == 0)
        return names[::-1] if back else names
