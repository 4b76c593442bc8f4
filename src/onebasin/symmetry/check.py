"""Showing on numbers that a symmetry is one, and that the check could have failed.

The parameters are randomised first (zero biases and unit gains hide errors) and the
network is run in double precision. Then every group is moved alone and all of them
together: the outputs must not change. Each group is moved by a cycle through all its units at
one random setting of the parameters and by a swap of two neighbours on that cycle at another;
together the two generate every permutation of the group.

And places of a group are left out, one at a time: the outputs must change, or the place is
inert, i.e. the function does not depend on how it is laid out (as with the bias of attention
keys, which softmax cancels). `Symmetry.check` leaves out every place; `find_symmetry` takes
one for each group, as a control that shows the check could have failed.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from onebasin.networks import Apply
from onebasin.symmetry.action import move_tree
from onebasin.symmetry.groups import Group, Layouts, Place
from onebasin.symmetry.layout import without
from onebasin.symmetry.randomised import CannotRun, Outputs, Randomised
from onebasin.trees import PyTree

# Rounding in double precision, amplified by a deep network, stays many orders below this;
# a wrong place changes the outputs by about their own spread. Networks that compute in single
# precision whatever they are given get the second bound.
TOLERANCE = {"float64": 1e-8, "float32": 2e-3}
ROWS = 4  # of the batch; enough for statistics over a batch to be defined
HOPELESS = 0.1  # rounding that moves the outputs by this much of their spread hides everything


class NotASymmetry(ValueError):
    """A permutation of a group changes the network's function."""


class UncheckedWarning(UserWarning):
    """The function does not depend on a group at the parameters and inputs that were tried."""


@dataclass(frozen=True)
class Report:
    """How far the outputs moved, relative to their spread."""

    alone: dict[str, float]
    together: float
    left_out: dict[Place, float]
    tolerance: float

    @property
    def inert(self) -> tuple[Place, ...]:
        """Places that could be left out without changing the function."""
        return tuple(place for place, change in self.left_out.items() if change <= self.tolerance)


def check(
    groups: Sequence[Group],
    layouts: tuple[Layouts, Layouts],
    apply: Apply,
    params: PyTree,
    x: Any,
    *,
    key: jax.Array,
    state: PyTree | None = None,
    every_place: bool = True,
) -> Report:
    """Raise `NotASymmetry` naming the group if any permutation changes the outputs.

    `layouts` are those of the params and of the running statistics.
    """
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    with jax.numpy_dtype_promotion("standard"):
        with jax.enable_x64(True):
            # A few rows make it quick, but the function may be written for its batch alone.
            for rows in (ROWS, None):
                network = Randomised(apply, params, x, state, double=True, rows=rows)
                if network.accepts_operands():
                    try:
                        return _check(groups, layouts, network, seed, every_place)
                    except CannotRun:
                        continue
        # Some networks insist on single precision, e.g. for the carry of a scan.
        network = Randomised(apply, params, x, state, double=False, rows=None)
        try:
            return _check(groups, layouts, network, seed, every_place)
        except CannotRun as error:
            raise NotASymmetry(str(error)) from None


def _check(
    groups: Sequence[Group],
    layouts: tuple[Layouts, Layouts],
    network: Randomised,
    seed: list[int],
    every_place: bool,
) -> Report:
    trials = [_Trial(layouts, network, [*seed, i]) for i in range(2)]
    tolerance = max(trial.tolerance for trial in trials)
    if tolerance > HOPELESS:
        raise NotASymmetry(
            "the check cannot tell: rounding alone changes this network's outputs by "
            f"{tolerance:.0%} of their spread; call find_symmetry(..., check=False) and check "
            "a shallower network of the same kind"
        )
    rng = np.random.default_rng(seed)
    cycles = {group.name: rng.permutation(group.size) for group in groups}
    moves = [
        {name: _cycle(order) for name, order in cycles.items()},
        {name: _swap(order) for name, order in cycles.items()},
    ]
    alone: dict[str, float] = {}
    left_out: dict[Place, float] = {}
    identity = {group.name: np.arange(group.size) for group in groups}
    for group in groups:
        moved = [{**identity, group.name: move[group.name]} for move in moves]
        changes = [t.change(m) for t, m in zip(trials, moved, strict=True)]
        alone[group.name] = max(changes)
        if not alone[group.name] <= tolerance:
            raise NotASymmetry(
                f"group '{group.name}' is no symmetry of this network: permuting it changes the "
                f"outputs by {alone[group.name]:.1e} of their spread; it was thought to sit at "
                f"{', '.join(map(str, group.places))}"
            )
        # Leaving out the only place would be moving nothing at all.
        for place in group.places if len(group.places) > 1 else ():
            left_out[place] = trials[0].change(moved[0], leaving_out=place)
            if left_out[place] <= tolerance:
                left_out[place] = trials[1].change(
                    {**identity, group.name: moves[0][group.name]}, leaving_out=place
                )
            if not every_place and left_out[place] > tolerance:
                break
        else:
            if len(group.places) > 1 and all(left_out[p] <= tolerance for p in group.places):
                warnings.warn(
                    f"the check says nothing of group '{group.name}': at the parameters and "
                    "inputs it tried, the outputs do not depend on these units",
                    UncheckedWarning,
                    stacklevel=4,
                )
    together = max(t.change(m) for t, m in zip(trials, moves, strict=True))
    if not together <= tolerance:
        raise NotASymmetry(
            f"the groups are symmetries alone but not together: the outputs change by "
            f"{together:.1e} of their spread"
        )
    return Report(alone, together, left_out, tolerance)


class _Trial:
    """One random setting of a network's parameters, its outputs, and how far a move shifts them."""

    def __init__(
        self, layouts: tuple[Layouts, Layouts], network: Randomised, seed: list[int]
    ) -> None:
        self.layouts, self.network = layouts, network
        self.params, self.state, self.reference = network.settle(seed)
        # Rounding is as large as what a change of every parameter in its last digit does.
        nudged = network.run(network.nudged(self.params, seed), self.state)
        rounding = nudged.distance(self.reference)
        self.tolerance = max(TOLERANCE[network.precision()], 100 * rounding)

    def change(self, indices: Mapping[str, np.ndarray], leaving_out: Place | None = None) -> float:
        layouts = _leaving_out(self.layouts[0], leaving_out, "params")
        state_layouts = _leaving_out(self.layouts[1], leaving_out, "state")
        moved: Outputs = self.network.run(
            move_tree(self.params, 0, layouts, indices),
            move_tree(self.state, 0, state_layouts, indices),
        )
        return moved.distance(self.reference)


def _leaving_out(layouts: Layouts, place: Place | None, where: str) -> Layouts:
    if place is None or place.where != where:
        return layouts
    axes = list(layouts[place.leaf])
    axes[place.axis] = without(axes[place.axis], place.occurrence)
    return {**layouts, place.leaf: tuple(axes)}


def _cycle(order: np.ndarray) -> np.ndarray:
    """The cycle through all units in this order; it leaves no unit where it is."""
    indices = np.empty(len(order), np.int64)
    indices[order] = np.roll(order, 1)
    return indices


def _swap(order: np.ndarray) -> np.ndarray:
    """The swap of two neighbours on that cycle."""
    indices = np.arange(len(order))
    indices[order[:2]] = order[1::-1]
    return indices
