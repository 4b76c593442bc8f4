"""Repairing a path: hidden units keep the mean and standard deviation they have at the ends.

Averaging two aligned networks averages weights whose noise is independent, so pre-activations
shrink and shift between the ends (Jordan et al. 2023, for single networks), and the loss rises
although the permutation is right. Along the repaired path every hidden channel is rescaled
and shifted so that over a batch

    mean(t) = (1−t)·mean(0) + t·mean(1),    std(t) = (1−t)·std(0) + t·std(1).

With z the channel's pre-activation and a = std*/std, c = mean* − a·mean, the change z → a·z + c
is made in the parameters: incoming weights (or the gain of the normalisation) are multiplied
by a, and the bias b becomes a·b + c. Layers are repaired from input to output, each with the
layers before it already repaired.

Between two Gaussians the mean shrinks, not the noise: m_t averages means that match only in part,
while s_t averages standard deviations. So by default only the mean is scaled, with the statistics
of the mean network, and s_t stays that of the geodesic. Scaling the noise as well (`scale="all"`)
repairs less; docs/barriers.md has the numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.alignment.norms import ScaleFree, keep_norms
from onebasin.networks import Apply, NetworkLike, apply_of
from onebasin.paths.ends import check_t, lerp
from onebasin.paths.geodesics import DisplacementPath
from onebasin.paths.norm_keeping import Correction, NormKeepingPath
from onebasin.posterior import LowRank, MeanField, Posterior, PosteriorT, Samples
from onebasin.posterior.coupled import coupled_draws
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.symmetry.layers import Channels
from onebasin.symmetry.recording import Recorder
from onebasin.trees import PyTree, leaves_by_path, with_leaves

TOLERANCE = 0.02  # how far a repaired layer may miss its target, in standard deviations
DEAD = 1e-6  # a channel whose std is below this share of the layer's largest is not changed

Scale: TypeAlias = Literal["mean", "all"]
Change: TypeAlias = dict[str, tuple[np.ndarray, np.ndarray]]  # leaf → (scale, shift)
Moments: TypeAlias = list[tuple[np.ndarray, np.ndarray]]  # mean and std of each layer's channels
Member: TypeAlias = tuple[PyTree, PyTree | None, PyTree, PyTree | None]  # params, state at each end


@dataclass(frozen=True)
class Lever:
    """The leaf that scales the channels of a layer and the leaf that shifts them."""

    layer: int
    scale: str
    axis: int
    shift: str


@dataclass(frozen=True, eq=False)
class RepairedPath(Generic[PosteriorT]):
    """A path with the statistics of its hidden units restored; made by `repair`.

    `repaired` names the repaired layers; `left_alone` maps each of the others to the reason.
    """

    path: DisplacementPath[PosteriorT] | NormKeepingPath[PosteriorT]
    repaired: tuple[str, ...]
    left_alone: dict[str, str]
    statistics: str
    scale: Scale
    _levers: tuple[Lever, ...] = field(repr=False)
    _statistics: "_Statistics" = field(repr=False)
    _known: dict[float, Change] = field(default_factory=dict, repr=False)

    @property
    def plain(self) -> DisplacementPath[PosteriorT]:
        """The path without any repair, in the gauge of its ends."""
        return self.path.plain if isinstance(self.path, NormKeepingPath) else self.path

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

    def __call__(self, t: float) -> PosteriorT:
        return _changed(self.path(t), self._trees(self.change(t)), self.scale)

    def __repr__(self) -> str:
        layers = len(self.repaired) + len(self.left_alone)
        return f"{self.path!r}, {len(self.repaired)} of {layers} layers repaired"

    def change(self, t: float) -> Change:
        """Scale and shift of every leaf that is changed at t."""
        t = check_t(t)
        if t not in self._known:
            self._known[t] = _solve(self._statistics, t, self._levers)
        return self._known[t]

    def corrections(self, ts: np.ndarray) -> Correction:
        """What the repair does to the params of the plain path at all points `ts`."""
        trees = [self._trees(self.change(float(t)), self._factors(float(t))) for t in ts]
        part = None
        if self.scale == "mean":
            part = (self.path.q0.moments()[0], self.path.q1.moments()[0])
        stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)), *trees)
        return stacked, part

    def _factors(self, t: float) -> dict[str, jax.Array]:
        """The scales of a norm-keeping path, on which those of the repair follow."""
        return self.path.factors(t) if isinstance(self.path, NormKeepingPath) else {}

    def _trees(
        self, change: Change, factors: Mapping[str, jax.Array] = MappingProxyType({})
    ) -> tuple[PyTree, PyTree]:
        """Scale and shift as trees like params; leaves that do not change have scale 1, shift 0."""
        like = self.path.q0.like
        scale, shift = {}, {}
        for name, leaf in leaves_by_path(like).items():
            a, b = change.get(name, (np.ones((1,) * leaf.ndim), np.zeros((1,) * leaf.ndim)))
            scale[name] = jnp.asarray(a, leaf.dtype) * factors.get(name, 1.0)
            shift[name] = jnp.asarray(b, leaf.dtype)
        return with_leaves(like, scale), with_leaves(like, shift)


def repair(
    path: DisplacementPath[PosteriorT] | NormKeepingPath[PosteriorT],
    network: NetworkLike,
    x: ArrayLike,
    *,
    symmetry: Symmetry | None = None,
    scale: Literal["auto", "mean", "all"] = "auto",
    draws: int = 0,
    key: jax.Array | None = None,
) -> RepairedPath[PosteriorT]:
    """The path with the mean and std of every hidden unit over `x` interpolated between the ends.

    Args:
      path: from `geodesic`, `displacement` or `line`, between aligned ends; or from `keep_norms`.
      network: `apply(params, x)` (or `apply(params, x, state)`), a `Network` or a `Problem`.
      x: a batch of training inputs; a few hundred are enough.
      symmetry: the traced symmetry, found by tracing if not given. It says which weights
        compute a hidden channel and which bias or gain it has.
      scale: "mean" scales the mean of a Gaussian and keeps its noise, "all" scales both;
        "auto" is "mean" for Gaussians and "all" for Samples, whose draws are networks.
      draws: the number of draws (of common noise, from `key`) over which statistics are pooled;
        0 takes the mean network of Gaussians, and all draws of Samples.
      key: needed with `draws`.

    Returns:
      a path; `repaired` names its repaired layers, `left_alone` the others with the reason.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> def apply(p, x):
    ...     return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]
    >>> def params(sign):
    ...     return {"w1": jnp.array([[1.0, sign]]), "b1": jnp.zeros(2), "w2": jnp.ones((2, 1))}
    >>> path = ob.repair(ob.line(params(0.5), params(-0.25)), apply, jnp.array([[-1.0], [1.0]]))
    >>> path.repaired
    ('w1',)
    >>> path.path(0.5).draw(0)["w1"].tolist(), path(0.5).draw(0)["w1"].tolist()
    ([[1.0, 0.125]], [[1.0, 0.375]])
    """
    if not isinstance(path, DisplacementPath | NormKeepingPath):
        raise ValueError(
            f"a {type(path).__name__} cannot be repaired; give a path from geodesic, displacement, "
            "line or keep_norms"
        )
    if draws < 0 or (draws > 0 and key is None):
        raise ValueError("draws is a number of draws; if it is above 0, give the key as well")
    x = jnp.asarray(x)
    if x.ndim < 1 or len(x) < 2:
        raise ValueError(f"x has shape {x.shape}; statistics need at least two examples")
    of_samples = isinstance(path.q0, Samples)
    if scale not in ("auto", "mean", "all"):
        raise ValueError(f"scale is 'auto', 'mean' or 'all', not {scale!r}")
    if scale == "auto":
        scale = "all" if of_samples else "mean"
    free = path.free if isinstance(path, NormKeepingPath) else ScaleFree({})
    if free and (scale == "all" or draws > 0):
        raise ValueError(
            "on a path that keeps norms only means are scaled; drop scale='all' and draws"
        )
    apply = apply_of(network)
    members = _members(path, draws, key=key)
    params, state = members[0][:2]
    if symmetry is None:
        symmetry = find_symmetry(apply, params, x[:2], state=state)
    statistics = _Statistics(members, apply, x, symmetry, free)
    levers, reasons = _find_levers(statistics)
    names = {layer.name for layer in statistics.layers}
    for group in symmetry.groups:
        if names.isdisjoint(place.leaf for place in group.places):
            reasons[group.name] = "no layer that computes its units was found"
    kept = tuple(statistics.layers[lever.layer].name for lever in levers)
    source = "the mean network" if draws == 0 and not of_samples else f"{len(members)} draws"
    return RepairedPath(path, kept, reasons, source, scale, tuple(levers), statistics)


def _members(
    path: DisplacementPath | NormKeepingPath, draws: int, *, key: jax.Array | None
) -> list[Member]:
    """The networks whose statistics count: params and state at both ends, coupled."""
    ends = (path.q0, path.q1)
    if draws > 0 and key is not None:
        coupled = coupled_draws(ends, draws, key=key)
    elif isinstance(path.q0, Samples):
        coupled = coupled_draws(ends, path.q0.num_draws, key=jax.random.key(0))  # all, in order
    else:
        (start, _), (end, _) = (q.moments() for q in ends)
        return [(start, path.q0.state, end, path.q1.state)]
    return [(*start, *end) for start, end in map(coupled, range(coupled.count))]


class _Statistics:
    """Mean and std of every layer's channels, pooled over members and inputs."""

    def __init__(
        self,
        members: list[Member],
        apply: Apply,
        x: jax.Array,
        symmetry: Symmetry,
        free: ScaleFree,
    ) -> None:
        self.members = members
        params, state = members[0][:2]
        channels = Channels(Recorder(apply, params, x, symmetry, state))
        self.layers = channels.layers

        @jax.jit
        def raw(t: jax.Array, member: Member, change: Change) -> list[jax.Array]:
            params0, state0, params1, state1 = member
            params = keep_norms(free, t, params0, params1, lerp(t, params0, params1))
            params = _apply_change(params, change)
            recorded = channels.record(params, lerp(t, state0, state1))
            means = [z.mean(axis=1) for z in recorded]
            # The second moment as variance plus squared mean avoids cancellation in float32.
            return [
                jnp.stack([m, ((z - m[:, None]) ** 2).mean(axis=1) + m**2])
                for z, m in zip(recorded, means, strict=True)
            ]

        self._raw = raw
        still = self.no_change()
        self.targets = (self.at(0.0, still), self.at(1.0, still))

    def no_change(self) -> Change:
        """Scale one and shift zero for every leaf that a lever may change."""
        like = leaves_by_path(self.members[0][0])
        change: Change = {}
        for layer in self.layers:
            shifts = [] if layer.shift is None else [(layer.shift, -1)]
            for name, axis in [*layer.scales, *shifts]:
                shape = [1] * like[name].ndim
                shape[axis] = like[name].shape[axis]
                change.setdefault(name, (np.ones(shape, np.float32), np.zeros(shape, np.float32)))
        return change

    def at(self, t: float, change: Change) -> Moments:
        """Mean and std of every channel at t, with the change made."""
        found = [self._raw(jnp.float32(t), member, change) for member in self.members]
        pooled = [
            np.mean(np.asarray(parts, np.float64), axis=0) for parts in zip(*found, strict=True)
        ]
        return [(m, np.sqrt(np.maximum(square - m**2, 0.0))) for m, square in pooled]


def _solve(statistics: _Statistics, t: float, levers: Sequence[Lever]) -> Change:
    """The change of every leaf at t, layer by layer."""
    change = statistics.no_change()
    if t in (0.0, 1.0):
        return change  # the ends are their own targets
    now = statistics.at(t, change)
    for lever in levers:
        change, _, now = _restore(statistics, t, change, lever, now)
    return change


def _find_levers(statistics: _Statistics) -> tuple[list[Lever], dict[str, str]]:
    """A lever for every layer that has one, and the reason for every layer that has none.

    The leaves that may scale a layer are tried in order at the midpoint of the path; the first
    that brings the channels to their targets is the lever.
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
            if name in taken:
                continue
            lever = Lever(index, name, axis, layer.shift)
            trial, error, after = _restore(statistics, 0.5, change, lever, now)
            if error <= TOLERANCE:
                change, now = trial, after
                levers.append(lever)
                break
        else:
            reasons[layer.name] = "its statistics do not follow its weights and bias"
    return levers, reasons


def _restore(
    statistics: _Statistics, t: float, change: Change, lever: Lever, now: Moments
) -> tuple[Change, float, Moments]:
    """The change that also brings one layer to its target, the layer's remaining error relative to
    the target std, and the statistics of all layers after it, from which the next layer starts.
    """
    (mean0, std0), (mean1, std1) = (end[lever.layer] for end in statistics.targets)
    mean, std = now[lever.layer]
    mean_goal, std_goal = (1 - t) * mean0 + t * mean1, (1 - t) * std0 + t * std1
    alive = std > DEAD * max(float(std_goal.max()), 1e-30)
    ratio = np.where(alive, std_goal / np.where(alive, std, 1.0), 1.0)
    restored = dict(change)
    _compose(restored, lever.scale, lever.axis, ratio)
    _compose(restored, lever.shift, -1, ratio, mean_goal - ratio * mean)
    after = statistics.at(t, restored)
    gaps = np.abs(np.stack(after[lever.layer]) - np.stack([mean_goal, std_goal]))[:, alive]
    scale = np.maximum(std_goal[alive], 1e-3 * std_goal.max())
    return restored, float((gaps / scale).max(initial=0.0)), after


def _compose(
    change: Change, name: str, axis: int, ratio: np.ndarray, shift: np.ndarray | float = 0.0
) -> None:
    """Follow the leaf's present change by z → ratio·z + shift."""
    scale, offset = change[name]
    shape = [1] * scale.ndim
    shape[axis] = -1
    ratio, shift = ratio.reshape(shape), np.broadcast_to(shift, ratio.shape).reshape(shape)
    change[name] = ((scale * ratio).astype(np.float32), (offset * ratio + shift).astype(np.float32))


def _apply_change(params: PyTree, change: Change) -> PyTree:
    leaves = leaves_by_path(params)
    for name, (scale, shift) in change.items():
        leaf = leaves[name]
        leaves[name] = leaf * jnp.asarray(scale, leaf.dtype) + jnp.asarray(shift, leaf.dtype)
    return with_leaves(params, leaves)


def moved_mean(q: Posterior, added: PyTree) -> Any:
    """The distribution of θ + added for θ ~ q."""
    return _changed(q, (jax.tree.map(jnp.ones_like, added), added), "mean")


def _changed(q: Posterior, trees: tuple[PyTree, PyTree], how: Scale) -> Any:
    """The distribution of θ + (scale − 1)·part + shift for θ ~ q, where part is θ or its mean."""
    scale, shift = trees

    def moved(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, a, b: leaf * a + b, tree, scale, shift)

    def scaled(tree: PyTree) -> PyTree:
        return tree if how == "mean" else jax.tree.map(lambda leaf, a: leaf * a, tree, scale)

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
