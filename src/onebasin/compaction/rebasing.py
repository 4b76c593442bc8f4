"""Ways to bring members into one frame before a Gaussian is fitted to them.

| `rebase`      | every member goes to                                    | stops            |
|---------------|---------------------------------------------------------|------------------|
| `none`        | where it lies (q_d of Xiao et al.)                      | at once          |
| `anchor`      | one chosen draw, by weights or activations (their q_r)  | after one match  |
| `barycentre`  | the mean of the others, in turn                         | at a fixed point |
| `chain`       | the barycentre of chains, all draws of one together     | at a fixed point |
| `contributions` | the mean of what the others' units add to the outputs | at a fixed point |
| `likelihood`  | where the fitted Gaussian is highest, fit and move in turn | at a fixed point |

A chain moves continuously, so its draws lie in one basin from the start, and its mean is known far
better than one draw, most of whose weights may be the prior's noise: matching single draws
matches much of that noise. Hence `chain`, one permutation for all draws of a chain.

`likelihood` begins at `chain` or at `barycentre`, whichever the fitted Gaussian likes better.
Begun where unaligned members lie it would stay there: the wide Gaussian of unaligned members
suits each of them as it is.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onebasin.alignment.activations import Activations
from onebasin.alignment.joint import align_many
from onebasin.alignment.members import Members, solve_pair
from onebasin.alignment.moments import Moments
from onebasin.alignment.objective import Objective, ObjectiveLike, objective_named
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.choices import RebaseName, check_choice
from onebasin.networks import apply_of
from onebasin.progress import Reporter
from onebasin.symmetry import Symmetry
from onebasin.symmetry.recording import Recorder
from onebasin.trees import PyTree


@dataclass(frozen=True)
class Rebase:
    """How members are brought into one frame before a Gaussian is fitted to them.

    Args:
      to: where every member goes; the table in `compaction/rebasing.py` says what each means.
      anchor: with `to="anchor"`, the number of the member that all go to.
      objective: with `to="anchor"`, by which objective: "l2", or `Activations(network, x)`.
      max_rounds: rounds before giving up.
      tolerance: with `to="likelihood"`, stop once a round gains less than this share of what all
        rounds gained.
      max_sweeps: sweeps over the groups in one match.

    >>> Rebase("anchor", anchor=3).anchor
    3
    """

    to: RebaseName = "likelihood"
    anchor: int = 0
    objective: ObjectiveLike = "l2"
    max_rounds: int = 20
    tolerance: float = 1e-3
    max_sweeps: int = 100

    def __post_init__(self) -> None:
        check_choice(self.to, RebaseName, "way to rebase")


def to_anchor(
    members: Members, symmetry: Symmetry, rebase: Rebase, report: Reporter
) -> list[Indices]:
    """Every member to one of them, as published: no iteration, no mean."""
    if not -len(members) <= rebase.anchor < len(members):
        raise ValueError(f"there is no draw {rebase.anchor} to be the anchor, only {len(members)}")
    objective = objective_named(rebase.objective)
    anchor = rebase.anchor % len(members)
    target = members.posterior(anchor)
    if isinstance(objective, Activations) and objective.record is None:
        objective = _recording_once(objective, members.point(anchor), symmetry)
    still = dict(symmetry.identity().indices)

    def one(index: int) -> Indices:
        if index == anchor:
            return still
        pair = objective.features(members.posterior(index), target, symmetry)
        return solve_pair(pair, still, forward=True, max_sweeps=rebase.max_sweeps).indices

    # JAX takes all cores itself, and its settings do not reach other threads.
    parallel = len(members) if isinstance(objective, Objective) else 1
    with Workers(parallel, report) as workers:
        return workers.map(one, range(len(members)), f"draws to draw {anchor}")


def to_barycentre(
    members: Members, symmetry: Symmetry, rebase: Rebase, report: Reporter
) -> tuple[list[Indices], bool]:
    """Every member to the mean of the others."""
    points = any(members[i].std is None for i in range(min(len(members), 2)))
    return align_jointly(members, symmetry, "l2" if points else "w2", rebase, report)


def align_jointly(
    members: Members,
    symmetry: Symmetry,
    objective: ObjectiveLike,
    rebase: Rebase,
    report: Reporter,
) -> tuple[list[Indices], bool]:
    """The indices of every member in the common frame, and whether they came to rest."""
    found = align_many(
        members,
        symmetry=symmetry,
        objective=objective,
        max_rounds=rebase.max_rounds,
        max_sweeps=rebase.max_sweeps,
        progress=report,
    )
    return [dict(p.indices) for p in found.permutations], found.converged


def by_chain(
    members: Members,
    chains: np.ndarray,
    symmetry: Symmetry,
    rebase: Rebase,
    report: Reporter,
) -> tuple[list[Indices], bool]:
    """One permutation for each chain, into the barycentre of the chains' moments."""
    names = np.unique(chains)
    moments = [_moments(members, np.flatnonzero(chains == name)) for name in names]
    by_name = Members(members.source, moments, None)
    indices, converged = align_jointly(by_name, symmetry, "w2", rebase, report)
    own = dict(zip(names.tolist(), indices, strict=True))
    return [dict(own[chain]) for chain in chains.tolist()], converged


def _moments(members: Members, which: np.ndarray) -> Moments:
    """Mean and deviation of some draws, one draw at a time."""
    first = members[int(which[0])].mean
    sums = {leaf: np.zeros((2, *array.shape)) for leaf, array in first.items()}
    for i in which.tolist():
        for leaf, array in members[i].mean.items():
            # Less the first draw, so that squares keep their digits.
            away = array.astype(np.float64) - first[leaf]
            sums[leaf][0] += away
            sums[leaf][1] += away**2
    mean, std = {}, {}
    for leaf, (once, square) in sums.items():
        once, square = once / len(which), square / len(which)
        mean[leaf] = (first[leaf] + once).astype(first[leaf].dtype)
        std[leaf] = np.sqrt(np.maximum(square - once**2, 0)).astype(first[leaf].dtype)
    return Moments(mean, std)


def _recording_once(
    objective: Activations, at: tuple[PyTree, PyTree], symmetry: Symmetry
) -> Activations:
    """The same objective with the network traced and compiled once for all members."""
    params, state = at
    recorder = Recorder(apply_of(objective.network), params, objective.x, symmetry, state)
    if recorder.unseen:
        raise ValueError(
            f"the units of group '{recorder.unseen[0]}' cannot be recorded: no layer outside a "
            "loop reads them; match by weights, objective='l2'"
        )

    def record(params: PyTree, x: Any, symmetry: Symmetry, state: PyTree) -> dict[str, Any]:
        del x, symmetry
        return recorder.units(params, state)

    return replace(objective, record=record)
