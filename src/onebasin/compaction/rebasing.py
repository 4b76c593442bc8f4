"""Ways to bring members into one basin before a Gaussian is fitted to them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from onebasin.alignment.activations import Activations
from onebasin.alignment.joint import align_many
from onebasin.alignment.members import Members, match
from onebasin.alignment.moments import Moments
from onebasin.alignment.objective import Objective, ObjectiveLike, objective_named
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.choices import RebaseName, check_choice
from onebasin.compaction.contributions import contributions
from onebasin.networks import Apply, apply_of
from onebasin.progress import Reporter
from onebasin.symmetry import Symmetry
from onebasin.symmetry.recording import Recorder
from onebasin.trees import PyTree

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Rebase:
    """How `compact` brings members into one basin before it fits a Gaussian to them.

    | `to`            | every member is moved to                                             |
    |-----------------|----------------------------------------------------------------------|
    | `none`          | nothing: it stays as given (q_d of Xiao et al.)                      |
    | `anchor`        | one chosen member, by weights or activations (q_r of Xiao et al.)    |
    | `barycentre`    | the mean of the others, in turn                                      |
    | `chain`         | the barycentre of the chains; all draws of a chain move together     |
    | `contributions` | the mean of what the units of the others contribute to the outputs   |
    | `likelihood`    | the maximum of the fitted Gaussian; fits and moves alternate         |

    A chain moves continuously, so its draws are in one basin, and its mean is known far better than
    one draw, which may be mostly noise from the prior. `likelihood` starts from `chain` or from
    `barycentre`, whichever gives the fitted Gaussian the higher likelihood.

    >>> import onebasin as ob
    >>> ob.Rebase("anchor", anchor=3).anchor
    3

    Args:
      to: where every member is moved, see the table.
      anchor: with `to="anchor"`, the index of the member to which all others are moved.
      objective: with `to="anchor"`, the objective: "l2", or `Activations(network, x)`.
      max_rounds: rounds over all members before giving up.
      tolerance: with `to="likelihood"`, stop once a round gains less than this share of the gain of
        all rounds.
      max_sweeps: sweeps over the groups of units in one match.
    """

    to: RebaseName = "likelihood"
    anchor: int = 0
    objective: ObjectiveLike = "l2"
    max_rounds: int = 20
    tolerance: float = 1e-3
    max_sweeps: int = 100

    def __post_init__(self) -> None:
        check_choice(self.to, RebaseName, "way to rebase")


@dataclass(frozen=True)
class Rebasing:
    """The ways to rebase: each gives the indices of every member, and whether they converged."""

    members: Members
    symmetry: Symmetry
    options: Rebase
    apply: Apply | None
    x: PyTree | None
    report: Reporter
    client: "Client | None" = None

    def rebased(self, way: RebaseName) -> tuple[list[Indices], bool]:
        if way == "anchor":
            return self._to_anchor(), True
        if way == "chain":
            return self._by_chain()
        if way == "contributions":
            if self.apply is None or self.x is None:
                raise ValueError("rebase='contributions' needs network and x; give both")
            units = contributions(self.members, self.symmetry, self.apply, self.x, self.report)
            return self._jointly(*units)
        if way == "barycentre":
            return self._jointly(self.members, self.symmetry)
        return [dict(self.symmetry.identity().indices) for _ in range(len(self.members))], True

    def starts(self) -> list[RebaseName]:
        """The ways to try: of `likelihood`, its starts."""
        if self.options.to != "likelihood":
            return [self.options.to]
        chains = self._chains()
        several = len(chains) > len(np.unique(chains)) > 1
        return ["barycentre", "chain"] if several else ["barycentre"]

    def _to_anchor(self) -> list[Indices]:
        """Every member matched to one of them, as published: no iteration, no mean."""
        members, symmetry, options = self.members, self.symmetry, self.options
        if not -len(members) <= options.anchor < len(members):
            raise ValueError(
                f"there is no draw {options.anchor} to be the anchor; give an index below "
                f"{len(members)}"
            )
        objective = objective_named(options.objective)
        anchor = options.anchor % len(members)
        target = members.posterior(anchor)
        if isinstance(objective, Activations) and objective.record is None:
            objective = _recording_once(objective, members.point(anchor), symmetry)
        identity = dict(symmetry.identity().indices)

        def one(index: int) -> Indices:
            if index == anchor:
                return identity
            pair = objective.features(members.posterior(index), target, symmetry)
            return match(pair, identity, forward=True, max_sweeps=options.max_sweeps).indices

        # JAX uses all cores by itself, and its settings do not reach other threads.
        parallel = len(members) if isinstance(objective, Objective) else 1
        with Workers(parallel, self.report) as workers:
            return workers.map(one, range(len(members)), f"draws to draw {anchor}")

    def _jointly(self, members: Members, symmetry: Symmetry) -> tuple[list[Indices], bool]:
        found = align_many(
            members,
            symmetry=symmetry,
            max_rounds=self.options.max_rounds,
            max_sweeps=self.options.max_sweeps,
            client=self.client,
            progress=self.report,
        )
        return [dict(p.indices) for p in found.permutations], found.converged

    def _by_chain(self) -> tuple[list[Indices], bool]:
        """One permutation for each chain, to the barycentre of the chains' moments."""
        chains = self._chains()
        names = np.unique(chains)
        moments = [_moments(self.members, np.flatnonzero(chains == name)) for name in names]
        by_name = Members(self.members.sources, moments, None)
        indices, converged = self._jointly(by_name, self.symmetry)
        own = dict(zip(names.tolist(), indices, strict=True))
        return [dict(own[chain]) for chain in chains.tolist()], converged

    def _chains(self) -> np.ndarray:
        """A number for the chain of every draw; different `Samples` have different chains."""
        if self.members.draws is None:
            return np.arange(len(self.members))
        numbers, start = [], 0
        for part in self.members.sources:
            _, own = np.unique(np.asarray(part.chain), return_inverse=True)
            numbers.append(own + start)
            start += own.max() + 1
        return np.concatenate(numbers)


def _moments(members: Members, which: np.ndarray) -> Moments:
    """Mean and standard deviation of some draws, in one pass."""
    first = members[int(which[0])].mean
    sums = {leaf: np.zeros((2, *array.shape)) for leaf, array in first.items()}
    for i in which.tolist():
        for leaf, array in members[i].mean.items():
            # Relative to the first draw, so that the squares keep their digits.
            difference = array.astype(np.float64) - first[leaf]
            sums[leaf][0] += difference
            sums[leaf][1] += difference**2
    mean, std = {}, {}
    for leaf, (once, square) in sums.items():
        once, square = once / len(which), square / len(which)
        mean[leaf] = (first[leaf] + once).astype(first[leaf].dtype)
        std[leaf] = np.sqrt(np.maximum(square - once**2, 0)).astype(first[leaf].dtype)
    return Moments(mean, std)


def _recording_once(
    objective: Activations, at: tuple[PyTree, PyTree | None], symmetry: Symmetry
) -> Activations:
    """The same objective with the network traced and compiled once for all members."""
    params, state = at
    recorder = Recorder(apply_of(objective.network), params, objective.x, symmetry, state)
    if recorder.unseen:
        raise ValueError(
            f"the units of group '{recorder.unseen[0]}' cannot be recorded, since no layer outside "
            "a loop reads them; match by weights with objective='l2'"
        )
    return replace(objective, record=lambda at, _x, _symmetry, state: recorder.units(at, state))
