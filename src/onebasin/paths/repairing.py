"""Repairing a path: hidden units keep the mean and spread they have at the ends.

Averaging two aligned networks averages weights whose noise is independent, so pre-activations
shrink and shift on the way (Jordan et al. 2023, for single networks), and the loss rises
although the permutation is right. Along the repaired path every hidden channel is rescaled
and shifted so that over a batch

    mean(t) = (1−t)·mean(0) + t·mean(1),    spread(t) = (1−t)·spread(0) + t·spread(1).

With z the channel's pre-activation and a = spread*/spread, c = mean* − a·mean, the change
z → a·z + c is made in the parameters: incoming weights (or the gain of the normalisation) are
multiplied by a, and the bias b becomes a·b + c. Layers are repaired from input to output, each
on what the layers before it give after their repair.

What shrinks between two Gaussians is their mean, not their noise: m_t averages means that do
not quite match, while s_t averages standard deviations. So by default only the mean is
scaled, with the statistics of the mean network, and s_t stays that of the geodesic. Scaling
the noise as well (`scale="all"`) repairs less; docs/barriers.md has the numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks import NetworkLike, apply_of
from onebasin.paths.ends import check_t, lerp
from onebasin.paths.geodesics import DisplacementPath
from onebasin.paths.layers import Channels
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.posterior.coupled import coupled_draws
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.trees import PyTree, leaves_by_path

TOLERANCE = 0.02  # of a channel's spread: how well a repaired layer must match its target
DEAD = 1e-6  # a channel whose spread is below this share of the layer's is left as it is

Scale = Literal["mean", "all"]
Change = dict[str, tuple[np.ndarray, np.ndarray]]  # leaf → (scale, shift), broadcastable
Moments = list[tuple[np.ndarray, np.ndarray]]  # for each layer: mean and spread of its channels


@dataclass(frozen=True)
class Lever:
    """What moves a layer's channels: the leaf that scales them and the one that shifts them."""

    layer: int
    scale: str
    axis: int
    shift: str


@dataclass(frozen=True, eq=False)
class RepairedPath:
    """A path with the statistics of its hidden units restored; made by `repair`.

    `repaired` names the layers that are; `left_alone` maps each of the others to the reason.
    """

    path: DisplacementPath
    repaired: tuple[str, ...]
    left_alone: dict[str, str]
    statistics: str
    scale: Scale
    _levers: tuple[Lever, ...] = field(repr=False, compare=False)
    _statistics: "_Statistics" = field(repr=False, compare=False)
    _known: dict[float, Change] = field(default_factory=dict, repr=False, compare=False)

    @property
    def kind(self) -> str:
        return f"repaired {self.path.kind}"

    @property
    def note(self) -> str:
        parts = [self.path.note, *(f"{n}: {why}" for n, why in self.left_alone.items())]
        return "; ".join(part for part in parts if part)

    @property
    def deterministic(self) -> bool:
        return self.path.deterministic

    @property
    def q0(self) -> Any:
        return self.path.q0

    @property
    def q1(self) -> Any:
        return self.path.q1

    def __call__(self, t: float) -> Any:
        t = check_t(t)
        return _changed(self.path(t), self._trees(self.change(t)), self.scale)

    def change(self, t: float) -> Change:
        """Scale and shift of every leaf that is changed at t."""
        t = check_t(t)
        if t not in self._known:
            self._known[t] = _solve(self._statistics, t, self._levers)
        return self._known[t]

    def corrections(self, ts: Sequence[float] | np.ndarray) -> tuple[tuple[PyTree, PyTree], Any]:
        """Scales and shifts as trees like params, with a leading axis of points; and the ends of
        the part of a draw that is scaled, the means, or None where it is all of it.
        """
        trees = [self._trees(self.change(float(t))) for t in ts]
        part = None
        if self.scale == "mean":
            part = (self.path.q0.moments()[0], self.path.q1.moments()[0])
        stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)), *trees)
        return stacked, part

    def _trees(self, change: Change) -> tuple[PyTree, PyTree]:
        like = self.path.q0.like
        structure = jax.tree.structure(like)
        pairs = [
            change.get(name, (np.ones((1,) * len(leaf.shape)), np.zeros((1,) * len(leaf.shape))))
            for name, leaf in leaves_by_path(like).items()
        ]
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(like)]
        scale, shift = (
            jax.tree.unflatten(
                structure, [jnp.asarray(p[i], d) for p, d in zip(pairs, dtypes, strict=True)]
            )
            for i in (0, 1)
        )
        return scale, shift


def repair(
    path: DisplacementPath,
    network: NetworkLike,
    x: Any,
    *,
    symmetry: Symmetry | None = None,
    scale: Literal["auto", "mean", "all"] = "auto",
    draws: int = 0,
    key: jax.Array | None = None,
) -> RepairedPath:
    """The path with each hidden unit's mean and spread over `x` brought to the ends' average.

    Args:
      path: from `geodesic`, `displacement` or `line`; aligned ends, or there is little to repair.
      network: `apply(params, x)` (or `apply(params, x, state)`), a `Network` or a `Problem`.
      x: a batch of inputs, training data: a few hundred are enough.
      symmetry: the traced symmetry, found by tracing if not given. It says which weights
        compute a hidden channel and which bias or gain it has.
      scale: "mean" scales the mean of a Gaussian and leaves its noise, "all" scales both;
        "auto" is "mean" for Gaussians and "all" for Samples, whose draws are networks.
      draws: over how many draws (of common noise, from `key`) statistics are pooled; 0 takes
        those of the mean network for Gaussians, and of all draws for Samples.
      key: needed with `draws`.
    """
    if not isinstance(path, DisplacementPath):
        raise ValueError(
            f"a {getattr(path, 'kind', type(path).__name__)} path cannot be repaired; give one "
            "from geodesic, displacement or line"
        )
    if draws < 0 or (draws > 0 and key is None):
        raise ValueError("draws counts draws; with any, give the key they are made from")
    x = jnp.asarray(x)
    if x.ndim < 1 or len(x) < 2:
        raise ValueError(f"x has shape {x.shape}; statistics need at least two examples")
    of_samples = isinstance(path.q0, Samples)
    if scale not in ("auto", "mean", "all"):
        raise ValueError(f"scale is 'auto', 'mean' or 'all', not {scale!r}")
    if scale == "auto":
        scale = "all" if of_samples else "mean"
    apply = apply_of(network)
    members = _members(path, draws, key=key)
    params, state = members[0][:2]
    if symmetry is None:
        symmetry = find_symmetry(apply, params, x[:2], state=state)
    statistics = _Statistics(members, apply, x, symmetry)
    levers, reasons = _find_levers(statistics)
    for group in symmetry.groups:
        leaves = {place.leaf for place in group.places}
        if not any(leaves & {layer.name} for layer in statistics.layers):
            reasons[group.name] = "no layer that computes its units could be followed"
    kept = tuple(statistics.layers[lever.layer].name for lever in levers)
    source = "the mean network" if draws == 0 and not of_samples else f"{len(members)} draws"
    return RepairedPath(path, kept, reasons, source, scale, tuple(levers), statistics)


def _members(path: DisplacementPath, draws: int, *, key: jax.Array | None) -> list[tuple]:
    """The networks whose statistics count: params and state at both ends, coupled."""
    ends = (path.q0, path.q1)
    coupled = None
    if draws > 0 and key is not None:
        coupled = coupled_draws(ends, draws, key=key)
    elif isinstance(path.q0, Samples):
        coupled = coupled_draws(ends, path.q0.num_draws, key=jax.random.key(0))  # all, in order
    if coupled is not None:
        pairs = (coupled(s) for s in range(coupled.count))
        return [(*start, *end) for start, end in pairs]
    (start, _), (end, _) = (q.moments() for q in (path.q0, path.q1))
    return [(start, path.q0.state, end, path.q1.state)]


class _Statistics:
    """Means and spreads of every layer's channels, pooled over members and inputs."""

    def __init__(self, members: list[tuple], apply: Any, x: jax.Array, symmetry: Symmetry) -> None:
        self.members = members
        channels = Channels(apply, members[0][0], x, symmetry, members[0][1])
        self.layers = channels.layers

        @jax.jit
        def raw(t: jax.Array, member: tuple, change: Change) -> list[jax.Array]:
            params0, state0, params1, state1 = member
            params = _apply_change(lerp(t, params0, params1), change)
            recorded = channels.record(params, lerp(t, state0, state1))
            means = [z.mean(axis=1) for z in recorded]
            # The second moment by way of the variance: nothing large cancels in float32.
            return [
                jnp.stack([m, ((z - m[:, None]) ** 2).mean(axis=1) + m**2])
                for z, m in zip(recorded, means, strict=True)
            ]

        self._raw = raw
        still = self.no_change()
        self.targets = (self.at(0.0, still), self.at(1.0, still))

    def no_change(self) -> Change:
        """Scale one and shift zero for every leaf that a lever may move."""
        like = leaves_by_path(self.members[0][0])
        change: Change = {}
        for layer in self.layers:
            shifts = [] if layer.shift is None else [(layer.shift, -1)]
            for name, axis in [*layer.scales, *shifts]:
                shape = [1] * len(like[name].shape)
                shape[axis] = like[name].shape[axis]
                change.setdefault(name, (np.ones(shape, np.float32), np.zeros(shape, np.float32)))
        return change

    def at(self, t: float, change: Change) -> Moments:
        """Mean and spread of every channel at t, with the change made."""
        found = [self._raw(jnp.float32(t), member, change) for member in self.members]
        pooled = [
            np.mean(np.asarray(parts, np.float64), axis=0) for parts in zip(*found, strict=True)
        ]
        return [(m, np.sqrt(np.maximum(square - m**2, 0.0))) for m, square in pooled]


def _solve(statistics: _Statistics, t: float, levers: Sequence[Lever]) -> Change:
    """The change of every leaf at t, layer after layer."""
    change = statistics.no_change()
    if t in (0.0, 1.0):
        return change  # the ends are their own targets
    now = statistics.at(t, change)
    for lever in levers:
        change, _, now = _pull(statistics, t, change, lever, now)
    return change


def _find_levers(statistics: _Statistics) -> tuple[list[Lever], dict[str, str]]:
    """A lever for every layer that has one, and the reason for every layer that has none.

    The leaves that may scale a layer are tried in turn at the middle of the path, and the
    first that brings the channels to their targets is the lever.
    """
    levers: list[Lever] = []
    reasons: dict[str, str] = {}
    change = statistics.no_change()
    now = statistics.at(0.5, change)
    for index, layer in enumerate(statistics.layers):
        if layer.shift is None:
            reasons[layer.name] = "it has no bias that could shift it"
            continue
        taken = {lever.scale for lever in levers}
        for name, axis in layer.scales:
            lever = Lever(index, name, axis, layer.shift)
            if name in taken:
                continue
            trial, error, after = _pull(statistics, 0.5, change, lever, now)
            if error <= TOLERANCE:
                change, now = trial, after
                levers.append(lever)
                break
        else:
            reasons[layer.name] = "its statistics do not follow its weights and bias"
    return levers, reasons


def _pull(
    statistics: _Statistics, t: float, change: Change, lever: Lever, now: Moments
) -> tuple[Change, float, Moments]:
    """The change with one layer brought to its target, by how much it still misses it, and the
    statistics of all layers with it, which the next layer starts from.
    """
    (mean0, spread0), (mean1, spread1) = (side[lever.layer] for side in statistics.targets)
    mean, spread = now[lever.layer]
    mean_goal, spread_goal = (1 - t) * mean0 + t * mean1, (1 - t) * spread0 + t * spread1
    alive = spread > DEAD * max(float(spread_goal.max()), 1e-30)
    ratio = np.where(alive, spread_goal / np.where(alive, spread, 1.0), 1.0)
    pulled = dict(change)
    _multiply(pulled, lever.scale, lever.axis, ratio)
    _multiply(pulled, lever.shift, -1, ratio, mean_goal - ratio * mean)
    after = statistics.at(t, pulled)
    gaps = np.abs(np.stack(after[lever.layer]) - np.stack([mean_goal, spread_goal]))[:, alive]
    scale = np.maximum(spread_goal[alive], 1e-3 * spread_goal.max())
    return pulled, float((gaps / scale).max(initial=0.0)), after


def _multiply(
    change: Change, name: str, axis: int, ratio: np.ndarray, shift: np.ndarray | float = 0.0
) -> None:
    """Make the leaf's change z → ratio·z + shift on top of what it is already."""
    scale, offset = change[name]
    shape = [1] * scale.ndim
    shape[axis] = -1
    ratio, shift = ratio.reshape(shape), np.broadcast_to(shift, ratio.shape).reshape(shape)
    change[name] = ((scale * ratio).astype(np.float32), (offset * ratio + shift).astype(np.float32))


def _apply_change(params: PyTree, change: Change) -> PyTree:
    named = leaves_by_path(params)
    leaves = [
        leaf * jnp.asarray(change[name][0], leaf.dtype) + jnp.asarray(change[name][1], leaf.dtype)
        if name in change
        else leaf
        for name, leaf in named.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _changed(q: Any, trees: tuple[PyTree, PyTree], how: Scale) -> Any:
    """The law of θ + (scale − 1)·part + shift for θ ~ q, where part is θ or its mean."""
    scale, shift = trees

    def moved(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, a, b: leaf * a + b, tree, scale, shift)

    def scaled(tree: PyTree) -> PyTree:
        if how == "mean":
            return tree
        return jax.tree.map(lambda leaf, a: leaf * a, tree, scale)

    match q:
        case MeanField():
            return MeanField(moved(q.mean), scaled(q.std), q.state)
        case LowRank():
            return LowRank(moved(q.mean), scaled(q.std), scaled(q.factors), q.state)
        case Samples() if how == "all":
            return Samples(moved(q.draws), q.chain, q.state)
        case Samples():
            mean, _ = q.moments()
            by = jax.tree.map(lambda m, a, b: (a - 1) * m + b, mean, scale, shift)
            return Samples(jax.tree.map(jnp.add, q.draws, by), q.chain, q.state)
    raise AssertionError(f"no repair for a {type(q).__name__}")
