"""The scales of groups' units that leave a network's function unchanged, as a null space.

Multiply unit i at place p by exp(t wₚ rᵢ), with numbers rᵢ that are the same at every place. The
outputs f are unchanged to first order for any r if Σₚ wₚ gₚᵢ = 0 for every unit i and every
combination u of the outputs, where gₚᵢ is the sum of θ·∂(uᵀf)/∂θ over the weights of unit i at
place p. So the exponents w of all scalings are the null space of the matrix g, whose rows are units
and random combinations; each combination costs one gradient for all groups. In reduced row echelon
form every basis vector belongs to one pivot. Gains come first, so that each scaling that a gain can
undo has a gain of its own.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from onebasin.symmetry.groups import Group, Place
from onebasin.symmetry.kinds import Key, Pattern, key_of
from onebasin.symmetry.trial import WITHOUT_DERIVATIVE, Trial

NULL = 1e-9  # of the largest singular value: rounding in double precision, with a margin
INERT = 1e-12  # the outputs do not depend on a place whose derivative is smaller than this
MOST_GRADIENTS = 200
ORDER = {"multiply": 0, "incoming": 1, "add": 2, "other": 3, "outgoing": 4}
Scalings = Sequence[tuple[Place, Pattern]]


def find_scalings(trials: Sequence[Trial], groups: Sequence[Group]) -> Mapping[str, Scalings]:
    """The scalings of every group, each with the place of its pivot."""
    places = {
        group.name: sorted(
            (place for place in group.places if place.where == "params"),
            key=lambda place: ORDER[place.role],
        )
        for group in groups
    }
    needed = [(3 * len(places[g.name]) + 10) // g.size + 2 for g in groups]
    rows: dict[str, list[np.ndarray]] = {name: [] for name in places}
    try:
        each = min(max(needed), MOST_GRADIENTS) // len(trials) + 1
        for trial in trials:
            for gradient in islice(trial.gradients(), each):
                for name, own in places.items():
                    sums = [
                        place.rows(gradient[place.leaf] * trial.leaves[place.leaf]).sum(axis=1)
                        for place in own
                    ]
                    stacked = np.stack(sums, axis=1) if sums else np.zeros((1, 0))
                    rows[name].append(np.real(stacked))
    except WITHOUT_DERIVATIVE:
        return {}
    return {name: _null_space(np.concatenate(rows[name]), own) for name, own in places.items()}


def _null_space(columns: np.ndarray, places: Sequence[Place]) -> Scalings:
    scale = np.linalg.norm(columns, axis=0)
    alive = scale > INERT * max(scale.max(initial=0.0), 1e-300)
    used = [place for place, live in zip(places, alive, strict=True) if live]
    if not used:
        return ()
    columns, scale = columns[:, alive], scale[alive]
    _, values, basis = np.linalg.svd(columns / scale, full_matrices=True)
    values = np.concatenate([values, np.zeros(len(used) - len(values))])
    found = []
    for pivot, vector in _echelon(basis[values <= NULL * values[0]] / scale):
        exponents = _integers(vector)
        if exponents is not None:
            named = {key_of(place): e for place, e in zip(used, exponents, strict=True)}
            found.append((used[pivot], Pattern.of(with_inert(named, places))))
    return tuple(found)


def with_inert(exponents: dict[Key, int], places: Sequence[Place]) -> dict[Key, int]:
    """The exponents, with places the outputs do not depend on moved as their own layer is.

    The bias of attention keys is one: softmax cancels it.
    """
    whole = dict(exponents)
    for place in places:
        if key_of(place) not in exponents and place.role in ("add", "incoming"):
            layer = place.leaf.rpartition("/")[0]
            alike = [
                exponents[key_of(other)]
                for other in places
                if key_of(other) in exponents
                and other.role == "incoming"
                and other.leaf.rpartition("/")[0] == layer
                and other.occurrence == place.occurrence
            ]
            if alike and all(e == alike[0] for e in alike):
                whole[key_of(place)] = alike[0]
    return whole


def _echelon(rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The reduced row echelon form: each row with its pivot, which is 1 and alone in its column."""
    rows = rows.copy()
    found: list[tuple[int, int]] = []
    for column in range(rows.shape[1]):
        rest = [i for i in range(len(rows)) if i not in [row for row, _ in found]]
        if not rest:
            break
        best = max(rest, key=lambda i: abs(rows[i, column]))
        if abs(rows[best, column]) <= 1e-6 * np.abs(rows[best]).max():
            continue
        rows[best] /= rows[best, column]
        for i in range(len(rows)):
            if i != best:
                rows[i] -= rows[i, column] * rows[best]
        found.append((best, column))
    return [(column, rows[row]) for row, column in found]


def _integers(vector: np.ndarray) -> list[int] | None:
    """The vector as small integers, or None if it is no multiple of such."""
    for factor in (1, 2, 3):
        whole = np.round(factor * vector)
        if np.abs(factor * vector - whole).max() < 1e-5 and np.abs(whole).max() <= 8:
            return [int(e) for e in whole]
    return None
