"""Frank and Wolfe's method on doubly stochastic matrices: a search beyond coordinate descent.

Every permutation matrix is relaxed to a doubly stochastic X_g. The score is a polynomial in them
(bilinear where a leaf has two groups), its gradient for one group is a score matrix, and the best
permutation for that gradient is one assignment. All groups step together towards theirs, by the
step size that is best along the line; the end is rounded by one assignment for each group and
polished by coordinate descent. The search starts near the centre, where every unit is matched to
all units equally, so it can leave the basin of coordinate descent.
"""

from dataclasses import dataclass

import numpy as np

from onebasin.alignment.assignment import solve
from onebasin.alignment.blocks import solve_all, solve_family
from onebasin.alignment.descent import Descent, Matcher, Orders
from onebasin.alignment.objective import FeaturePair
from onebasin.alignment.scores import ScoreTable
from onebasin.symmetry import Permutation
from onebasin.symmetry.blocks import families, units
from onebasin.symmetry.layout import Layout, occurrences

Relaxed = dict[str, np.ndarray]


@dataclass(frozen=True)
class FrankWolfe:
    """A search that `align` adds to coordinate descent: Frank and Wolfe's method.

    It starts at X = (1 − anchor)·11ᵀ/n + anchor·P, with P the permutation of coordinate descent.

    >>> import onebasin as ob
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(2)}, {"units": [("w", 0)]})
    >>> q0, q1 = {"w": np.array([1.0, 5.0])}, {"w": np.array([6.0, 2.0])}
    >>> ob.align(q1, to=q0, symmetry=symmetry, search=ob.FrankWolfe(steps=5)).posterior["w"]
    array([2., 6.])

    Args:
      steps: steps of the relaxed search, at most.
      anchor: the share of the permutation in the start: 0 starts at the uniform matrix, 1 at the
        permutation.
    """

    steps: int = 30
    anchor: float = 0.1

    def improve(self, matcher: Matcher, end: Descent, orders: Orders, max_sweeps: int) -> Descent:
        """Search from the matcher's permutation; the matcher moves only to a higher score."""
        pair = matcher.table.pair
        relaxed = self._search(pair, self._start(matcher.table))
        blocks = pair.symmetry.blocks
        indices = solve_all(relaxed, units(relaxed, blocks), blocks)
        fresh = Matcher(ScoreTable(pair, Permutation(indices)), matcher.trace)
        mark = len(matcher.trace.scores)
        found = fresh.descend(orders, max_sweeps)
        sweeps = end.sweeps + found.sweeps
        if found.score <= end.score:
            del matcher.trace.scores[mark:], matcher.trace.seconds[mark:]
            return Descent(end.score, sweeps, end.converged)
        # A trace never decreases: scores below the end of the first descent are dropped.
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

    def _search(self, pair: FeaturePair, relaxed: Relaxed) -> Relaxed:
        names = [group.name for group in pair.symmetry.groups]
        blocks = pair.symmetry.blocks
        prices: dict[str, np.ndarray] = {}
        value = _score(pair, relaxed)
        for _ in range(self.steps):
            vertex = {}
            for family in families(blocks).values():
                gradients = {name: gradient(pair, relaxed, name) for name in family}
                for name, columns in solve_family(gradients, blocks, family).items():
                    vertex[name] = np.eye(len(columns))[columns]
            for name in names:
                if name in vertex:
                    continue
                found = solve(gradient(pair, relaxed, name), prices=prices.get(name), name=name)
                if found.prices is not None:
                    prices[name] = found.prices
                vertex[name] = np.zeros_like(relaxed[name])
                vertex[name][np.arange(len(found.columns)), found.columns] = 1.0
            share, reached = _best_share(pair, relaxed, vertex, value)
            if reached <= value + 1e-10 * abs(value):
                break
            relaxed = _between(relaxed, vertex, share)
            value = reached
        return relaxed


def _between(a: Relaxed, b: Relaxed, share: float) -> Relaxed:
    return {name: (1 - share) * a[name] + share * b[name] for name in a}


def _best_share(pair: FeaturePair, a: Relaxed, b: Relaxed, value: float) -> tuple[float, float]:
    """The share in [0, 1] with the highest score, a polynomial of low degree in the share."""
    layouts = pair.symmetry.layouts
    scored = [layouts[leaf] for leaf in pair.target[0] if leaf in layouts]
    degree = max((sum(len(list(occurrences(axis))) for axis in axes) for axes in scored), default=1)
    points = np.linspace(0, 1, degree + 1)
    values = [value, *(_score(pair, _between(a, b, t)) for t in points[1:])]
    polynomial = np.polynomial.Polynomial.fit(points, values, degree, domain=[0, 1])
    turns = polynomial.deriv().roots()
    candidates = [float(t.real) for t in turns if abs(t.imag) < 1e-9 and 0 < t.real < 1]
    share = max([*candidates, 1.0], key=polynomial)
    return share, (values[-1] if share == 1.0 else _score(pair, _between(a, b, share)))


def _score(pair: FeaturePair, relaxed: Relaxed) -> float:
    total = 0.0
    for target, mover in zip(pair.target, pair.mover, strict=True):
        for leaf, axes in pair.symmetry.layouts.items():
            if leaf in target:
                moved = _mixed(mover[leaf].astype(np.float64), axes, relaxed)
                total += float(np.vdot(target[leaf].astype(np.float64), moved))
    return total


def gradient(pair: FeaturePair, relaxed: Relaxed, name: str) -> np.ndarray:
    """∂score/∂X_g: the score matrix of the group with every other place mixed."""
    group = pair.symmetry[name]
    total = np.zeros((group.size, group.size))
    for place in group.places:
        if place.where != "params":
            continue
        axes = pair.symmetry.layouts[place.leaf]
        for target, mover in zip(pair.target, pair.mover, strict=True):
            fixed = (place.axis, place.occurrence)
            moved = _mixed(mover[place.leaf].astype(np.float64), axes, relaxed, fixed)
            total += place.rows(target[place.leaf].astype(np.float64)) @ place.rows(moved).T
    return total


def _mixed(
    array: np.ndarray,
    axes: tuple[Layout, ...],
    relaxed: Relaxed,
    fixed: tuple[int, int] | None = None,
) -> np.ndarray:
    """Every axis mixed by the matrices of its groups, except at one place (axis, occurrence)."""
    for axis, layout in enumerate(axes):
        for nth, (name, positions) in enumerate(occurrences(layout)):
            if (axis, nth) == fixed:
                continue
            moved = np.moveaxis(array, axis, 0).copy()
            units = moved[positions]  # [size, m, …]
            moved[positions] = np.tensordot(relaxed[name], units, axes=1)
            array = np.moveaxis(moved, 0, axis)
    return array
