"""Bring any number of posteriors, or draws, into one basin: `align_many`.

There is no reference: every member is aligned to the barycentre of the others, in turn, until
none moves. Each has one permutation into the common frame, so going from i to j to k is the
same as going from i to k. For features f that are the same on both sides (w2, l2), the spread

    V = (1/n) Σᵢ ‖Pᵢfᵢ − f̄‖² = (1/n) (Σᵢ ‖fᵢ‖² − ‖Σᵢ Pᵢfᵢ‖² / n)

falls with every step. Started at the identity it hardly moves (the mean of unaligned members
is a compromise that suits each of them as it lies), so all are first aligned to one of them,
the one to which the others come closest.

`log-density` then alternates between fitting one factorised Gaussian to all and moving each
to where the Gaussian is highest: both raise the mean log-density.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_alternation import align_to_gaussian, fit_gaussian
from onebasin.alignment.members import (
    Match,
    Members,
    Sums,
    add,
    match,
    moved,
    square_norm,
    zeros,
)
from onebasin.alignment.moments import Alignable, Moments
from onebasin.alignment.objective import (
    L2,
    W2,
    Features,
    Objective,
    ObjectiveLike,
    objective_named,
)
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.posterior import MeanField, Posterior, Samples
from onebasin.progress import Progress, reporting
from onebasin.symmetry import Permutation, Symmetry, stack
from onebasin.trees import PyTree

BATCH = 4  # members matched at once; fixed, so that results do not depend on the machine
CANDIDATES, TRIALS = 3, 6  # anchors tried, and members each is tried on
FLOOR = 1e-3  # least variance of the common Gaussian, as a share of its leaf's mean variance
START_SWEEPS = 4  # sweeps against the anchor; the barycentre is the better judge


@dataclass(frozen=True)
class JointAlignment:
    """One permutation for each member into a common frame, and how they were found."""

    permutations: tuple[Permutation, ...]
    objective: str
    trace: tuple[float, ...]
    """w2, l2: minus the spread V after the start and every round; log-density: its mean."""
    rounds: int
    converged: bool
    anchor: int
    """The member all were aligned to at the start."""
    seconds: float
    members: Any = field(repr=False)
    symmetry: Symmetry = field(repr=False)

    @cached_property
    def stacked(self) -> Permutation:
        """All permutations as one, with one row for each member."""
        return stack(list(self.permutations))

    @cached_property
    def posteriors(self) -> Any:
        """The members, moved: a tuple of posteriors, or `Samples` if that was given."""
        if isinstance(self.members, Samples):
            return self.symmetry.act(self.stacked, self.members)
        pairs = zip(self.permutations, self.members, strict=True)
        return tuple(self.symmetry.act(p, q) for p, q in pairs)

    @cached_property
    def barycenter(self) -> MeanField:
        """The W₂ barycentre of the moved posteriors; of points, their mean and deviation."""
        if isinstance(self.members, Samples):
            return MeanField(*self.posteriors.moments())
        known = [_tree_moments(q) for q in self.posteriors]
        means = [mean for mean, _ in known]
        if all(std is None for _, std in known):
            draws = jax.tree.map(lambda *leaves: jnp.stack(leaves), *means)
            return MeanField(*Samples(draws).moments())
        stds = [jax.tree.map(jnp.zeros_like, m) if std is None else std for m, std in known]

        def average(*leaves: jax.Array) -> jax.Array:
            return sum(leaves[1:], start=leaves[0]) / len(leaves)

        return MeanField(jax.tree.map(average, *means), jax.tree.map(average, *stds))


def _tree_moments(q: Alignable) -> tuple[PyTree, PyTree | None]:
    """Mean and standard deviation as trees; a single point has no deviation."""
    if not isinstance(q, Posterior):
        return q, None
    if isinstance(q, Samples) and q.num_draws == 1:
        return q.draw(0), None
    return q.moments()


def align_many(
    posteriors: Sequence[Alignable] | Samples | Members,
    *,
    symmetry: Symmetry,
    objective: ObjectiveLike = "w2",
    max_rounds: int = 20,
    tolerance: float = 1e-4,
    max_sweeps: int = 100,
    progress: Progress = "auto",
) -> JointAlignment:
    """Find one permutation for each posterior (or draw) that brings all into one basin.

    **Arguments:**

    - `posteriors`: a list of posteriors or params, or `Samples`, whose draws are the members.
    - `objective`: `w2` or `l2` (to the barycentre of the others), or `log-density` (to one
      Gaussian fitted to all).
    - `max_rounds`, `tolerance`: stop after so many rounds, or once a round changes the
      spread (or the mean log-density) by less than this share of it.
    - `progress`: how to show progress, or a function of (what, done, total).

    **Returns:** a `JointAlignment`.
    """
    began = time.perf_counter()
    objective = objective_named(objective)
    if not (objective.has_barycentre or objective.name == "log-density"):
        raise ValueError(
            f"objective '{objective.name}' has no barycentre; use w2, l2 or log-density"
        )
    if max_rounds < 1:
        raise ValueError(f"max_rounds is {max_rounds}; allow at least one round")
    members = posteriors if isinstance(posteriors, Members) else Members.of(posteriors)
    symmetry.check_shapes(dict(members[0].mean))
    first = objective if isinstance(objective, Objective) and objective.has_barycentre else W2
    if first is W2 and members.has_points:
        first = L2  # points have no deviations to score
    with reporting(progress) as report:
        with Workers(len(members), report) as workers:
            job = _Joint(members, symmetry, first.mover, workers, max_sweeps)
            anchor = job.start()
            trace, converged = job.rounds(max_rounds, tolerance)
        if not objective.has_barycentre and job.differs():
            # In double precision: the variances of tight draws are small differences.
            aligned = AlignedMembers(members, symmetry, job.indices, np.dtype(np.float64))
            gaussian = fit_gaussian(aligned, 0, FLOOR)
            ended = align_to_gaussian(
                gaussian,
                max_rounds=max_rounds,
                tolerance=tolerance,
                max_sweeps=max_sweeps,
                report=report,
            )
            job.indices = aligned.indices
            start, *later = ended.trace
            trace = [start, *(b for a, b in pairwise((start, *later)) if b > a)]
            converged = ended.converged
    return JointAlignment(
        permutations=tuple(Permutation(indices) for indices in job.indices),
        objective=objective.name,
        trace=tuple(trace),
        rounds=len(trace) - 1,
        converged=converged,
        anchor=anchor,
        seconds=time.perf_counter() - began,
        members=members.source,
        symmetry=symmetry,
    )


@dataclass
class _Joint:
    """The permutations so far, and the sum of all moved features."""

    members: Members
    symmetry: Symmetry
    features: Callable[[Moments], Features]
    workers: Workers
    max_sweeps: int

    def __post_init__(self) -> None:
        still = dict(self.symmetry.identity().indices)
        self.indices: list[Indices] = [dict(still) for _ in range(len(self.members))]
        self.norms = 0.0
        self.sums: Sums = ()

    def start(self) -> int:
        """Align all to the candidate to which a few of them come closest; its number."""
        count = len(self.members)
        candidates = np.unique(np.linspace(0, count - 1, min(CANDIDATES, count)).astype(int))
        if count <= 2:
            candidates = candidates[:1]
        trials = np.unique(np.linspace(0, count - 1, min(TRIALS, count)).astype(int))
        best, anchor, done = np.inf, 0, {}
        for candidate in candidates.tolist():
            found = self._match_to(candidate, [i for i in trials.tolist() if i != candidate])
            target = self.features(self.members[candidate])
            norm = square_norm(target)
            apart = [norm + _square_distance(self, i, m, target) for i, m in found.items()]
            mean = float(np.mean(apart)) if apart else 0.0
            if mean < best:
                best, anchor, done = mean, candidate, found
        rest = [i for i in range(count) if i != anchor and i not in done]
        done.update(self._match_to(anchor, rest))
        for i, found in done.items():
            self.indices[i] = found.indices
        self._sum()
        return anchor

    def _match_to(self, anchor: int, which: list[int]) -> dict[int, Match]:
        target = self.features(self.members[anchor])
        still = dict(self.symmetry.identity().indices)

        def one(i: int) -> Match:
            return match(
                self.symmetry,
                target,
                self.features(self.members[i]),
                still,
                forward=True,
                max_sweeps=min(START_SWEEPS, self.max_sweeps),
            )

        found = self.workers.map(one, which, f"draws to number {anchor}")
        return dict(zip(which, found, strict=True))

    def _sum(self) -> None:
        self.sums = zeros(self.features(self.members[0]))
        self.norms = 0.0
        for i in range(len(self.members)):
            features = self.features(self.members[i])
            self.norms += square_norm(features)
            add(self.sums, moved(self.symmetry, features, self.indices[i]))

    def dispersion(self) -> float:
        count = len(self.members)
        return (self.norms - square_norm(self.sums) / count) / count

    def differs(self) -> bool:
        """Whether members differ by more than rounding: else there is no Gaussian to fit."""
        eps = float(np.finfo(np.float32).eps)
        return self.dispersion() > eps**2 * self.norms / len(self.members)

    def rounds(self, max_rounds: int, tolerance: float) -> tuple[list[float], bool]:
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
        """Align a few members to the barycentre of the others; keep what lowers the spread."""
        lie = {i: self._moved(i, self.indices[i]) for i in batch}
        others = len(self.members) - 1

        def one(i: int) -> Match:
            features = self.features(self.members[i])
            target = tuple(
                {k: ((total[k] - own[k]) / others).astype(own[k].dtype) for k in total}
                for total, own in zip(self.sums, lie[i], strict=True)
            )
            return match(
                self.symmetry,
                target,
                features,
                self.indices[i],
                forward=forward,
                max_sweeps=self.max_sweeps,
            )

        changed = False
        for i, found in zip(batch, self.workers.map(one, batch), strict=True):
            if found.gain <= 0:
                continue
            # Members of a batch did not see each other move, so each is checked as it goes in:
            # ‖Σ + d‖² − ‖Σ‖² = 2⟨Σ, d⟩ + ‖d‖².
            goes = self._moved(i, found.indices)
            rise = 0.0
            for total, new, old in zip(self.sums, goes, lie[i], strict=True):
                for k in total:
                    step = new[k].astype(np.float64) - old[k]
                    rise += 2 * float(np.vdot(total[k], step)) + float(np.vdot(step, step))
            if rise <= 0:
                continue
            self.indices[i] = found.indices
            add(self.sums, lie[i], -1.0)
            add(self.sums, goes)
            changed = True
        return changed

    def _moved(self, i: int, indices: Indices) -> Features:
        return moved(self.symmetry, self.features(self.members[i]), indices)


def _square_distance(job: _Joint, i: int, found: Match, target: Features) -> float:
    """‖Pf − t‖² − ‖t‖²."""
    goes = job._moved(i, found.indices)
    dot = sum(
        float(np.vdot(t[k].astype(np.float64), f[k].astype(np.float64)))
        for t, f in zip(target, goes, strict=True)
        for k in t
    )
    return square_norm(goes) - 2 * dot
