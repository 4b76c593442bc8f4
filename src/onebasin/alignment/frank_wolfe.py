"""A stronger search: Frank and Wolfe's method on doubly stochastic matrices.

Every permutation matrix is relaxed to a doubly stochastic X_g. The score stays a polynomial
in them (bilinear where a leaf has two groups), its slope for one group is a score matrix, and
the best permutation for that slope is one assignment. All groups step together towards theirs
by the share that is best along the way; the end is rounded by one assignment for each group
and polished by coordinate descent. Starting from the middle, where every unit is matched to
all alike, it is not bound to the basin that coordinate descent fell into.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onebasin.alignment.assignment import solve
from onebasin.alignment.descent import Descent, Matcher, Orders
from onebasin.alignment.objective import FeaturePair
from onebasin.alignment.scores import ScoreTable
from onebasin.symmetry import Permutation
from onebasin.symmetry.layout import Layout, occurrences

Relaxed = dict[str, np.ndarray]


@dataclass(frozen=True)
class FrankWolfe:
    """Steps of the relaxed search, and the share of the found permutation it starts with.

    `anchor` 0 starts at the uniform matrix, 1 at the permutation of the coordinate descent.
    """

    steps: int = 30
    anchor: float = 0.1

    def improve(self, matcher: Matcher, end: Descent, orders: Orders, max_sweeps: int) -> Descent:
        """Search from the matcher's permutation; it moves only to a higher score."""
        problem, table = matcher.table.problem, matcher.table
        start = self._start(table)
        relaxed = self._search(problem, start)
        indices = {name: solve(x, name=name).columns for name, x in relaxed.items()}
        fresh = Matcher(ScoreTable(problem, Permutation(indices)), matcher.trace)
        mark = len(matcher.trace.scores)
        found = fresh.descend(orders, max_sweeps)
        sweeps = end.sweeps + found.sweeps
        if found.score <= end.score:
            del matcher.trace.scores[mark:], matcher.trace.seconds[mark:]
            return Descent(end.score, sweeps, end.converged)
        # The trace of the best so far: what lies below where the descent had ended is cut.
        kept = [i for i, s in enumerate(matcher.trace.scores) if i < mark or s > end.score]
        matcher.trace.scores[:] = [matcher.trace.scores[i] for i in kept]
        matcher.trace.seconds[:] = [matcher.trace.seconds[i] for i in kept]
        matcher.table, matcher.prices = fresh.table, fresh.prices
        return Descent(found.score, sweeps, found.converged)

    def _start(self, table: ScoreTable) -> Relaxed:
        relaxed = {}
        for name, index in table.indices.items():
            n = len(index)
            relaxed[name] = np.full((n, n), (1 - self.anchor) / n)
            relaxed[name][np.arange(n), index] += self.anchor
        return relaxed

    def _search(self, problem: FeaturePair, relaxed: Relaxed) -> Relaxed:
        names = [group.name for group in problem.symmetry.groups]
        prices: dict[str, np.ndarray] = {}
        value = _score(problem, relaxed)
        for _ in range(self.steps):
            vertex = {}
            for name in names:
                found = solve(slope(problem, relaxed, name), prices=prices.get(name), name=name)
                if found.prices is not None:
                    prices[name] = found.prices
                vertex[name] = np.zeros_like(relaxed[name])
                vertex[name][np.arange(len(found.columns)), found.columns] = 1.0
            share, reached = _best_share(problem, relaxed, vertex, value)
            if reached <= value + 1e-10 * abs(value):
                break
            relaxed = _between(relaxed, vertex, share)
            value = reached
        return relaxed


def _between(a: Relaxed, b: Relaxed, share: float) -> Relaxed:
    return {name: (1 - share) * a[name] + share * b[name] for name in a}


def _best_share(problem: FeaturePair, a: Relaxed, b: Relaxed, value: float) -> tuple[float, float]:
    """The share in [0, 1] at which the score is highest; it is a polynomial of low degree."""
    degree = max(
        (sum(1 for axis in axes for _ in occurrences(axis)) for axes in _scored(problem)),
        default=1,
    )
    points = np.linspace(0, 1, degree + 1)
    values = [value, *(_score(problem, _between(a, b, t)) for t in points[1:])]
    polynomial = np.polynomial.Polynomial.fit(points, values, degree, domain=[0, 1])
    turns = polynomial.deriv().roots()
    candidates = [float(t.real) for t in turns if abs(t.imag) < 1e-9 and 0 < t.real < 1]
    share = max([*candidates, 1.0], key=polynomial)
    return share, (values[-1] if share == 1.0 else _score(problem, _between(a, b, share)))


def _scored(problem: FeaturePair) -> list[tuple[Layout, ...]]:
    layouts = problem.symmetry.layouts
    return [layouts[leaf] for leaf in problem.target[0] if leaf in layouts]


def _score(problem: FeaturePair, relaxed: Relaxed) -> float:
    total = 0.0
    for target, mover in zip(problem.target, problem.mover, strict=True):
        for leaf, axes in problem.symmetry.layouts.items():
            if leaf in target:
                moved = _mixed(mover[leaf].astype(np.float64), axes, relaxed, None)
                total += float(np.vdot(target[leaf].astype(np.float64), moved))
    return total


def slope(problem: FeaturePair, relaxed: Relaxed, name: str) -> np.ndarray:
    """∂score/∂X_g: the group's score matrix with every other place mixed."""
    group = problem.symmetry[name]
    total = np.zeros((group.size, group.size))
    for place in group.places:
        if place.where != "params":
            continue
        axes = problem.symmetry.layouts[place.leaf]
        for target, mover in zip(problem.target, problem.mover, strict=True):
            still = (place.axis, place.occurrence)
            moved = _mixed(mover[place.leaf].astype(np.float64), axes, relaxed, still)
            total += place.rows(target[place.leaf].astype(np.float64)) @ place.rows(moved).T
    return total


def _mixed(
    array: np.ndarray,
    axes: tuple[Layout, ...],
    relaxed: Mapping[str, np.ndarray],
    still: tuple[int, int] | None,
) -> np.ndarray:
    """Every axis mixed by its groups' matrices, but for one place: axis and occurrence."""
    for axis, layout in enumerate(axes):
        for nth, (name, positions) in enumerate(occurrences(layout)):
            if (axis, nth) == still:
                continue
            moved = np.moveaxis(array, axis, 0).copy()
            units = moved[positions]  # [size, m, …]
            moved[positions] = np.tensordot(relaxed[name], units, axes=1)
            array = np.moveaxis(moved, 0, axis)
    return array
