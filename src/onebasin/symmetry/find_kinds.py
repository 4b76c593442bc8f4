"""Find how the units of every group may be mixed, decided on numbers.

The places of a group come from the trace. At random parameters and in double precision random
elements of each kind are tried, from the richest to the poorest: one is accepted if it leaves the
outputs unchanged, and if leaving out one of its places changes them. Behind a choice, such as the
code nearest to a vector, outputs are constant but for jumps, which a few trials may miss. So what
decides a choice counts as an output (`symmetry/choices.py`), networks that choose inside loops are
left with permutations, and every part of every place must also enter the derivative of the outputs,
at half of the settings at least (at some, all units may be dead).

- *Scales* are a null space (`symmetry/scalings.py`), which also gives the exponent of every place.
- *Invertible matrices* act with the exponents of a scaling.
- *Orthogonal matrices* act on all places except gains. Gains that a scaling can make equal to one
  are made so first; a rotation exists at such parameters only.
- *Signs* act with the exponents that the roles of the places suggest, or, in groups of few places,
  with any (a recurrent cell flips its candidate and not its gates).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from onebasin.symmetry.check import NotASymmetry
from onebasin.symmetry.groups import Group, Kind, Place
from onebasin.symmetry.kinds import KINDS, Mixing, Pattern, key_of
from onebasin.symmetry.linear_action import LeafAction, leaf_actions, multiplied_tree
from onebasin.symmetry.permutation import Permutation
from onebasin.symmetry.scalings import Scalings, find_scalings
from onebasin.symmetry.transform import Transform
from onebasin.symmetry.trial import Trial
from onebasin.trees import PyTree

if TYPE_CHECKING:
    from onebasin.symmetry.symmetry import Symmetry

MOST_PARTS = 9  # layers of a group whose signs are tried in all combinations
SEEN = 1e-6  # effect on the outputs, of the largest: a false kind would then miss the tolerance
ROLE_EXPONENTS = {"incoming": 1, "add": 1, "other": 1, "outgoing": -1, "multiply": 0}


def find_mixings(
    symmetry: "Symmetry", trials: Sequence[Trial], kinds: Sequence[Kind]
) -> dict[str, Mixing]:
    """The mixing of every group that has one among `kinds`."""
    found: dict[str, Mixing] = {}
    if trials[0].network.has_hidden_choices():
        return found
    known = find_scalings(trials, symmetry.groups) if trials[0].double else {}
    for group in symmetry.groups:
        mixing = _Finder(symmetry, group, trials).mixing(kinds, known.get(group.name))
        if mixing is None:
            continue
        proposed = {**found, group.name: mixing}
        if not found or together(symmetry, proposed, trials):
            found = proposed
    return found


def check_mixings(symmetry: "Symmetry", trials: Sequence[Trial]) -> dict[str, float]:
    """How far a random element of each group changes the outputs; an error if one does.

    Raises:
      NotASymmetry: names the group and its kind.
    """
    found: dict[str, float] = {}
    for group in symmetry.groups:
        mixing = symmetry.mixings.get(group.name)
        if mixing is None:
            continue
        finder = _Finder(symmetry, group, trials)
        found[group.name] = finder.change(mixing)
        if not found[group.name] <= finder.tolerance:
            raise NotASymmetry(
                f"group '{group.name}' is not {mixing.kind}: a random element of that kind changes "
                f"the outputs by {found[group.name]:.1e} of their range; find the symmetry again"
            )
    if found and not together(symmetry, symmetry.mixings, trials):
        raise NotASymmetry(
            "the kind of each group is right, but all of them together change the outputs; find "
            "the symmetry again"
        )
    return found


class _Finder:
    """Tries the kinds of one group."""

    def __init__(self, symmetry: "Symmetry", group: Group, trials: Sequence[Trial]) -> None:
        self.symmetry, self.group, self.trials = symmetry, group, trials
        self.tolerance = max(trial.tolerance for trial in trials)
        own = symmetry.blocks.get(group.name)
        self.blocks = 1 if own is None else own.count
        self.size = group.size // self.blocks
        self.places = [place for place in group.places if place.where == "params"]
        self.rng = np.random.default_rng(group.size)

    def mixing(self, kinds: Sequence[Kind], known: Scalings | None) -> Mixing | None:
        """The richest mixing; without known scalings, those that the roles suggest are tried."""
        known = self._by_role() if known is None else known
        found = self._matrices([kind for kind in kinds if kind in KINDS[4:]], known)
        if found is not None:
            return found
        found = Mixing()
        if {"scaled", "monomial"} & set(kinds):
            for _, pattern in known:
                proposed = replace(found, scales=(*found.scales, pattern))
                found = proposed if self._accepts(proposed) else found
        if {"signed", "monomial"} & set(kinds):
            for pattern in self._sign_patterns(found.scales):
                proposed = replace(found, signs=pattern)
                if self._accepts(proposed):
                    found = proposed
                    break
        return None if found.kind == "permutation" else found

    def _matrices(self, kinds: Sequence[Kind], known: Scalings) -> Mixing | None:
        if not kinds or self.size < 2 or any(p.where == "state" for p in self.group.places):
            return None
        folded = tuple(
            (key_of(pivot), pattern)
            for pivot, pattern in known
            if pivot.role == "multiply" and pattern.linear and self._is_vector(pivot)
        )
        free = [pattern for pivot, pattern in known if pivot.role != "multiply" and pattern.linear]
        proposals: list[Mixing] = []
        if "invertible" in kinds:
            proposals += [Mixing(matrices=pattern, folded=folded) for pattern in free]
        if "orthogonal" in kinds:
            places = (place for place in self.places if place.role != "multiply")
            every = Pattern.of({key_of(place): 1 for place in places})
            proposals.append(Mixing(matrices=every, orthogonal=True, folded=folded))
            if self.size > 2:
                centred = Mixing(matrices=every, orthogonal=True, centred=True, folded=folded)
                proposals.append(centred)
        return next((mixing for mixing in proposals if self._accepts(mixing)), None)

    def _is_vector(self, place: Place) -> bool:
        shape = self.symmetry.shapes[place.leaf]
        return int(np.prod(shape)) == self.group.size == shape[place.axis]

    def _by_role(self) -> Scalings:
        """What the roles suggest, for a network in single precision or without derivatives."""
        return ((self.places[0], self._roles()),) if self.places else ()

    def _roles(self, **changed: int) -> Pattern:
        by_role = {**ROLE_EXPONENTS, **changed}
        return Pattern.of({key_of(place): by_role[place.role] for place in self.places})

    def _sign_patterns(self, scales: Sequence[Pattern]) -> Iterator[Pattern]:
        """Exponents to try for signs; only whether they are odd matters."""
        odd = [p for p in scales if any(e % 2 for _, e in p.entries)]
        yield from odd
        yield self._roles()
        yield self._roles(add=0)
        yield self._roles(outgoing=0)
        parts: dict[str, list[Place]] = {}
        outgoing = [place for place in self.places if place.role == "outgoing"]
        for place in self.places:
            if place.role in ("incoming", "add", "other"):
                layer = place.leaf.rpartition("/")[0] or place.leaf
                parts.setdefault(f"{layer} {place.occurrence}", []).append(place)
        if not 1 < len(parts) <= MOST_PARTS:
            return
        for chosen in product((0, 1), repeat=len(parts)):
            if any(chosen):
                flips = zip(chosen, parts.values(), strict=True)
                exponents = {key_of(p): flip for flip, own in flips for p in own}
                yield Pattern.of(exponents | {key_of(p): -1 for p in outgoing})

    def _accepts(self, mixing: Mixing) -> bool:
        """Whether random elements leave the outputs unchanged, and can be told from none."""
        pattern = mixing.matrices or mixing.signs or (mixing.scales or (None,))[-1]
        if pattern is None or not pattern.entries:
            return False
        if not self._differentiable or self.change(mixing) > self.tolerance:
            return False
        return self._control(mixing)

    @cached_property
    def _differentiable(self) -> bool:
        """Whether the outputs depend on all of every place by their derivative, at half the trials.

        Parts that hardly matter, such as queries and keys of almost uniform attention, would pass
        for parts that do not matter at all. Vectors may be such: a softmax removes a bias of keys.
        """
        effects = [effect for effect in (trial.effects for trial in self.trials) if effect]
        return all(
            2 * sum(bool(np.all(_parts(place, effect) > SEEN)) for effect in effects)
            >= len(effects)
            for place in self.places
            if place.role != "add"
        )

    def change(self, mixing: Mixing) -> float:
        """How far random elements, and folding where they need it, change the outputs."""
        furthest = 0.0
        for trial in self.trials:
            params = self._folded(mixing, trial)
            if params is None:
                return float("inf")
            if mixing.folded:
                furthest = max(furthest, trial.change({}, params))
            for _ in range(2):
                if furthest > self.tolerance:
                    return furthest
                actions = self._actions(self._random(mixing), mixing)
                furthest = max(furthest, trial.change(actions, params))
        return furthest

    def _control(self, mixing: Mixing) -> bool:
        """Whether leaving out some place changes the outputs."""
        trial, element = self.trials[0], self._random(mixing)
        params = self._folded(mixing, trial)
        for key, _ in (mixing.matrices or mixing.signs or mixing.scales[-1]).entries:
            less = _without(mixing, key)
            if trial.change(self._actions(element, less), params) > self.tolerance:
                return True
        return False

    def _random(self, mixing: Mixing) -> Transform:
        return random_element(self.symmetry, {self.group.name: mixing}, self.rng)

    def _folded(self, mixing: Mixing, trial: Trial) -> PyTree | None:
        folds = fold_actions(self.symmetry, {self.group.name: mixing}, trial.leaves)
        return None if folds is None else multiplied_tree(trial.params, 0, folds)

    def _actions(self, element: Transform, mixing: Mixing) -> dict[str, LeafAction]:
        groups, shapes = [self.group], dict(self.symmetry.shapes)
        return leaf_actions(element, groups, {self.group.name: mixing}, shapes)


def together(symmetry: "Symmetry", mixings: Mapping[str, Mixing], trials: Sequence[Trial]) -> bool:
    """Whether random elements of all these groups leave the outputs unchanged together."""
    element = random_element(symmetry, mixings, np.random.default_rng(len(mixings)))
    actions = leaf_actions(element, symmetry.groups, mixings, dict(symmetry.shapes))
    for trial in trials:
        folds = fold_actions(symmetry, mixings, trial.leaves)
        if folds is None:
            return False
        params = multiplied_tree(trial.params, 0, folds)
        if not trial.change(actions, params) <= max(t.tolerance for t in trials):
            return False
    return True


def _parts(place: Place, effect: Mapping[str, np.ndarray]) -> np.ndarray:
    """The largest effect at each of the positions that move together with a unit."""
    along = np.moveaxis(effect[place.leaf], place.axis, 0)[place.positions]
    return along.reshape(*place.positions.shape, -1).max(axis=(0, 2))


def _without(mixing: Mixing, key: tuple[str, int, int]) -> Mixing:
    """The mixing with one place left out of what was accepted last."""

    def less(pattern: Pattern) -> Pattern:
        return Pattern(tuple(entry for entry in pattern.entries if entry[0] != key))

    if mixing.matrices is not None:
        return replace(mixing, matrices=less(mixing.matrices))
    if mixing.signs is not None:
        return replace(mixing, signs=less(mixing.signs))
    return replace(mixing, scales=(*mixing.scales[:-1], less(mixing.scales[-1])))


def fold_actions(
    symmetry: "Symmetry", mixings: Mapping[str, Mixing], leaves: Mapping[str, np.ndarray]
) -> dict[str, LeafAction] | None:
    """What makes every folded gain equal to one, or None if a gain is zero."""
    found: dict[str, LeafAction] = {}
    for group in symmetry.groups:
        for key, pattern in mixings.get(group.name, Mixing()).folded:
            places = {key_of(place): place for place in group.places if place.where == "params"}
            gain = places[key].rows(np.asarray(leaves[key[0]], np.float64)).reshape(-1)
            if not np.abs(gain).min() > 1e-9 * np.abs(gain).max():
                return None
            power = pattern[key]
            for other, exponent in pattern.entries:
                place = places[other]
                action = found.setdefault(place.leaf, LeafAction())
                length = symmetry.shapes[place.leaf][place.axis]
                along = action.factors.setdefault(place.axis, np.ones(length))
                along[place.positions] *= (gain ** (-exponent * power))[:, None]
    return found


def random_element(
    symmetry: "Symmetry",
    mixings: Mapping[str, Mixing],
    rng: np.random.Generator,
    permutation: Permutation | None = None,
) -> Transform:
    """Random signs, scales and matrices for the groups, with a permutation (by default none)."""
    signs, scales, matrices = {}, {}, {}
    for group in symmetry.groups:
        mixing = mixings.get(group.name)
        if mixing is None:
            continue
        if mixing.signs is not None:
            own = rng.choice([-1.0, 1.0], group.size)
            own[rng.integers(group.size)] = -1.0
            signs[group.name] = own
        if mixing.scales:
            scales[group.name] = np.exp(0.5 * rng.standard_normal((len(mixing.scales), group.size)))
        if mixing.matrices is not None:
            own = symmetry.blocks.get(group.name)
            count = 1 if own is None else own.count
            size = group.size // count
            make = random_orthogonal if mixing.orthogonal else random_invertible
            if mixing.centred:
                matrices[group.name] = np.stack([centred(rng, size) for _ in range(count)])
            else:
                matrices[group.name] = np.stack([make(rng, size) for _ in range(count)])
    moves = symmetry.identity() if permutation is None else permutation
    return Transform(moves, signs, scales, matrices)


def random_orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    """A matrix from the uniform distribution over the orthogonal group."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def random_invertible(rng: np.random.Generator, size: int) -> np.ndarray:
    """A matrix with singular values near one."""
    left, right = random_orthogonal(rng, size), random_orthogonal(rng, size)
    return left * np.exp(0.3 * rng.standard_normal(size)) @ right


def centred(rng: np.random.Generator, size: int) -> np.ndarray:
    """A random orthogonal matrix that keeps the vector of ones."""
    across = across_ones(size)
    own = random_orthogonal(rng, size - 1)
    return np.full((size, size), 1 / size) + across @ own @ across.T


def across_ones(size: int) -> np.ndarray:
    """An orthonormal basis [size, size − 1] of the vectors whose entries sum to zero."""
    start = np.concatenate([np.ones((size, 1)), np.eye(size)[:, 1:]], axis=1)
    return np.linalg.qr(start)[0][:, 1:]
