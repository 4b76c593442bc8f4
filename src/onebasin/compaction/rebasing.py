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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from onebasin.alignment.activations import Activations
from onebasin.alignment.joint import align_many
from onebasin.alignment.members import Members, solve_pair
from onebasin.alignment.objective import Moments, Objective, objective_named
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Report, Workers
from onebasin.compaction.frame import Frame
from onebasin.compaction.gaussian import Fit
from onebasin.compaction.moving import Mover
from onebasin.posterior.mean_field import MeanField
from onebasin.posterior.samples import Samples
from onebasin.symmetry import Symmetry
from onebasin.trees import Tree

WAYS = ("none", "anchor", "barycentre", "chain", "contributions", "likelihood")
STEPS = 2  # of EM after every round of moves
POLISH = 10  # at most, of EM once nothing moves any more; from principal directions it gains little
POLISHED = 1e-2  # of what EM gained so far: a step that gains less is the last


@dataclass(frozen=True)
class Rebased:
    """How a Gaussian and its members came to rest."""

    trace: tuple[float, ...]
    rounds: int
    converged: bool
    moves: tuple[int, ...]


def to_anchor(
    members: Members,
    symmetry: Symmetry,
    anchor: int,
    objective: Any,
    max_sweeps: int,
    report: Report | None,
) -> list[Indices]:
    """Every member to one of them, as published: no iteration, no mean."""
    if not -len(members) <= anchor < len(members):
        raise ValueError(f"there is no draw {anchor} to be the anchor, only {len(members)}")
    objective = objective_named(objective)
    anchor %= len(members)
    target = one_of(members, anchor)
    if isinstance(objective, Activations) and objective.record is None:
        objective = _recording_once(objective, point_of(members, anchor), symmetry)
    still = dict(symmetry.identity().indices)

    def one(index: int) -> Indices:
        if index == anchor:
            return still
        problem = objective.problem(one_of(members, index), target, symmetry)
        return solve_pair(problem, still, forward=True, max_sweeps=max_sweeps).indices

    # JAX takes all cores itself, and its settings do not reach other threads.
    parallel = len(members) if isinstance(objective, Objective) else 1
    with Workers(parallel, report) as workers:
        return workers.map(one, range(len(members)), f"draws to draw {anchor}")


def to_barycentre(
    members: Members, symmetry: Symmetry, max_rounds: int, max_sweeps: int, report: Report | None
) -> tuple[list[Indices], bool]:
    points = any(members[i].std is None for i in range(min(len(members), 2)))
    found = align_many(
        members,
        symmetry=symmetry,
        objective="l2" if points else "w2",
        max_rounds=max_rounds,
        max_sweeps=max_sweeps,
        report=report,
    )
    return [dict(p.indices) for p in found.permutations], found.converged


def by_chain(
    members: Members,
    chains: np.ndarray,
    symmetry: Symmetry,
    max_rounds: int,
    max_sweeps: int,
    report: Report | None,
) -> tuple[list[Indices], bool]:
    """One permutation for each chain, into the barycentre of the chains' moments."""
    names = np.unique(chains)
    moments = [_moments(members, np.flatnonzero(chains == name)) for name in names]
    found = align_many(
        Members(members.source, moments, None),
        symmetry=symmetry,
        objective="w2",
        max_rounds=max_rounds,
        max_sweeps=max_sweeps,
        report=report,
    )
    own = dict(zip(names.tolist(), found.permutations, strict=True))
    return [dict(own[chain].indices) for chain in chains.tolist()], found.converged


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


def fitted(frame: Frame, rank: int, floor: float) -> Fit:
    """The Gaussian of members as they lie, after a few steps of EM."""
    fit = Fit(frame, rank, floor)
    _polish(fit, STEPS)
    return fit


def to_gaussian(
    fit: Fit,
    *,
    max_rounds: int,
    tolerance: float,
    max_sweeps: int,
    report: Report | None,
) -> Rebased:
    """Move every member to where the Gaussian is highest, fit it again, and so on."""
    frame = fit.frame
    trace, moves, converged = [fit.mean_log_likelihood], [], max_rounds == 0
    for number in range(max_rounds):
        with Workers(len(frame.members), report) as workers:
            mover = Mover(fit, max_sweeps)
            what = f"round {number + 1} to the Gaussian"
            found = workers.map(mover.move, range(len(frame.members)), what)
        moves.append(sum(indices is not None for indices in found))
        if moves[-1]:
            frame.indices = [
                old if new is None else new for old, new in zip(frame.indices, found, strict=True)
            ]
            fit.recentre()
            _polish(fit, STEPS)
        trace.append(fit.mean_log_likelihood)
        if trace[-1] - trace[-2] <= tolerance * (trace[-1] - trace[0]):
            converged = True
            break
    _polish(fit, POLISH)
    trace.append(fit.mean_log_likelihood)
    return Rebased(tuple(trace), len(moves), converged, tuple(moves))


def _polish(fit: Fit, steps: int) -> None:
    """Steps of EM until they gain little; a diagonal Gaussian needs one."""
    first = before = fit.mean_log_likelihood
    for _ in range(steps if fit.gaussian.rank else 1):
        fit.improve()
        now = fit.mean_log_likelihood
        if now - before <= POLISHED * (now - first):
            break
        before = now


def tree_of(leaves: Mapping[str, Any], members: Members) -> Tree:
    """Arrays by leaf in the containers of the members' params."""
    structure = jax.tree.structure(like(members))
    return jax.tree.unflatten(structure, list(leaves.values()))


def like(members: Members) -> Tree:
    """A tree with the structure of one params tree."""
    first = members.source[0] if isinstance(members.source, tuple) else members.source
    return first.like if hasattr(first, "like") else first


def one_of(members: Members, index: int) -> Any:
    """Member `index` as a posterior of its own, scaled as the members are."""
    q: Moments = members[index]
    mean = tree_of(q.mean, members)
    if q.std is not None:
        return MeanField(mean, tree_of(q.std, members))
    state, sources = None, members.source
    for part in sources if isinstance(sources, tuple) else (sources,):
        if not isinstance(part, Samples):
            break
        if index < part.num_draws:
            state = jax.tree.map(lambda leaf, i=index: leaf[i : i + 1], part.state)
            break
        index -= part.num_draws
    return Samples(jax.tree.map(lambda leaf: leaf[None], mean), state=state)


def point_of(members: Members, index: int) -> tuple[Tree, Tree]:
    """The params that stand for member `index` (its mean, if it is a posterior), and its state."""
    q = one_of(members, index)
    if isinstance(q, Samples):
        return q.draw(0), jax.tree.map(lambda leaf: leaf[0], q.state)
    return q.mean, None


def _recording_once(
    objective: Activations, at: tuple[Tree, Tree], symmetry: Symmetry
) -> Activations:
    """The same objective with the network traced and compiled once for all members."""
    from onebasin.symmetry.recording import Recorder

    params, state = at
    recorder = Recorder(objective.apply, params, objective.x, symmetry, state)
    if recorder.unseen:
        raise ValueError(
            f"the units of group '{recorder.unseen[0]}' cannot be recorded: no layer outside a "
            "loop reads them; match by weights, objective='l2'"
        )

    def record(params: Tree, x: Any, symmetry: Symmetry, state: Tree) -> dict[str, Any]:
        del x, symmetry
        return recorder.units(params, state)

    return replace(objective, record=record)
