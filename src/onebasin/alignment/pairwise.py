"""Bring one posterior to another: `align`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args

import jax
import numpy as np

from onebasin.alignment.descent import Descent, Matcher, Orders, Trace
from onebasin.alignment.frank_wolfe import FrankWolfe
from onebasin.alignment.moments import Alignable, alike_moments
from onebasin.alignment.objective import (
    AlignmentObjective,
    FeaturePair,
    Objective,
    ObjectiveLike,
    objective_named,
)
from onebasin.alignment.scores import ScoreTable
from onebasin.choices import OrderName, StartName
from onebasin.symmetry import Permutation, Symmetry, Transpositions, transpositions

Start: TypeAlias = StartName | Permutation | AlignmentObjective
"""A name, a permutation, or an objective at whose optimum to begin."""
AlignableT = TypeVar("AlignableT")
SHAKEN = 0.3  # the share of every group's units that a shaken start shuffles


@dataclass(frozen=True)
class StartReport:
    """What came of one start."""

    name: str
    score: float
    sweeps: int
    converged: bool
    seconds: float


@dataclass(frozen=True)
class Alignment(Generic[AlignableT]):
    """The permutation that brings `mover` to `target`, and how it was found.

    What needs a pass over all parameters (the moved posterior, the distances) is worked out
    when it is first asked for.
    """

    permutation: Permutation
    score: float
    objective: str
    trace: tuple[float, ...]
    """The score at the start and after every move of the best start; it never falls."""
    sweeps: int
    solves: int
    converged: bool
    """Whether no group could gain any more, or the sweeps ran out before."""
    starts: tuple[StartReport, ...]
    seconds: float
    trace_seconds: tuple[float, ...] = field(repr=False)
    """When each score of the trace was reached, since the call (or a later start) began."""
    mover: AlignableT = field(repr=False)
    target: Alignable = field(repr=False)
    symmetry: Symmetry = field(repr=False)
    measure: Callable[[Alignable, Alignable, Symmetry], float] = field(repr=False)

    @cached_property
    def posterior(self) -> AlignableT:
        """The mover, moved: of the same kind, with the same function."""
        return self.symmetry.act(self.permutation, self.mover)

    @cached_property
    def distance_before(self) -> float:
        return self.measure(self.mover, self.target, self.symmetry)

    @cached_property
    def distance_after(self) -> float:
        return self.measure(self.posterior, self.target, self.symmetry)

    @cached_property
    def transpositions(self) -> Transpositions:
        """The least number of swaps the permutation is made of (NoT)."""
        return transpositions(self.permutation)


def align(
    posterior: AlignableT,
    *,
    to: Alignable,
    symmetry: Symmetry,
    objective: ObjectiveLike = "w2",
    starts: Sequence[Start] | Start = "auto",
    order: OrderName = "forward",
    search: FrankWolfe | None = None,
    max_sweeps: int = 100,
    key: jax.Array | None = None,
) -> Alignment[AlignableT]:
    """Find the permutation that brings a posterior (or params) closest to `to`.

    **Arguments:**

    - `objective`: a name (`w2`, `l2`, `kl`, `reverse-kl`, `kl-reduced`, `log-density`), an
      `Objective`, or `Activations(network, x)`; see docs/objectives.md.
    - `starts`: where to begin. "auto" makes a pass from the input and goes on from there, and
      also from where the posterior lies if that scores no worse. A sequence of "auto", "identity",
      "forward", "random", "shaken" (the best end so far with some units of every group shuffled;
      both need `key`), permutations and objectives (`Activations(network, x)` for a start from
      data) descends from each and keeps the best.
    - `order`: in which order a sweep visits the groups: forward, backward, alternate, random.
    - `search`: `FrankWolfe()` looks further where coordinate descent gets stuck.
    - `max_sweeps`: the result is not `converged` if a start needs more.

    **Returns:** an `Alignment`; its `posterior` is the posterior moved, of the same kind.
    """
    began = time.perf_counter()
    objective = objective_named(objective)
    known = alike_moments(posterior, to, symmetry)
    if max_sweeps < 1:
        raise ValueError(f"max_sweeps is {max_sweeps}; allow at least one sweep")
    if not (search is None or isinstance(search, FrankWolfe)):
        raise ValueError(f"search is {search!r}; give FrankWolfe() or None")
    chosen = _checked_starts(starts, symmetry, key)
    seed = _seed(key)
    Orders(order)  # a wrong name is an error before any work
    sides = known if isinstance(objective, Objective) else (posterior, to)
    problem = objective.features(*sides, symmetry)
    reports: list[StartReport] = []
    best: tuple[Descent, Matcher] | None = None
    since = began
    for number, start in enumerate(chosen):
        end_so_far = None if best is None else best[1].table.permutation()
        where = _begin(start, posterior, to, symmetry, key, number, end_so_far)
        orders = partial(Orders, order, (*seed, number))
        matcher, end = _descended(start, where, problem, orders, max_sweeps, since)
        if search is not None:
            end = search.improve(matcher, end, orders(), max_sweeps)
        if objective.relinearise:
            matcher, end = _follow_tangents(
                objective, matcher, posterior, to, symmetry, Orders(order, seed), max_sweeps
            )
        now = time.perf_counter()
        seconds, since = now - since, now
        reports.append(StartReport(_name_of(start), end.score, end.sweeps, end.converged, seconds))
        if best is None or end.score > best[0].score:
            best = end, matcher
    assert best is not None
    end, matcher = best
    return Alignment(
        permutation=matcher.table.permutation(),
        score=end.score,
        objective=objective.name,
        trace=tuple(matcher.trace.scores),
        sweeps=end.sweeps,
        solves=matcher.trace.solves,
        converged=end.converged,
        starts=tuple(reports),
        seconds=time.perf_counter() - began,
        trace_seconds=tuple(matcher.trace.seconds),
        mover=posterior,
        target=to,
        symmetry=symmetry,
        measure=objective.measure,
    )


def _checked_starts(
    starts: Sequence[Start] | Start, symmetry: Symmetry, key: jax.Array | None
) -> list[Start]:
    if isinstance(starts, Sequence) and not isinstance(starts, str):
        chosen: list[Start] = list(starts)
    else:
        chosen = [cast(Start, starts)]
    if not chosen:
        raise ValueError("starts is empty; give at least one, for example starts=('forward',)")
    for start in chosen:
        if isinstance(start, Permutation):
            symmetry.check_permutation(start)
            if any(start[name].ndim != 1 for name in start.names):
                raise ValueError("a start is one permutation, and this one is a stack of them")
        elif not (
            start in get_args(StartName)
            if isinstance(start, str)
            else isinstance(start, AlignmentObjective)
        ):
            raise ValueError(
                f"there is no start '{start}'; use {', '.join(get_args(StartName))}, "
                "a Permutation or Activations(network, x)"
            )
        elif start in ("random", "shaken") and key is None:
            raise ValueError(f"a {start} start needs a key; give key=jax.random.key(…)")
    if chosen[0] == "shaken":
        raise ValueError(
            "a shaken start needs an end to shake; give another before it, for example "
            "starts=('auto', 'shaken')"
        )
    return chosen


def _name_of(start: Start) -> str:
    if isinstance(start, str):
        return start
    return "given" if isinstance(start, Permutation) else start.name


def _begin(
    start: Start,
    q: Any,
    to: Any,
    symmetry: Symmetry,
    key: jax.Array | None,
    number: int,
    best: Permutation | None,
) -> Permutation:
    """Where a start lies, before any pass from the input; `best` is the best end so far."""
    if isinstance(start, Permutation):
        return start
    if not isinstance(start, str):
        return align(q, to=to, symmetry=symmetry, objective=start).permutation
    if start == "random":
        assert key is not None
        return symmetry.random(key=jax.random.fold_in(key, number))
    if start == "shaken":
        assert key is not None
        assert best is not None
        return _shaken(best, jax.random.fold_in(key, number))
    return symmetry.identity()


def _shaken(best: Permutation, key: jax.Array) -> Permutation:
    """Some units of every group, passed on around a random cycle.

    Most of a good match is kept, so that descent ends near it and often above it; a random start
    throws all of it away.
    """
    rng = np.random.default_rng(_seed(key))
    indices = {}
    for name in best.names:
        index = np.array(best[name])
        count = min(len(index), max(2, round(SHAKEN * len(index))))
        cycle = rng.choice(len(index), count, replace=False)
        index[cycle] = index[np.roll(cycle, 1)]
        indices[name] = index
    return Permutation(indices)


def _seed(key: jax.Array | None) -> tuple[int, ...]:
    """The words of a key, for NumPy's generators."""
    return (0,) if key is None else tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())


def _descended(
    start: Start,
    where: Permutation,
    problem: FeaturePair,
    orders: Callable[[], Orders],
    max_sweeps: int,
    began: float,
) -> tuple[Matcher, Descent]:
    """The end of descent from `where`, or from a pass from the input, as the start asks."""
    matcher = Matcher(ScoreTable(problem, where), Trace(began=began))
    if start not in ("auto", "forward"):
        return matcher, matcher.descend(orders(), max_sweeps)
    score = matcher.forward()
    end = matcher.descend(orders(), max_sweeps, score)
    if start == "forward":
        return matcher, end
    lies = matcher.table.total(where.indices)
    if lies < score:
        return matcher, end
    # Where the mover lies is no worse than what the pass found: the better end of the two.
    other = Matcher(ScoreTable(problem, where), Trace(began=began, solves=matcher.trace.solves))
    there = other.descend(orders(), max_sweeps, lies)
    return (other, there) if there.score >= end.score else (matcher, end)


def _follow_tangents(
    objective: Any,
    matcher: Matcher,
    q: Any,
    to: Any,
    symmetry: Symmetry,
    orders: Orders,
    max_sweeps: int,
) -> tuple[Matcher, Descent]:
    """Take the slope anew where the last descent ended, while the true objective rises."""
    best, sweeps, converged = -np.inf, 0, False
    kept = matcher
    trace = Trace(began=matcher.trace.began, solves=matcher.trace.solves)
    for _ in range(max_sweeps):
        permutation = matcher.table.permutation()
        value = -objective.measure(symmetry.act(permutation, q), to, symmetry)
        if not value > best + 1e-9 * abs(value):
            converged = True
            break
        best, kept = value, matcher
        trace.add(value)
        tangent = objective.features(q, to, symmetry, at=permutation)
        matcher = Matcher(ScoreTable(tangent, permutation), Trace(began=trace.began))
        end = matcher.descend(orders, max_sweeps)
        trace.solves += matcher.trace.solves
        sweeps += end.sweeps
    kept.trace = trace
    return kept, Descent(best, sweeps, converged)
