"""Check numerically that a symmetry is one, and that the check can fail.

The parameters are randomised first, because zero biases and unit gains hide errors, and the
network runs in double precision. Then the groups are permuted, each alone and all together; the
outputs must not change. Each group is permuted by a cycle through all its units at one random
setting of the parameters, and by a transposition of two neighbours on that cycle at another.
Together these two generate every permutation of the group. A group in blocks is permuted inside its
blocks, and the blocks of a family are moved by a cycle and a transposition.

As a control, places of a group are left out, one at a time. Then the outputs must change, or the
place is inert: the function does not depend on the order there (as with the bias of attention
keys, which softmax cancels). `Symmetry.check` leaves out every place; `find_symmetry` leaves out
one of each group, which is enough to show that the check can fail. Leaving out the only place of a
group would permute nothing at all; there the units get other numbers, and the outputs must change.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from onebasin.networks import Apply
from onebasin.symmetry.action import move_tree
from onebasin.symmetry.blocks import BlocksByGroup, families, joined
from onebasin.symmetry.groups import Group, Place, Where
from onebasin.symmetry.layout import Layouts, without
from onebasin.symmetry.randomised import CannotRun, Randomised
from onebasin.trees import PyTree, path_name

ROWS = 4  # of the batch; enough for statistics over a batch to be defined
HOPELESS = 0.1  # rounding that changes the outputs by this share of their range hides real changes


class NotASymmetry(ValueError):
    """A permutation of a group changes the network's function, or the check is inconclusive.

    >>> import jax.numpy as jnp
    >>> from onebasin.symmetry import Symmetry
    >>> params = {"w1": jnp.ones((2, 3)), "w2": jnp.ones((3, 1))}
    >>> apply = lambda params, x: jnp.tanh(x @ params["w1"]) @ params["w2"]
    >>> wrong = Symmetry.by_hand(params, {"hidden": [("w1", 1)]})  # w2 is missing
    >>> wrong.check(apply, params, jnp.ones((4, 2)), key=jax.random.key(0))
    Traceback (most recent call last):
        ...
    onebasin.symmetry.check.NotASymmetry: group 'hidden' is not a symmetry of this network: ...
    """


class UncheckedWarning(UserWarning):
    """The function does not depend on a group at the parameters and inputs that were tried."""


@dataclass(frozen=True)
class Report:
    """How far permutations change the outputs, relative to the range of the outputs."""

    alone: dict[str, float]
    """The change when each group is permuted alone, by its name."""
    together: float
    """The change when all groups are permuted."""
    left_out: dict[Place, float]
    """The change when a group is permuted except at one place."""
    tolerance: float
    mixed: dict[str, float] = field(default_factory=dict)
    """The change when the units of a group get random signs, scales or matrices, by its name."""

    def __repr__(self) -> str:
        worst = max([self.together, *self.alone.values(), *self.mixed.values()])
        return (
            f"Report(groups: {len(self.alone)}, largest change: {worst:.1e}, tolerance: "
            f"{self.tolerance:.0e}, inert places: {len(self.inert)} of {len(self.left_out)})"
        )

    @property
    def inert(self) -> tuple[Place, ...]:
        """Places that could be left out without changing the function."""
        return tuple(place for place, change in self.left_out.items() if change <= self.tolerance)


def check(
    groups: Sequence[Group],
    layouts: tuple[Layouts, Layouts],
    blocks: BlocksByGroup,
    apply: Apply,
    params: PyTree,
    x: Any,
    state: PyTree | None,
    key: jax.Array,
    every_place: bool,
) -> Report:
    """Raise `NotASymmetry`, naming the group, if any permutation changes the outputs.

    `layouts` are those of the params and of the running statistics.
    """
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    with jax.numpy_dtype_promotion("standard"):
        with jax.enable_x64(True):
            # A few rows are quick, but the function may accept only the batch size given.
            for rows in (ROWS, None):
                network = Randomised(apply, params, x, state, double=True, rows=rows)
                if network.accepts_operands():
                    try:
                        return _check(groups, layouts, blocks, network, seed, every_place)
                    except CannotRun:
                        continue
        # Some networks require single precision, e.g. for the carry of a scan.
        network = Randomised(apply, params, x, state, double=False, rows=None)
        try:
            return _check(groups, layouts, blocks, network, seed, every_place)
        except CannotRun as error:
            raise NotASymmetry(str(error)) from None


def _check(
    groups: Sequence[Group],
    layouts: tuple[Layouts, Layouts],
    blocks: BlocksByGroup,
    network: Randomised,
    seed: list[int],
    every_place: bool,
) -> Report:
    trials = [_Trial(layouts, network, [*seed, i]) for i in range(2)]
    tolerance = max(trial.tolerance for trial in trials)
    if tolerance > HOPELESS:
        raise NotASymmetry(
            "the check is inconclusive: rounding alone changes this network's outputs by "
            f"{tolerance:.0%} of their range; call find_symmetry(..., check=False) and check "
            "a shallower network of the same kind"
        )
    rng = np.random.default_rng(seed)
    moves = _moves(groups, blocks, rng)
    alone: dict[str, float] = {}
    left_out: dict[Place, float] = {}
    identity = {group.name: np.arange(group.size) for group in groups}
    whole = _whole_blocks(groups, blocks, rng)
    for group in groups:
        moved = [{**identity, group.name: move[group.name]} for move in moves]
        if group.name in blocks and blocks[group.name].count == group.size:
            moved = [{**identity, **move[blocks[group.name].family]} for move in whole]
        changes = [t.change(m) for t, m in zip(trials, moved, strict=True)]
        alone[group.name] = max(changes)
        if not alone[group.name] <= tolerance:
            raise NotASymmetry(
                f"group '{group.name}' is not a symmetry of this network: permuting it changes "
                f"the outputs by {alone[group.name]:.1e} of their range; its places are "
                f"{', '.join(map(str, group.places))}"
            )
        # Leaving out the only place would permute nothing at all.
        for place in group.places if len(group.places) > 1 else ():
            left_out[place] = trials[0].change(moved[0], leaving_out=place)
            if left_out[place] <= tolerance:
                left_out[place] = trials[1].change(moved[0], leaving_out=place)
            if not every_place and left_out[place] > tolerance:
                break
        else:
            # A group with a single place is a symmetry even of a network that never reads it.
            if all(left_out.get(p, 0.0) <= tolerance for p in group.places) and not any(
                trial.without_order(group) > tolerance for trial in trials
            ):
                warnings.warn(
                    f"group '{group.name}' could not be checked: at the parameters and inputs "
                    "that were tried, the outputs do not depend on its units",
                    UncheckedWarning,
                    stacklevel=4,
                )
    for family, names in families(blocks).items():
        for trial, move in zip(trials, whole, strict=True):
            change = trial.change({**identity, **move[family]})
            if not change <= tolerance:
                raise NotASymmetry(
                    f"the blocks of '{family}' are no symmetry of this network: moving them in "
                    f"groups {', '.join(names)} changes the outputs by {change:.1e} of their "
                    "range; leave these blocks out"
                )
    together = max(t.change(m) for t, m in zip(trials, moves, strict=True))
    if not together <= tolerance:
        raise NotASymmetry(
            "each group is a symmetry, but all of them together are not: the outputs change by "
            f"{together:.1e} of their range; leave one of them out"
        )
    return Report(alone, together, left_out, tolerance)


def _moves(
    groups: Sequence[Group], blocks: BlocksByGroup, rng: np.random.Generator
) -> list[dict[str, np.ndarray]]:
    """A cycle and a transposition of every group; of a group in blocks, inside its blocks.

    Every block has a cycle of its own, and one of them a transposition.
    """
    moves: list[dict[str, np.ndarray]] = [{}, {}]
    for group in groups:
        own = blocks.get(group.name)
        if own is None:
            order = rng.permutation(group.size)
            moves[0][group.name], moves[1][group.name] = _cycle(order), _swap(order)
            continue
        inner = _unmoved(own.count, group.size)
        orders = [rng.permutation(inner.shape[1]) for _ in range(own.count)]
        cycles = np.stack([_cycle(order) for order in orders])
        inner[rng.integers(own.count)] = _swap(orders[0])
        still = np.arange(own.count)
        moves[0][group.name], moves[1][group.name] = joined(still, cycles), joined(still, inner)
    return moves


def _whole_blocks(
    groups: Sequence[Group], blocks: BlocksByGroup, rng: np.random.Generator
) -> list[dict[str, dict[str, np.ndarray]]]:
    """A cycle and a transposition of the blocks of every family, for all of its groups."""
    sizes = {group.name: group.size for group in groups}
    moves: list[dict[str, dict[str, np.ndarray]]] = [{}, {}]
    for family, names in families(blocks).items():
        order = rng.permutation(blocks[names[0]].count)
        for move, outer in zip(moves, (_cycle(order), _swap(order)), strict=True):
            move[family] = {n: joined(outer, _unmoved(len(order), sizes[n])) for n in names}
    return moves


def _unmoved(count: int, size: int) -> np.ndarray:
    return np.tile(np.arange(size // count), (count, 1))


class _Trial:
    """One random setting of a network's parameters, with its outputs there."""

    def __init__(
        self, layouts: tuple[Layouts, Layouts], network: Randomised, seed: list[int]
    ) -> None:
        self.layouts, self.network = layouts, network
        self.params, self.state, self.reference, self.tolerance = network.settle(seed)

    def change(self, indices: Mapping[str, np.ndarray], leaving_out: Place | None = None) -> float:
        """How far a permutation changes the outputs."""
        layouts = _leaving_out(self.layouts[0], leaving_out, "params")
        state_layouts = _leaving_out(self.layouts[1], leaving_out, "state")
        moved = self.network.run(
            move_tree(self.params, 0, layouts, indices),
            move_tree(self.state, 0, state_layouts, indices),
        )
        return moved.distance(self.reference)

    def without_order(self, group: Group) -> float:
        """How far the outputs change when the units of a group get other numbers at all places."""
        rng = np.random.default_rng(group.size)
        factors: dict[tuple[str, str], dict[int, np.ndarray]] = {}
        for place in group.places:
            along = factors.setdefault((place.where, place.leaf), {})
            shape = (self.layouts[place.where == "state"][place.leaf][place.axis].size,)
            along.setdefault(place.axis, np.ones(shape))[place.positions] *= rng.uniform(
                1.5, 2.5, place.positions.shape
            )

        def scale(where: Where, tree: PyTree) -> PyTree:
            def leaf(path: Any, value: Any) -> Any:
                for axis, found in factors.get((where, path_name(path)), {}).items():
                    shape = [-1 if i == axis else 1 for i in range(value.ndim)]
                    value = (value * found.reshape(shape)).astype(value.dtype)
                return value

            return jax.tree_util.tree_map_with_path(leaf, tree)

        moved = self.network.run(scale("params", self.params), scale("state", self.state))
        return moved.distance(self.reference)


def _leaving_out(layouts: Layouts, place: Place | None, where: Where) -> Layouts:
    if place is None or place.where != where:
        return layouts
    axes = list(layouts[place.leaf])
    axes[place.axis] = without(axes[place.axis], place.occurrence)
    return {**layouts, place.leaf: tuple(axes)}


def _cycle(order: np.ndarray) -> np.ndarray:
    """The cycle through all units in this order; it moves every unit."""
    indices = np.empty(len(order), np.int64)
    indices[order] = np.roll(order, 1)
    return indices


def _swap(order: np.ndarray) -> np.ndarray:
    """The transposition of two neighbours on that cycle."""
    indices = np.arange(len(order))
    indices[order[:2]] = order[1::-1]
    return indices
