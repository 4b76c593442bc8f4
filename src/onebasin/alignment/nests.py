"""Groups that nest: the heads of an attention layer and the dimensions inside them.

Where two groups permute one product of axes (heads × dimensions, the groups of a GroupNorm × the
channels inside), the score is bilinear in the two permutations σ and π,

    Σ M[h, i, σ(h), π(i)] + Σ A[h, σ(h)] + Σ B[i, π(i)],

and moving one group at a time sticks: with the dimensions mixed up, no pair of heads looks alike.
So the two are moved together. M is the score matrix of all H·d units at once, one matrix product.
Alternating two assignments climbs from many starts: the present permutations, and those that one
pair of heads asks for. In a permuted copy the right partner of a head is among its candidates, and
its best order of dimensions is the right one for all heads. There are min(H, d) candidates and
`EXTRA` pairs that look best, so at most `MOST_STARTS` climbs of a few small assignments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from onebasin.alignment.assignment import solve
from onebasin.alignment.scores import ScoreTable, shift_of
from onebasin.symmetry import Group, Place, Symmetry
from onebasin.symmetry.layout import gather_index, without

MOST_STARTS = 72
EXTRA = 8  # of the starts: pairs that look best at a glance
MOST_UNITS = 4096  # H·d; M is its square
ROUNDS = 50  # of the two assignments from one start, at most


@dataclass(frozen=True)
class Nest:
    """Two groups whose units are the factors of a product."""

    outer: str
    inner: str
    crossings: tuple[tuple[Place, Place], ...]  # where both permute the same entries of a leaf
    alone: tuple[tuple[Place, ...], tuple[Place, ...]]  # the other places of the two groups

    @property
    def names(self) -> tuple[str, str]:
        return self.outer, self.inner


@lru_cache(maxsize=8)
def nests_of(symmetry: Symmetry) -> tuple[Nest, ...]:
    """The pairs of groups that nest and are moved together, in the order of the groups."""
    nests = (_nest(symmetry[a], symmetry[b]) for a, b in _pairs(symmetry))
    return tuple(nest for nest in nests if nest is not None)


@lru_cache(maxsize=8)
def nests_deeply(symmetry: Symmetry) -> bool:
    """Whether groups nest in ways that moving pairs together does not cover.

    Three factors of one product do, and pairs that are quadratic in a leaf or too large.
    """
    pairs = _pairs(symmetry)
    partners: dict[str, set[str]] = {}
    for a, b in pairs:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    triples = any(partners[a] & partners[b] for a, b in pairs)
    return triples or len(nests_of(symmetry)) < len(pairs)


def _pairs(symmetry: Symmetry) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    on_leaf: dict[str, list[tuple[Group, Place]]] = {}
    order = {group.name: i for i, group in enumerate(symmetry.groups)}
    for group in symmetry.groups:
        for place in group.places:
            if place.where == "params":
                on_leaf.setdefault(place.leaf, []).append((group, place))
    for places in on_leaf.values():
        for n, (group, place) in enumerate(places):
            for other, at in places[n + 1 :]:
                free = group.name not in symmetry.blocks and other.name not in symmetry.blocks
                if free and group.name != other.name and _factors(place, at):
                    a, b = sorted((group.name, other.name), key=order.__getitem__)
                    found.setdefault((a, b))
    return list(found)


def _factors(a: Place, b: Place) -> bool:
    """Whether two places are factors of one axis, or of axes that one layer computes or reads."""
    if a.axis == b.axis:
        return _cross(a, b)
    layer = {a.role, b.role} & {"incoming", "outgoing"}  # experts are neither: a batch of layers
    return len(layer) == 1 and {a.role, b.role} <= {*layer, "other"}


def _cross(a: Place, b: Place) -> bool:
    return a.axis != b.axis or bool(np.isin(a.positions, b.positions).any())


def _nest(a: Group, b: Group) -> Nest | None:
    """The nest of two groups, or None where the score is not bilinear in the two or is too big."""
    ours, theirs = ([p for p in group.places if p.where == "params"] for group in (a, b))
    if a.size * b.size > MOST_UNITS or any(map(_crosses_itself, (ours, theirs))):
        return None
    crossings = [(p, q) for p in ours for q in theirs if p.leaf == q.leaf and _cross(p, q)]
    first, second = ([pair[side] for pair in crossings] for side in (0, 1))
    whole = all(p.axis != q.axis or _same_positions(p, q) for p, q in crossings)
    if not whole or len(set(first)) < len(first) or len(set(second)) < len(second):
        return None
    alone = (
        tuple(p for p in ours if p not in first),
        tuple(q for q in theirs if q not in second),
    )
    return Nest(a.name, b.name, tuple(crossings), alone)


def _same_positions(a: Place, b: Place) -> bool:
    return np.array_equal(np.sort(a.positions, axis=None), np.sort(b.positions, axis=None))


def _crosses_itself(places: Sequence[Place]) -> bool:
    return any(
        a.leaf == b.leaf and _cross(a, b) for n, a in enumerate(places) for b in places[n + 1 :]
    )


@dataclass(frozen=True)
class NestScores:
    """M as [H, d, H, d], A and B for one nest, all other groups held fixed."""

    together: np.ndarray
    outer: np.ndarray
    inner: np.ndarray

    def of(self, sigma: np.ndarray, pi: np.ndarray) -> float:
        h, i = np.arange(len(sigma)), np.arange(len(pi))
        both = self.together[h[:, None], i, sigma[:, None], pi]
        ends = self.outer[h, sigma].sum() + self.inner[i, pi].sum()
        return float(both.sum(dtype=np.float64) + ends)

    def rounding(self, sigma: np.ndarray, pi: np.ndarray) -> float:
        """The rounding error of a score."""
        h, i = np.arange(len(sigma)), np.arange(len(pi))
        entries = self.together[h[:, None], i, sigma[:, None], pi]
        return float(np.finfo(entries.dtype).eps * np.abs(entries).sum(dtype=np.float64))

    def best_outer(self, pi: np.ndarray) -> np.ndarray:
        matrix = self.together[:, np.arange(len(pi)), :, pi].sum(axis=0) + self.outer
        return solve(matrix).columns

    def best_inner(self, sigma: np.ndarray) -> np.ndarray:
        matrix = self.together[np.arange(len(sigma)), :, sigma, :].sum(axis=0) + self.inner
        return solve(matrix).columns

    def climb(self, sigma: np.ndarray, pi: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Alternate the two assignments until the score rises no more."""
        score = self.of(sigma, pi)
        for _ in range(ROUNDS):
            new_sigma = self.best_outer(pi)
            new_pi = self.best_inner(new_sigma)
            new_score = self.of(new_sigma, new_pi)
            if not new_score > score:
                break
            score, sigma, pi = new_score, new_sigma, new_pi
        return score, sigma, pi

    def optimum(self, sigma: np.ndarray, pi: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The best climb from the present permutations and from pairs of units; never worse."""
        best = self.climb(sigma, pi)
        small = self.together if len(sigma) <= len(pi) else self.together.transpose(1, 0, 3, 2)
        for first, second in _likely_pairs(small):
            order = solve(small[first, :, second, :]).columns
            if small is self.together:
                found = self.climb(self.best_outer(order), order)
            else:
                found = self.climb(order, self.best_inner(order))
            if found[0] > best[0]:
                best = found
        return best


def _likely_pairs(together: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of outer units to start from: all partners of the most telling one, and the best."""
    promise = together.max(axis=3).sum(axis=1)  # no order of the inner units scores more
    spread = together.std(axis=(1, 2, 3))
    first = int(np.argmax(spread))
    partners = np.argsort(-promise[first], kind="stable")[: MOST_STARTS - EXTRA]
    pairs = [(first, int(p)) for p in partners]
    ranked = np.argsort(-promise, axis=None, kind="stable")[:EXTRA]
    pairs += [
        (int(a), int(b)) for a, b in zip(*np.unravel_index(ranked, promise.shape), strict=True)
    ]
    return list(dict.fromkeys(pairs))


def scores_of(table: ScoreTable, nest: Nest, known: set[str] | None = None) -> NestScores:
    """The scores of a nest at the table's permutations; with `known`, of places known so far."""
    sizes = [table.groups[name] for name in nest.names]
    outer, inner = sizes
    together = np.zeros((outer * inner, outer * inner), table.dtype)
    ends = [np.zeros((n, n), table.dtype) for n in sizes]
    with np.errstate(over="ignore", invalid="ignore"):
        for pair in nest.crossings:
            if _is_known(table, nest, pair, known):
                for target, moved in _moved(table, pair):
                    together += _product_rows(target, pair) @ _product_rows(moved, pair).T
        for matrix, places in zip(ends, nest.alone, strict=True):
            for place in places:
                if _is_known(table, nest, (place,), known):
                    for target, moved in _moved(table, (place,)):
                        matrix += place.rows(target) @ place.rows(moved).T
    return NestScores(together.reshape(outer, inner, outer, inner), *ends)


def _is_known(
    table: ScoreTable, nest: Nest, places: Sequence[Place], known: set[str] | None
) -> bool:
    return known is None or table.groups_beside(places) <= known | set(nest.names)


def _moved(table: ScoreTable, places: Sequence[Place]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Target and mover of every feature, the mover permuted except at the given places."""
    leaf = places[0].leaf
    layouts = list(table.pair.symmetry.layouts[leaf])
    for place in sorted(places, key=lambda p: -p.occurrence):  # fixing one renumbers those after
        layouts[place.axis] = without(layouts[place.axis], place.occurrence)
    gathers = [gather_index(layout, table.indices) for layout in layouts]
    found = []
    for target, mover in zip(table.pair.target, table.pair.mover, strict=True):
        moved = mover[leaf][np.ix_(*gathers)]
        shift = shift_of(mover[leaf])
        found.append((target[leaf], moved - moved.dtype.type(shift) if shift else moved))
    return found


def _product_rows(array: np.ndarray, places: tuple[Place, Place]) -> np.ndarray:
    """One row for every pair of units (h, i), in row-major order: [H·d, K]."""
    a, b = places
    outer, inner = len(a.positions), len(b.positions)
    if a.axis == b.axis:
        length = array.shape[a.axis]
        units = np.full((2, length), -1)
        for side, place in enumerate(places):
            units[side, place.positions] = np.arange(len(place.positions))[:, None]
        (both,) = np.nonzero((units >= 0).all(axis=0))
        index = both[np.lexsort((both, units[1, both], units[0, both]))]
        return np.moveaxis(array.take(index, axis=a.axis), a.axis, 0).reshape(outer * inner, -1)
    for place in places:
        array = array.take(place.positions.reshape(-1), axis=place.axis)
    array = np.moveaxis(array, (a.axis, b.axis), (0, 1))
    split = array.reshape(outer, a.positions.shape[1], inner, b.positions.shape[1], -1)
    return split.transpose(0, 2, 1, 3, 4).reshape(outer * inner, -1)
