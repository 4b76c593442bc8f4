"""Repairing a path: hidden units keep the mean and spread they have at the ends.

Averaging two aligned networks averages weights whose noise is independent, so pre-activations
shrink and shift on the way (Jordan et al. 2023, for single networks), and the loss rises
although the permutation is right. Along the repaired path every hidden channel is rescaled
and shifted so that over a batch

    mean(t) = (1−t)·mean(0) + t·mean(1),    spread(t) = (1−t)·spread(0) + t·spread(1).

With z the channel's pre-activation and a = spread*/spread, c = mean* − a·mean, the change
z → a·z + c is made in the parameters: incoming weights (or the gain of the normalisation) are
multiplied by a, and the bias b becomes a·b + c. On a Gaussian this scales mean, standard
deviation and factors alike. Layers are repaired from input to output, each on what the
layers before it give after their repair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.paths.displacement import Displacement
from onebasin.paths.points import check_t, lerp
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.trees import Tree, leaves_by_path

TOLERANCE = 0.02  # of a channel's spread: how well a repaired layer must match its target
DEAD = 1e-6  # a channel whose spread is below this share of the layer's is left as it is

Change = dict[str, tuple[np.ndarray, np.ndarray]]  # leaf → (scale, shift), broadcastable
Moments = list[tuple[np.ndarray, np.ndarray]]  # for each layer: mean and spread of its channels


@dataclass(frozen=True)
class Lever:
    """What moves a layer's channels: the leaf that scales them and the one that shifts them."""

    layer: int
    scale: str
    axis: int
    shift: str


@dataclass(frozen=True)
class Repaired:
    """A path with the statistics of its hidden units restored; made by `repair`.

    `repaired` names the layers that are; `left_alone` maps each of the others to the reason.
    """

    path: Displacement
    repaired: tuple[str, ...]
    left_alone: dict[str, str]
    statistics: str
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
        return _changed(self.path(t), self._trees(self.change(t)))

    def change(self, t: float) -> Change:
        """Scale and shift of every leaf that is changed at t."""
        t = check_t(t)
        if t not in self._known:
            self._known[t] = _solve(self._statistics, t, self._levers)
        return self._known[t]

    def corrections(self, ts: Sequence[float] | np.ndarray) -> tuple[Tree, Tree]:
        """Scales and shifts as trees like params, with a leading axis of points."""
        trees = [self._trees(self.change(float(t))) for t in ts]
        return jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)), *trees)

    def _trees(self, change: Change) -> tuple[Tree, Tree]:
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
    path: Displacement,
    apply: Callable[..., jax.Array],
    x: Any,
    *,
    symmetry: Symmetry | None = None,
    draws: int = 0,
    key: jax.Array | None = None,
) -> Repaired:
    """The path with each hidden unit's mean and spread over `x` brought to the ends' average.

    Args:
      path: from `geodesic`, `displacement` or `line`; aligned ends, or there is little to repair.
      apply: the network, `apply(params, x)` or `apply(params, x, state)`.
      x: a batch of inputs, training data: a few hundred are enough.
      symmetry: the traced symmetry, found by tracing if not given. It says which weights
        compute a hidden channel and which bias or gain it has.
      draws: over how many draws of the posterior (of common noise, from `key`) statistics are
        averaged; 0 takes those of the mean network.
      key: needed with `draws`.
    """
    if not isinstance(path, Displacement):
        raise ValueError(
            f"a {getattr(path, 'kind', type(path).__name__)} path cannot be repaired; give one "
            "from geodesic, displacement or line"
        )
    if draws < 0 or (draws > 0 and key is None):
        raise ValueError("draws counts draws; with any, give the key they are made from")
    x = jnp.asarray(x)
    if x.ndim < 1 or len(x) < 2:
        raise ValueError(f"x has shape {x.shape}; statistics need at least two examples")
    members = _members(path, draws, key=key)
    params, state = members[0][:2]
    if symmetry is None:
        symmetry = find_symmetry(apply, params, x[:2], state=state)
    statistics = _Statistics.over(members, apply, x, symmetry)
    levers, reasons = _find_levers(statistics, symmetry)
    kept = tuple(statistics.layers[lever.layer].kernel for lever in levers)
    source = "the mean network" if draws == 0 else f"{len(members)} draws"
    return Repaired(path, kept, reasons, source, tuple(levers), statistics)


def _members(path: Displacement, draws: int, *, key: jax.Array | None) -> list[tuple]:
    """The networks whose statistics count: params and state at both ends, coupled."""
    from onebasin.evaluation.strata import strata  # which in turn knows the paths

    if draws > 0 and key is not None:
        (stratum,) = strata(path, draws, key=key)
        return [stratum.ends(s) for s in range(stratum.count)]
    ends = []
    for q in (path.q0, path.q1):
        state = q.state
        if isinstance(q, Samples) and state is not None:
            state = jax.tree.map(lambda leaf: leaf.mean(0), state)
        ends += [q.moments()[0], state]
    return [tuple(ends)]


@dataclass(frozen=True)
class _Statistics:
    """Means and spreads of every layer's channels, pooled over members and inputs."""

    members: list[tuple]
    recorder: Any
    targets: tuple[Moments, Moments]

    @classmethod
    def over(cls, members: list[tuple], apply: Any, x: jax.Array, symmetry: Symmetry):
        from onebasin.symmetry.recording import Recorder

        recorder = Recorder(apply, members[0][0], x, symmetry, members[0][1])
        blank = cls(members, recorder, ([], []))
        return cls(members, recorder, (blank.at(0.0, {}), blank.at(1.0, {})))

    @property
    def layers(self) -> Any:
        return self.recorder.layers

    def at(self, t: float, change: Change) -> Moments:
        first: Any = 0.0
        for params0, state0, params1, state1 in self.members:
            params = _apply_change(lerp(t, params0, params1), change)
            channels = self.recorder.pre_activations(params, lerp(t, state0, state1))
            sums = np.concatenate([np.stack(_raw_moments(z), 1) for z in channels])
            first = first + sums.astype(np.float64) / len(self.members)
        sizes = [len(z) for z in channels]  # pyright: ignore[reportPossiblyUnboundVariable]
        parts = np.split(first, np.cumsum(sizes)[:-1])
        return [(p[:, 0], np.sqrt(np.maximum(p[:, 1] - p[:, 0] ** 2, 0.0))) for p in parts]


@jax.jit
def _raw_moments(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean = z.mean(axis=1)
    return mean, ((z - mean[:, None]) ** 2).mean(axis=1) + mean**2


def _solve(statistics: _Statistics, t: float, levers: Sequence[Lever]) -> Change:
    """The change of every leaf at t, layer after layer."""
    change: Change = {}
    if t in (0.0, 1.0):
        return change  # the ends are their own targets
    for lever in levers:
        change, _ = _pull(statistics, t, change, lever, statistics.at(t, change))
    return change


def _find_levers(statistics: _Statistics, symmetry: Symmetry) -> tuple[list[Lever], dict[str, str]]:
    """A lever for every layer that has one, and the reason for every layer that has none.

    Where the trace names no gain, a normalisation may still hide one (its gain multiplies the
    reciprocal norm, not the layer's result): then every gain of the same units is tried at
    the middle of the path, and the kernel too, and the one that hits the target is the lever.
    """
    levers: list[Lever] = []
    reasons: dict[str, str] = {}
    change: Change = {}
    for index, layer in enumerate(statistics.layers):
        if layer.shift is None:
            reasons[layer.kernel] = "it has no bias that could shift it"
            continue
        taken = {lever.scale for lever in levers}
        gains = [layer.gain] if layer.gain else _gains(symmetry, layer)
        options = [Lever(index, gain, -1, layer.shift) for gain in gains if gain not in taken]
        if layer.gain is None:
            options.append(Lever(index, layer.kernel, layer.axis, layer.shift))
        now = statistics.at(0.5, change)
        tried = [_pull(statistics, 0.5, change, option, now) for option in options]
        if tried and (best := int(np.argmin([error for _, error in tried]))) is not None:
            trial, error = tried[best]
            if error <= TOLERANCE:
                change = trial
                levers.append(options[best])
                continue
        reasons[layer.kernel] = "its statistics do not follow its weights and bias"
    return levers, reasons


def _gains(symmetry: Symmetry, layer: Any) -> list[str]:
    """The leaves that multiply the units which a layer computes."""
    return [
        place.leaf
        for group in symmetry.groups
        if any((p.leaf, p.axis) == (layer.kernel, layer.axis) for p in group.places)
        for place in group.places
        if place.role == "multiply" and place.where == "params"
    ]


def _pull(
    statistics: _Statistics, t: float, change: Change, lever: Lever, now: Moments
) -> tuple[Change, float]:
    """The change with one layer brought to its target, and by how much it still misses it."""
    like = leaves_by_path(statistics.members[0][0])
    (mean0, spread0), (mean1, spread1) = (side[lever.layer] for side in statistics.targets)
    mean, spread = now[lever.layer]
    mean_goal, spread_goal = (1 - t) * mean0 + t * mean1, (1 - t) * spread0 + t * spread1
    alive = spread > DEAD * max(float(spread_goal.max()), 1e-30)
    ratio = np.where(alive, spread_goal / np.where(alive, spread, 1.0), 1.0)
    pulled = dict(change)
    _multiply(pulled, lever.scale, like, lever.axis, ratio)
    _multiply(pulled, lever.shift, like, -1, ratio, mean_goal - ratio * mean)
    after = np.stack(statistics.at(t, pulled)[lever.layer])
    gaps = np.abs(after - np.stack([mean_goal, spread_goal]))[:, alive]
    scale = np.maximum(spread_goal[alive], 1e-3 * spread_goal.max())
    return pulled, float((gaps / scale).max(initial=0.0))


def _multiply(
    change: Change, name: str, like: dict[str, Any], axis: int, ratio: Any, shift: Any = 0.0
) -> None:
    shape = [1] * len(like[name].shape)
    shape[axis] = -1
    scale, offset = change.get(name, (np.ones(()), np.zeros(())))
    ratio, shift = np.reshape(ratio, shape), np.reshape(shift + 0.0 * ratio, shape)
    change[name] = (scale * ratio, offset * ratio + shift)


def _apply_change(params: Tree, change: Change) -> Tree:
    named = leaves_by_path(params)
    leaves = [
        leaf * jnp.asarray(change[name][0], leaf.dtype) + jnp.asarray(change[name][1], leaf.dtype)
        if name in change
        else leaf
        for name, leaf in named.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _changed(q: Any, trees: tuple[Tree, Tree]) -> Any:
    """The law of scale·θ + shift for θ ~ q."""
    scale, shift = trees

    def moved(tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf, a, b: leaf * a + b, tree, scale, shift)

    def scaled(tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf, a: leaf * jnp.abs(a), tree, scale)

    match q:
        case MeanField():
            return MeanField(moved(q.mean), scaled(q.std), q.state)
        case Samples():
            return Samples(moved(q.draws), q.chain, q.state)
        case LowRank():
            factors = jax.tree.map(lambda f, a: f * a[None], q.factors, scale)
            return LowRank(moved(q.mean), scaled(q.std), factors, q.state)
    raise AssertionError(f"no repair for a {type(q).__name__}")
