"""Coordinate descent over a symmetry with signs, scales and matrices.

One group (or one family of groups whose blocks move alike) is given its best element while all
others stay; the step is taken only if the square distance falls, so the score never does. The
mover's arrays are kept as they are moved, and each step is found from the inner products of their
rows with those of the target (`alignment/mixed_solves.py`). Blocks are assigned by the best that
any element of the group does for each pair of blocks.

For standard deviations, signs count for nothing, scales as for means, and a matrix gives the
marginal ones; these enter the distance, but not the choice of a matrix.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from onebasin.alignment.assignment import solve
from onebasin.alignment.descent import Trace
from onebasin.alignment.mixed_solves import Pair, Products, procrustes, scaled_gains, signed_gains
from onebasin.symmetry import Group, Permutation, Place, Symmetry, Transform
from onebasin.symmetry.blocks import joined, units
from onebasin.symmetry.kinds import Mixing, Pattern, key_of
from onebasin.symmetry.layout import gather_index, occurrences
from onebasin.symmetry.linear_action import LeafAction, leaf_actions

CLOSE = 1e-8  # a sweep that gains less than this share of all square norms is the last
Leaves = dict[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """The best element of one group: its permutation, signs, scales and matrices."""

    order: np.ndarray
    signs: np.ndarray | None = None
    scales: np.ndarray | None = None
    matrices: np.ndarray | None = None


@dataclass
class MixedDescent:
    """The mover's means and standard deviations as they are moved, and by what."""

    symmetry: Symmetry
    target: Sequence[Leaves]
    mover: list[Leaves]
    transform: Transform
    trace: Trace = field(default_factory=Trace)

    def __post_init__(self) -> None:
        self.distances = {leaf: self._distance(leaf, self.mover) for leaf in self.target[0]}
        self.others = _groups_beside(self.symmetry)
        self.units = units((group.name for group in self.symmetry.groups), self.symmetry.blocks)

    @property
    def distance(self) -> float:
        return sum(self.distances.values())

    def _distance(self, leaf: str, mover: Sequence[Leaves]) -> float:
        return sum(
            float(np.sum((a[leaf].astype(np.float64) - b[leaf]) ** 2))
            for a, b in zip(self.target, mover, strict=True)
        )

    def forward(self) -> None:
        """Each group by the places whose other groups are moved already, from the input on."""
        known: set[str] = set()
        waiting = list(self.units)
        while waiting:
            name = next((names for names in waiting if self._has_known(names, known)), waiting[0])
            waiting.remove(name)
            self._take(self._proposal(name, known | set(name)), only_if_better=False)
            known |= set(name)

    def descend(self, max_sweeps: int, scale: float, offset: float) -> tuple[int, bool]:
        """Visit all groups until a sweep gains nothing; the sweeps, and whether it ended so.

        The score recorded is `offset` minus half the square distance.
        """
        self.trace.add(offset - 0.5 * self.distance)
        for sweep in range(1, max_sweeps + 1):
            before = self.distance
            for names in self.units:
                if self._take(self._proposal(names, None), only_if_better=True):
                    self.trace.add(offset - 0.5 * self.distance)
            if before - self.distance <= CLOSE * scale:
                return sweep, True
        return max_sweeps, False

    def _has_known(self, names: tuple[str, ...], known: set[str]) -> bool:
        allowed = known | set(names)
        return any(
            self.others[key_of(place)] <= allowed
            for name in names
            for place in self._places(self.symmetry[name], None)
        )

    def _places(self, group: Group, known: set[str] | None) -> list[Place]:
        """The places that count: all, or those whose other groups are known."""
        places = [place for place in group.places if place.where == "params"]
        if known is None:
            return places
        return [place for place in places if self.others[key_of(place)] <= known]

    def _take(self, steps: dict[str, Step], *, only_if_better: bool) -> bool:
        """Move by these steps, if the distance falls."""
        self.trace.solves += len(steps)
        element = self._element(steps)
        groups = [self.symmetry[name] for name in steps]
        touched = {p.leaf for group in groups for p in group.places if p.where == "params"}
        actions = leaf_actions(element, groups, self.symmetry.mixings, dict(self.symmetry.shapes))
        moved = [
            {leaf: self._moved(values[leaf], leaf, element, actions, nth > 0) for leaf in touched}
            for nth, values in enumerate(self.mover)
        ]
        distances = {leaf: self._distance(leaf, moved) for leaf in touched}
        before = sum(self.distances[leaf] for leaf in touched)
        # A change within the rounding of the sums is no gain.
        least = 4 * float(np.finfo(np.float32).eps) ** 2 * before
        if only_if_better and not before - sum(distances.values()) > least:
            return False
        for own, new in zip(self.mover, moved, strict=True):
            own.update(new)
        self.distances |= distances
        self.transform = self.symmetry.compose(element, self.transform)
        return True

    def _moved(
        self,
        array: np.ndarray,
        leaf: str,
        element: Transform,
        actions: dict[str, LeafAction],
        spread: bool,
    ) -> np.ndarray:
        for axis, layout in enumerate(self.symmetry.layouts[leaf]):
            index = gather_index(layout, element.permutation.indices)
            if (index != np.arange(len(index))).any():
                array = array.take(index, axis=axis)
        action = actions.get(leaf)
        if action is None:
            return array
        if spread:
            return np.sqrt(action.magnitudes().on(array**2)).astype(array.dtype)
        return action.on(array).astype(array.dtype)

    def _element(self, steps: dict[str, Step]) -> Transform:
        """The transform that makes these steps and leaves the other groups."""
        still = self.symmetry.as_transform(self.symmetry.identity())
        own = lambda attribute, before: {
            name: found
            if name in steps and (found := getattr(steps[name], attribute)) is not None
            else value
            for name, value in before.items()
        }
        orders = {name: step.order for name, step in steps.items()}
        return Transform(
            Permutation({**self.symmetry.identity().indices, **orders}),
            own("signs", still.signs),
            own("scales", still.scales),
            own("matrices", still.matrices),
        )

    def _proposal(self, names: tuple[str, ...], known: set[str] | None) -> dict[str, Step]:
        """The best step of a group, or of all groups of a family."""
        if names[0] not in self.symmetry.blocks:
            (name,) = names
            group = self.symmetry[name]
            return {name: self._whole(group, known)}
        pairs = {name: self._block_pairs(self.symmetry[name], known) for name in names}
        gains = sum(own.gains for own in pairs.values())
        outer = solve(np.asarray(gains), name=names[0]).columns
        return {name: own.chosen(outer) for name, own in pairs.items()}

    def _whole(self, group: Group, known: set[str] | None) -> Step:
        mixing = self.symmetry.mixings.get(group.name, Mixing())
        places = self._places(group, known)
        if mixing.matrices is not None:
            grams = self._grams(group, places, mixing.matrices)
            return Step(np.arange(group.size), matrices=_matrix(grams, mixing)[1][None])
        step = _best_units(self._products(group, places, mixing, 0), mixing, group.name)
        for nth in range(1, len(mixing.scales)):
            step = self._rescaled(group, places, mixing, nth, step)
        return step

    def _rescaled(
        self, group: Group, places: Sequence[Place], mixing: Mixing, nth: int, step: Step
    ) -> Step:
        """The step with the scales of a further scaling, for the units as they are matched."""
        assert step.scales is not None
        products = self._products(group, places, mixing, nth)
        _, _, logs = scaled_gains(products, signed=False)
        still = (step.order == np.arange(group.size)).all()
        at_rest = (
            still and (step.scales == 1).all() and (step.signs is None or (step.signs > 0).all())
        )
        scales = step.scales.copy()
        if at_rest:  # otherwise the products are not those of the units as moved
            scales[nth] = np.exp(np.diag(logs))
        return Step(step.order, step.signs, scales)

    def _block_pairs(self, group: Group, known: set[str] | None) -> "_BlockPairs":
        """What any element of the group does for each pair of its blocks."""
        mixing = self.symmetry.mixings.get(group.name, Mixing())
        places = self._places(group, known)
        count = self.symmetry.blocks[group.name].count
        size = group.size // count
        spans = [slice(h * size, (h + 1) * size) for h in range(count)]
        gains = np.zeros((count, count))
        steps: dict[tuple[int, int], Step] = {}
        found: dict[tuple[int, int], Pair] = {}
        grams = products = None
        if mixing.matrices is not None:
            grams = self._grams(group, places, mixing.matrices)
        else:
            products = self._products(group, places, mixing, 0)
        for h, rows in enumerate(spans):
            for g, columns in enumerate(spans):
                if grams is not None:
                    found[h, g] = Pair(
                        grams.a[rows, columns],
                        grams.aa[columns, columns],
                        grams.b[rows, columns],
                        grams.bb[columns, columns],
                    )
                    gains[h, g], matrix = _matrix(found[h, g], mixing, polish=False)
                    steps[h, g] = Step(np.arange(size), matrices=matrix[None])
                elif products is not None:
                    part = products.within(rows, columns)
                    gains[h, g], steps[h, g] = _best_gain(part, mixing, group.name)
        return _BlockPairs(gains, steps, found if mixing.matrices is not None else {}, mixing)

    def _grams(self, group: Group, places: Iterable[Place], pattern: Pattern) -> Pair:
        """Inner products of rows over the places that a matrix multiplies, and those it inverts."""
        zeros = np.zeros((group.size, group.size))
        found = {1: zeros, -1: zeros}
        norms = {1: zeros, -1: zeros}
        for place in places:
            exponent = pattern[key_of(place)]
            if exponent:
                mine = place.rows(self.target[0][place.leaf])
                theirs = place.rows(self.mover[0][place.leaf])
                found[exponent] = found[exponent] + mine @ theirs.T
                norms[exponent] = norms[exponent] + theirs @ theirs.T
        return Pair(found[1], norms[1], found[-1], norms[-1])

    def _products(
        self, group: Group, places: Iterable[Place], mixing: Mixing, nth: int
    ) -> Products:
        flips: dict[int, np.ndarray] = {}
        stays: dict[int, np.ndarray] = {}
        norms: dict[int, np.ndarray] = {}
        zeros = np.zeros((group.size, group.size))
        for place in places:
            key = key_of(place)
            exponent = mixing.scales[nth][key] if mixing.scales else 0
            odd = mixing.signs is not None and mixing.signs[key] % 2 == 1
            for spread, (target, mover) in enumerate(zip(self.target, self.mover, strict=True)):
                mine, theirs = place.rows(target[place.leaf]), place.rows(mover[place.leaf])
                into = flips if odd and not spread else stays
                into[exponent] = into.get(exponent, zeros) + mine @ theirs.T
                norms[exponent] = norms.get(exponent, 0.0) + np.sum(
                    theirs.astype(np.float64) ** 2, axis=1
                )
        for exponent in norms:
            flips.setdefault(exponent, zeros)
            stays.setdefault(exponent, zeros)
        if not norms:
            flips[0], stays[0], norms[0] = zeros, zeros, np.zeros(group.size)
        return Products(flips, stays, norms)


@dataclass(frozen=True)
class _BlockPairs:
    """What is gained by, and the step for, each pair of blocks."""

    gains: np.ndarray
    steps: dict[tuple[int, int], Step]
    matrices: dict[tuple[int, int], Pair]
    mixing: Mixing

    def chosen(self, outer: np.ndarray) -> Step:
        """The step of all blocks in this order."""
        own = [self.steps[h, int(g)] for h, g in enumerate(outer)]
        order = joined(outer, np.stack([step.order for step in own]))
        if self.matrices:
            pairs = [self.matrices[h, int(g)] for h, g in enumerate(outer)]
            polished = [_matrix(pair, self.mixing)[1] for pair in pairs]
            return Step(order, matrices=np.stack(polished))

        def together(attribute: str) -> np.ndarray | None:
            parts = [getattr(step, attribute) for step in own]
            return None if parts[0] is None else np.concatenate(parts, axis=-1)

        return Step(order, together("signs"), together("scales"))


def _matrix(pair: Pair, mixing: Mixing, *, polish: bool = True) -> tuple[float, np.ndarray]:
    """The best matrix of a kind, and half of what it lowers the distance by."""
    if mixing.orthogonal:
        best = procrustes(pair.a + pair.b, centred=mixing.centred)
        return float(np.sum(best * (pair.a + pair.b))), best
    value, best = pair.start()
    if polish:
        best = pair.minimum(best)
        value = pair.value(best)
    return -0.5 * value, best


def _best_units(products: Products, mixing: Mixing, name: str) -> Step:
    return _best_gain(products, mixing, name)[1]


def _best_gain(products: Products, mixing: Mixing, name: str) -> tuple[float, Step]:
    """The best permutation with signs and scales, and half of what it lowers the distance by."""
    signed = mixing.signs is not None
    logs = None
    if mixing.scales:
        gains, signs, logs = scaled_gains(products, signed=signed)
    else:
        gains, signs = signed_gains(products, signed=signed)
    order = solve(np.ascontiguousarray(gains, np.float64), name=name).columns
    rows = np.arange(len(order))
    scales = None
    if logs is not None:
        scales = np.ones((len(mixing.scales), len(order)))
        scales[0] = np.exp(logs[rows, order])
    chosen = signs[rows, order] if signed else None
    return float(gains[rows, order].sum()), Step(order, chosen, scales)


def _groups_beside(symmetry: Symmetry) -> dict[tuple[str, int, int], frozenset[str]]:
    """For every place, the other groups on its leaf."""
    on = {
        leaf: {name for layout in axes for name, _ in occurrences(layout)}
        for leaf, axes in symmetry.layouts.items()
    }
    return {
        key_of(place): frozenset(on[place.leaf] - {group.name})
        for group in symmetry.groups
        for place in group.places
        if place.where == "params"
    }
