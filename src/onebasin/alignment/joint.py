"""Bring any number of posteriors, or draws, into one basin: `align_many`.

There is no reference: every member is aligned to the barycentre of the others, in turn, until no
member moves. Each member has one permutation into the common frame, so alignments compose: from i
to j to k is the same as from i to k. For features that are the same on both sides (w2, l2), the
dispersion (1/n) (Σᵢ ‖fᵢ‖² − ‖Σᵢ Pᵢfᵢ‖² / n) decreases with every step. From the identity it ends in
a worse local optimum, since the mean of unaligned members blurs their units. So all members are
first aligned to one of them, the anchor, to which the others come closest.

`log-density` then alternates between fitting one factorised Gaussian to all members and moving each
of them to where the Gaussian is highest: both steps raise the mean log-density.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_alternation import align_to_gaussian, fit_gaussian
from onebasin.alignment.joint_learning import learn_jointly
from onebasin.alignment.learned import check_learnable
from onebasin.alignment.magnitudes import ORDINARY, joint_scale, scaled
from onebasin.alignment.members import Match, Members, match, moved
from onebasin.alignment.moments import Alignable, Moments
from onebasin.alignment.objective import (
    L2,
    W2,
    FeaturePair,
    Features,
    Objective,
    ObjectiveLike,
    objective_named,
)
from onebasin.alignment.path_loss import PathLoss
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.posterior import MeanField, Posterior, Samples
from onebasin.progress import Progress, reporting
from onebasin.symmetry import Permutation, Symmetry, stack
from onebasin.threads import one_thread_if_small
from onebasin.trees import PyTree

if TYPE_CHECKING:
    from distributed import Client

BATCH = 4  # members matched at once; fixed, so that results do not depend on the machine
CANDIDATES, TRIALS = 3, 6  # anchors tried, and members on which each is tried
ROUNDS, LEARNING_ROUNDS = 20, 2  # by default; a round of learning costs minutes
FLOOR = 1e-3  # least variance of the common Gaussian, as a share of its leaf's mean variance
START_SWEEPS = 4  # sweeps against the anchor; a full descent to the barycentre follows


@dataclass(frozen=True)
class JointAlignment:
    """One permutation for each member into a common frame: the result of `align_many`.

    >>> import onebasin as ob
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(2)}, {"units": [("w", 0)]})
    >>> members = [{"w": np.array([1.0, 5.0])}, {"w": np.array([6.0, 2.0])}]
    >>> found = ob.align_many(members, symmetry=symmetry, objective="l2")
    >>> found
    JointAlignment(2 members, l2, rounds 1, converged)
    >>> found.posteriors[1]["w"]
    array([2., 6.])
    """

    permutations: tuple[Permutation, ...]
    objective: str
    anchor: int
    """The index of the member to which all others were aligned at the start."""
    trace: tuple[float, ...]
    """At the start and after every round, minus the dispersion, or the mean log-density."""
    rounds: int
    converged: bool
    seconds: float
    members: Samples | tuple[Any, ...]
    symmetry: Symmetry

    def __repr__(self) -> str:
        end = "converged" if self.converged else "not converged"
        members = f"{len(self.permutations)} members"
        return f"JointAlignment({members}, {self.objective}, rounds {self.rounds}, {end})"

    @cached_property
    def stacked(self) -> Permutation:
        """All permutations as one, with one row for each member."""
        return stack(list(self.permutations))

    @cached_property
    def posteriors(self) -> Any:
        """The moved members: a tuple of posteriors, or `Samples` if `Samples` were given."""
        if isinstance(self.members, Samples):
            return self.symmetry.act(self.stacked, self.members)
        pairs = zip(self.permutations, self.members, strict=True)
        return tuple(self.symmetry.act(p, q) for p, q in pairs)

    @cached_property
    def barycenter(self) -> MeanField:
        """The W₂ barycentre of the moved posteriors; of points, their mean and std."""
        if isinstance(self.members, Samples):
            return self.posteriors.as_mean_field()
        known = [_tree_moments(q) for q in self.posteriors]
        means = [mean for mean, _ in known]
        if all(std is None for _, std in known):
            return Samples.from_list(means).as_mean_field()
        stds = [jax.tree.map(jnp.zeros_like, m) if std is None else std for m, std in known]

        def average(*leaves: jax.Array) -> jax.Array:
            return sum(leaves[1:], start=leaves[0]) / len(leaves)

        return MeanField(jax.tree.map(average, *means), jax.tree.map(average, *stds))


def _tree_moments(q: Alignable) -> tuple[PyTree, PyTree | None]:
    """Mean and standard deviation as trees; a point has no standard deviation."""
    if isinstance(q, Samples) and q.num_draws == 1:
        q = q.draw(0)
    return q.moments() if isinstance(q, Posterior) else (q, None)


@one_thread_if_small
def align_many(
    posteriors: Sequence[Alignable] | Samples | Members,
    *,
    symmetry: Symmetry,
    objective: ObjectiveLike | PathLoss = "w2",
    max_rounds: int | None = None,
    tolerance: float = 1e-4,
    max_sweeps: int = 100,
    key: jax.Array | None = None,
    client: "Client | None" = None,
    progress: Progress = "auto",
) -> JointAlignment:
    """Find one permutation for each posterior, or draw, that brings all of them into one basin.

    The dispersion V = (1/n) Σᵢ ‖Pᵢfᵢ − f̄‖² of the features f is minimised by aligning each member
    to the barycentre of the others, in turn.

    >>> import onebasin as ob
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(3)}, {"units": [("w", 0)]})
    >>> draws = ob.Samples({"w": np.array([[1.0, 5.0, 9.0], [6.0, 9.0, 2.0], [8.0, 1.0, 4.0]])})
    >>> ob.align_many(draws, symmetry=symmetry).posteriors.draws["w"].tolist()
    [[1.0, 5.0, 9.0], [2.0, 6.0, 9.0], [1.0, 4.0, 8.0]]

    Args:
      posteriors: a list of posteriors or params, or `Samples`, whose draws are the members.
      symmetry: the permutation symmetry of the network.
      objective: "w2" or "l2" (to the barycentre of the others), "log-density" (to one Gaussian
        fitted to all), an `Objective` with a barycentre, or `PathLoss(problem)`, which learns
        the permutation of each member on the loss of the paths to all others; it needs `key`.
      max_rounds: rounds over all members before giving up; by default 20, or 2 with `PathLoss`.
      tolerance: stop once a round changes the dispersion, or the mean log-density, by less than
        this share.
      max_sweeps: sweeps over the groups of units in one match.
      key: the random key for `PathLoss`.
      client: of a Dask cluster whose workers see the files of the draws; independent matches are
        spread over them, with the same result. `PathLoss` does not use it.
      progress: how to show progress, or a function of (what, done, total).

    Returns:
      A `JointAlignment`; its `posteriors` are the moved members.
    """
    began = time.perf_counter()
    if max_rounds is not None and max_rounds < 1:
        raise ValueError(f"max_rounds is {max_rounds}; allow at least one round")
    if isinstance(objective, PathLoss):
        return _learned(posteriors, symmetry, objective, max_rounds or LEARNING_ROUNDS, key)
    max_rounds = max_rounds or ROUNDS
    objective = objective_named(objective)
    if not (objective.has_barycentre or objective.name == "log-density"):
        raise ValueError(
            f"objective '{objective.name}' has no barycentre; use w2, l2 or log-density"
        )
    members = posteriors if isinstance(posteriors, Members) else Members.of(posteriors)
    symmetry.check_shapes(dict(members[0].mean))
    first = objective if isinstance(objective, Objective) and objective.has_barycentre else W2
    if first is W2 and members.has_points:
        first = L2  # points have no standard deviations to score
    features, unit = _in_range(first.mover, members[0])
    with reporting(progress) as report:
        with Workers(len(members), report, client) as workers:
            descent = _JointDescent(members, symmetry, features, workers, max_sweeps)
            anchor = descent.start()
            trace, converged = descent.rounds(max_rounds, tolerance)
            trace = [unit * value for value in trace]
        if not objective.has_barycentre and descent.differs():
            # In double precision: the variances of similar draws are small differences.
            aligned = AlignedMembers(members, symmetry, descent.indices, np.dtype(np.float64))
            ended = align_to_gaussian(
                fit_gaussian(aligned, 0, FLOOR),
                max_rounds=max_rounds,
                tolerance=tolerance,
                max_sweeps=max_sweeps,
                report=report,
                client=client,
            )
            descent.indices = aligned.indices
            trace = [ended.trace[0], *(b for a, b in pairwise(ended.trace) if b > a)]
            converged = ended.converged
    return JointAlignment(
        permutations=tuple(Permutation(indices) for indices in descent.indices),
        objective=objective.name,
        trace=tuple(trace),
        rounds=len(trace) - 1,
        converged=converged,
        anchor=anchor,
        seconds=time.perf_counter() - began,
        members=posteriors if isinstance(posteriors, Samples) else members.sources,
        symmetry=symmetry,
    )


def _learned(
    posteriors: Sequence[Alignable] | Samples | Members,
    symmetry: Symmetry,
    objective: PathLoss,
    max_rounds: int,
    key: jax.Array | None,
) -> JointAlignment:
    """Joint alignment on the loss of the paths between all members."""
    began = time.perf_counter()
    symmetry = symmetry.permutations
    key = check_learnable(symmetry, key)
    members = posteriors if isinstance(posteriors, Members) else Members.of(posteriors)
    symmetry.check_shapes(dict(members[0].mean))
    sources: Sequence[Alignable] = (
        members.sources
        if members.moments is not None
        else [members.posterior(i) for i in range(len(members))]
    )
    nearest = align_many(members, symmetry=symmetry, progress=objective.progress)
    found = learn_jointly(
        objective, sources, nearest.anchor, nearest.permutations, symmetry, key, max_rounds
    )
    return JointAlignment(
        permutations=found.permutations,
        objective=objective.name,
        trace=tuple(found.trace),
        rounds=len(found.trace) - 1,
        converged=found.converged,
        anchor=nearest.anchor,
        seconds=time.perf_counter() - began,
        members=posteriors if isinstance(posteriors, Samples) else members.sources,
        symmetry=symmetry,
    )


@dataclass(frozen=True)
class _ToAnchor:
    """Matches a member to the features of another; it can be sent to another process."""

    members: Members
    symmetry: Symmetry
    features: Callable[[Moments], Features]
    target: Features
    max_sweeps: int

    def __call__(self, i: int) -> Match:
        pair = FeaturePair(self.symmetry, self.target, self.features(self.members[i]))
        identity = dict(self.symmetry.identity().indices)
        return match(pair, identity, forward=True, max_sweeps=self.max_sweeps)


def _in_range(
    features: Callable[[Moments], Features], member: Moments
) -> tuple[Callable[[Moments], Features], float]:
    """Features whose products neither under- nor overflow, and the factor on their products."""
    low, high = ORDINARY
    used = features(member)
    if all(low <= _dot((feature,), (feature,)) <= high for feature in used):
        return features, 1.0

    def read(q: Moments) -> Moments:
        return q if len(used) > 1 else replace(q, std=None)

    exponent = joint_scale(read(member))
    return lambda q: features(scaled(read(q), -exponent)), 4.0**exponent


@dataclass
class _JointDescent:
    """The permutations so far, and the sum of all moved features in float64."""

    members: Members
    symmetry: Symmetry
    features: Callable[[Moments], Features]
    workers: Workers
    max_sweeps: int

    def __post_init__(self) -> None:
        identity = self.symmetry.identity().indices
        self.indices: list[Indices] = [dict(identity) for _ in range(len(self.members))]
        self.norms = 0.0
        self.sums: tuple[dict[str, np.ndarray], ...] = ()

    def start(self) -> int:
        """Align all members to the candidate nearest to a few of them, and return its index."""
        count = len(self.members)
        candidates = np.unique(np.linspace(0, count - 1, min(CANDIDATES, count)).astype(int))
        if count <= 2:
            candidates = candidates[:1]
        trials = np.unique(np.linspace(0, count - 1, min(TRIALS, count)).astype(int))
        best, anchor, done = np.inf, 0, {}
        for candidate in candidates.tolist():
            found = self._match_to(candidate, [i for i in trials.tolist() if i != candidate])
            target = self.features(self.members[candidate])
            norm = _dot(target, target)
            distances = []
            for i, result in found.items():
                new = self._moved(i, result.indices)
                distances.append(norm + (_dot(new, new) - 2 * _dot(target, new)))
            mean = float(np.mean(distances)) if distances else 0.0
            if mean < best:
                best, anchor, done = mean, candidate, found
        rest = [i for i in range(count) if i != anchor and i not in done]
        done.update(self._match_to(anchor, rest))
        for i, found in done.items():
            self.indices[i] = found.indices
        first = self.features(self.members[0])
        self.sums = tuple({k: np.zeros(v.shape) for k, v in feature.items()} for feature in first)
        for i in range(count):
            features = self.features(self.members[i])
            self.norms += _dot(features, features)
            self._add(moved(self.symmetry, features, self.indices[i]))
        return anchor

    def _match_to(self, anchor: int, which: list[int]) -> dict[int, Match]:
        target = self.features(self.members[anchor])
        sweeps = min(START_SWEEPS, self.max_sweeps)
        one = _ToAnchor(self.members, self.symmetry, self.features, target, sweeps)
        found = self.workers.spread(one, which, f"draws to draw {anchor}")
        return dict(zip(which, found, strict=True))

    def _add(self, features: Features, sign: float = 1.0) -> None:
        for total, feature in zip(self.sums, features, strict=True):
            for leaf in total:
                total[leaf] += feature[leaf] if sign > 0 else -feature[leaf]

    def dispersion(self) -> float:
        count = len(self.members)
        return (self.norms - _dot(self.sums, self.sums) / count) / count

    def differs(self) -> bool:
        """Whether members differ by more than rounding; if not, there is no Gaussian to fit."""
        eps = float(np.finfo(np.float32).eps)
        return self.dispersion() > eps**2 * self.norms / len(self.members)

    def rounds(self, max_rounds: int, tolerance: float) -> tuple[list[float], bool]:
        """Minus the dispersion after every round, and whether it has converged."""
        trace = [-self.dispersion()]
        count = len(self.members)
        if count < 2:
            return trace, True
        size = BATCH if self.workers.parallel else 1
        for number in range(max_rounds):
            changed = False
            for begin in range(0, count, size):
                batch = list(range(begin, min(begin + size, count)))
                changed |= self._step(batch, forward=number == 0)
                self.workers.report(f"round {number + 1} to the barycentre", batch[-1] + 1, count)
            trace.append(-self.dispersion())
            if not changed or trace[-1] - trace[-2] <= tolerance * abs(trace[-1]):
                return trace, True
        return trace, False

    def _step(self, batch: list[int], *, forward: bool) -> bool:
        """Align a few members to the barycentre of the others; keep what lowers the dispersion."""
        old = {i: self._moved(i, self.indices[i]) for i in batch}
        others = len(self.members) - 1

        def one(i: int) -> Match:
            target = tuple(
                {k: ((total[k] - own[k]) / others).astype(own[k].dtype) for k in total}
                for total, own in zip(self.sums, old[i], strict=True)
            )
            pair = FeaturePair(self.symmetry, target, self.features(self.members[i]))
            return match(pair, self.indices[i], forward=forward, max_sweeps=self.max_sweeps)

        changed = False
        for i, found in zip(batch, self.workers.map(one, batch), strict=True):
            if found.gain <= 0:
                continue
            # Members of a batch were matched without seeing each other's moves, so each move is
            # checked when it is made: ‖Σ + d‖² − ‖Σ‖² = 2⟨Σ, d⟩ + ‖d‖².
            new = self._moved(i, found.indices)
            rise = 0.0
            for total, after, before in zip(self.sums, new, old[i], strict=True):
                for k in total:
                    step = after[k].astype(np.float64) - before[k]
                    rise += 2 * float(np.vdot(total[k], step)) + float(np.vdot(step, step))
            if rise <= 0:
                continue
            self.indices[i] = found.indices
            self._add(old[i], -1.0)
            self._add(new)
            changed = True
        return changed

    def _moved(self, i: int, indices: Indices) -> Features:
        return moved(self.symmetry, self.features(self.members[i]), indices)


def _dot(a: Features, b: Features) -> float:
    """⟨a, b⟩ over all features and leaves, in float64."""
    return sum(
        float(np.vdot(x[k].astype(np.float64), y[k].astype(np.float64)))
        for x, y in zip(a, b, strict=True)
        for k in x
    )
