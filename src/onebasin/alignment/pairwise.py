"""Bring one posterior to another: `align`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, get_args

import jax
import numpy as np

from onebasin.alignment.descent import Descent, Matcher, Orders, Trace
from onebasin.alignment.frank_wolfe import FrankWolfe
from onebasin.alignment.learned import (
    check_learnable,
    learn_permutation,
    learn_transform,
    units_of,
)
from onebasin.alignment.learned_starts import permutation_starts, transform_starts
from onebasin.alignment.learning import Learned
from onebasin.alignment.magnitudes import check_features, in_range
from onebasin.alignment.mixed import align_mixed, check_mixed
from onebasin.alignment.moments import Alignable, checked_readings
from onebasin.alignment.nests import nests_deeply
from onebasin.alignment.objective import (
    OBJECTIVES,
    AlignmentObjective,
    FeaturePair,
    Objective,
    ObjectiveLike,
    TangentObjective,
    objective_named,
)
from onebasin.alignment.path_loss import PathLoss, side_of
from onebasin.alignment.scores import ScoreTable
from onebasin.choices import OrderName, StartName, check_choice
from onebasin.pickling import PickledByFields
from onebasin.posterior import Posterior, Samples
from onebasin.symmetry import Permutation, Symmetry, Transform, Transpositions, transpositions
from onebasin.symmetry.canonical import unfolded
from onebasin.threads import one_thread_if_small

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike

Start: TypeAlias = StartName | Permutation | AlignmentObjective
"""A name, a permutation, or an objective whose optimum is the start."""
AlignableT = TypeVar("AlignableT")
RESTARTS = 3  # of the default search, where groups nest deeply
SHAKEN = 0.3  # the share of the units of every group that a shaken start moves


@dataclass(frozen=True)
class StartReport:
    """Where the descent from one start ended."""

    name: str
    score: float
    sweeps: int
    converged: bool
    seconds: float


@dataclass(frozen=True)
class Alignment(PickledByFields, Generic[AlignableT]):
    """The permutation that brings `mover` to `target`: the result of `align`.

    The moved posterior and the distances need a pass over all parameters; they are computed when
    first asked for.

    >>> import onebasin as ob
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(2)}, {"units": [("w", 0)]})
    >>> q0, q1 = {"w": np.array([1.0, 5.0])}, {"w": np.array([6.0, 2.0])}
    >>> found = ob.align(q1, to=q0, symmetry=symmetry, objective="l2")
    >>> found
    Alignment(l2, score 32, transpositions 1, converged)
    >>> found.distance_before, found.distance_after
    (34.0, 2.0)
    """

    permutation: Permutation
    score: float
    objective: str
    trace: tuple[float, ...]
    """The score at the best start and after every move from there; it never decreases."""
    sweeps: int
    solves: int
    converged: bool
    """Whether no group can gain any more; False if the sweeps ran out first."""
    starts: tuple[StartReport, ...]
    seconds: float
    trace_seconds: tuple[float, ...]
    """When each score of the trace was reached, since the call (or a later start) began."""
    mover: AlignableT
    target: Alignable
    symmetry: Symmetry
    measure: Callable[[Alignable, Alignable, Symmetry], float]
    known_distance: Callable[[Permutation], float] | None = None
    """The distance by the permutation, where the search knows it already."""
    mixed: Transform | None = None
    """What moves the mover, if the symmetry has signs, scales or matrices. The mover and the target
    have folded gains then (`Symmetry.canonical`)."""
    restore: Callable[[AlignableT], AlignableT] | None = None
    """What gives a moved posterior the gains of the target again."""

    def __repr__(self) -> str:
        swaps = f"transpositions {int(self.transpositions)}"
        end = "converged" if self.converged else "not converged"
        return f"Alignment({self.objective}, score {self.score:.6g}, {swaps}, {end})"

    @cached_property
    def transform(self) -> Transform:
        """What moves the mover, with its signs, scales and matrices.

        Its permutation moves whole blocks of groups with matrices; `permutation` is the same.
        """
        return self.mixed or self.symmetry.as_transform(self.permutation)

    @cached_property
    def posterior(self) -> AlignableT:
        """The moved mover: of the same kind, with the same function.

        If a matrix moved a factorised posterior, its means have the same function and its σ are the
        marginal ones (see `exact`). Gains that were folded for a rotation are those of the target.
        """
        return self._moved if self.restore is None else self.restore(self._moved)

    @cached_property
    def _moved(self) -> AlignableT:
        return self.symmetry.act(self.mixed or self.permutation, self.mover)

    @cached_property
    def exact(self) -> bool:
        """Whether the moved posterior is the mover's distribution, moved; else only its means are.

        A matrix makes the independent weights of a factorised posterior dependent; their
        covariances are dropped.
        """
        points = isinstance(self.mover, Samples) or not isinstance(self.mover, Posterior)
        return points or not self.transform.matrices

    @cached_property
    def distance_before(self) -> float:
        """The distance of the mover from the target, as the objective measures it."""
        if self.known_distance is not None:
            return self.known_distance(self.symmetry.identity())
        return self.measure(self.mover, self.target, self.symmetry)

    @cached_property
    def distance_after(self) -> float:
        """The distance of the moved mover from the target."""
        if self.known_distance is not None:
            return self.known_distance(self.permutation)
        return self.measure(self._moved, self.target, self.symmetry)

    def plot(self, *, ax: "AxesLike | None" = None) -> "Figure":
        """The score after every move of the search, and the share of units moved in every group.

        Args:
          ax: axes to draw in, instead of a new figure: of the score, and of the groups.
        """
        from onebasin.figures.searches import alignment_figure

        return alignment_figure(self, ax=ax)

    @cached_property
    def transpositions(self) -> Transpositions:
        """The least number of transpositions that make up the permutation (NoT)."""
        return transpositions(self.permutation)


@one_thread_if_small
def align(
    posterior: AlignableT,
    *,
    to: Alignable,
    symmetry: Symmetry,
    objective: ObjectiveLike | PathLoss = "w2",
    starts: Sequence[Start | Transform] | Start | Transform = "auto",
    order: OrderName = "forward",
    search: FrankWolfe | None = None,
    max_sweeps: int = 100,
    key: jax.Array | None = None,
) -> Alignment[AlignableT]:
    """Find the permutation P that brings a posterior (or params) closest to `to`.

    The score Σₖ ⟨f⁰ₖ, P f¹ₖ⟩ of the objective's features is maximised by coordinate descent: with
    all groups of units but one held fixed, the best permutation of that one is a linear assignment.

    Groups that nest, such as heads and the dimensions inside them, are moved together: for H heads
    of d dimensions this costs the score matrix of H·d units and up to 72 starts of small
    assignments each time nothing else gains. Where they nest more deeply (channels inside
    groups inside concatenated groups), `starts="auto"` without a search adds Frank and Wolfe's
    method and three random starts, at several times the cost.

    >>> import onebasin as ob
    >>> params = {"w1": np.array([[1.0, 2.0, 3.0]]), "w2": np.array([[4.0], [5.0], [6.0]])}
    >>> symmetry = ob.Symmetry.by_hand(params, {"hidden": [("w1", 1), ("w2", 0)]})
    >>> shuffled = symmetry.act(ob.Permutation({"hidden": np.array([2, 0, 1])}), params)
    >>> ob.align(shuffled, to=params, symmetry=symmetry).posterior["w1"]
    array([[1., 2., 3.]])

    Args:
      posterior: the mover: a posterior, or a params tree.
      to: the target: a posterior, or a params tree.
      symmetry: the symmetry of the network. With signs, scales and matrices (found with
        `kinds="all"`) the objective is "w2" or "l2", and the square distance is minimised over
        them as well: signed assignments, scales in closed form, Procrustes, invertible pairs.
      objective: a name ("w2", "l2", "kl", "reverse-kl", "kl-reduced", "log-density"), an
        `Objective`, `Activations(network, x)`, or `PathLoss(problem)`, which learns the
        permutation on the loss of the path; it needs `key`.
      starts: where to begin; descent runs from each start and the best end is kept. "auto" begins
        with a forward pass from the input, and also with the identity if that scores no worse.
        Others are "identity", "forward", "random", "shaken" (the best end so far with some units
        of every group moved; like "random" it needs `key`), a permutation, or an objective whose
        optimum is the start. `PathLoss` learns from the best of its starts; "auto" then means
        the identity, w2 and correlations of units, at all sites and after the nonlinearity.
      order: the order in which a sweep visits the groups.
      search: `FrankWolfe()` searches further where coordinate descent gets stuck.
      max_sweeps: sweeps over the groups from each start.
      key: the random key for "random" and "shaken" starts, for the random order and `PathLoss`.

    Returns:
      An `Alignment`; its `posterior` is the moved posterior, of the same kind.
    """
    began = time.perf_counter()
    if isinstance(objective, PathLoss):
        return _learned(posterior, to, symmetry, objective, starts, search, key)
    objective = objective_named(objective)
    readings = checked_readings(posterior, to, symmetry)
    if max_sweeps < 1:
        raise ValueError(f"max_sweeps is {max_sweeps}; allow at least one sweep")
    if not (search is None or isinstance(search, FrankWolfe)):
        raise ValueError(f"search is {search!r}; give FrankWolfe() or None")
    given = _checked_starts(starts, symmetry, key)
    if symmetry.mixings:
        return _mixed(posterior, to, symmetry, objective, given, search, max_sweeps, key, began)
    chosen: list[Start] = [start for start in given if not isinstance(start, Transform)]
    seed = _seed(key)
    check_choice(order, OrderName, "order")
    ours = isinstance(objective, Objective) and OBJECTIVES.get(objective.name) is objective
    mine, theirs, unit = in_range(objective.name if ours else None, *readings)
    sides = (mine, theirs) if isinstance(objective, Objective) else (posterior, to)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        pair = objective.features(*sides, symmetry)
    check_features(pair, objective.name)
    deep = search is None and chosen == ["auto"] and nests_deeply(pair.symmetry)
    if deep:
        search, key = FrankWolfe(), jax.random.key(0) if key is None else key
        chosen.extend("random" for _ in range(RESTARTS))
    reports: list[StartReport] = []
    best: tuple[Descent, Matcher] | None = None
    since = began
    for number, start in enumerate(chosen):
        if isinstance(start, str):
            best_so_far = None if best is None else best[1].table.permutation()
            own_key = None if key is None else jax.random.fold_in(key, number)
            where = _named_start(start, symmetry, own_key, best_so_far)
        elif isinstance(start, Permutation):
            where = start
        else:
            where = align(posterior, to=to, symmetry=symmetry, objective=start).permutation
        orders = partial(Orders, order, (*seed, number))
        matcher, end = _descended(start, where, pair, orders, max_sweeps, since)
        if search is not None and not (number and deep):
            end = search.improve(matcher, end, orders(), max_sweeps)
        if objective.relinearise:
            tangents = cast(TangentObjective, objective)
            matcher, end = _follow_tangents(
                tangents, matcher, posterior, to, symmetry, Orders(order, seed), max_sweeps
            )
        now = time.perf_counter()
        seconds, since = now - since, now
        score = unit * end.score
        reports.append(StartReport(_name_of(start), score, end.sweeps, end.converged, seconds))
        if best is None or end.score > best[0].score:
            best = end, matcher
    assert best is not None
    end, matcher = best
    return Alignment(
        permutation=matcher.table.permutation(),
        score=unit * end.score,
        objective=objective.name,
        trace=tuple(unit * score for score in matcher.trace.scores),
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
        known_distance=pair.distance,
    )


def _mixed(
    posterior: AlignableT,
    to: Alignable,
    symmetry: Symmetry,
    objective: AlignmentObjective,
    starts: Sequence[Start | Transform],
    search: FrankWolfe | None,
    max_sweeps: int,
    key: jax.Array | None,
    began: float,
) -> Alignment[AlignableT]:
    """Alignment over signs, scales and matrices, besides permutations."""
    check_mixed(objective.name)
    if search is not None:
        raise ValueError("search is for permutations alone; align with symmetry.permutations")
    given = [start for start in starts if isinstance(start, str | Permutation | Transform)]
    if len(given) < len(starts) or "shaken" in given:
        raise ValueError(
            "a symmetry with signs, scales or matrices is aligned from the starts 'auto', "
            "'forward', 'identity', 'random', a permutation or a transform"
        )

    mover, target = symmetry.canonical(posterior), symmetry.canonical(to)

    def permuted() -> Permutation:
        plain = symmetry.permutations
        return align(mover, to=target, symmetry=plain, objective=objective, key=key).permutation

    ends = align_mixed(mover, target, symmetry, objective.name, given, permuted, max_sweeps, key)
    best = max(ends, key=lambda end: end.score)
    return Alignment(
        permutation=best.transform.permutation,
        score=best.score,
        objective=objective.name,
        trace=tuple(best.trace.scores),
        sweeps=best.sweeps,
        solves=best.trace.solves,
        converged=best.converged,
        starts=tuple(StartReport(e.name, e.score, e.sweeps, e.converged, e.seconds) for e in ends),
        seconds=time.perf_counter() - began,
        trace_seconds=tuple(best.trace.seconds),
        mover=mover,
        target=target,
        symmetry=symmetry,
        measure=objective.measure,
        mixed=best.transform,
        restore=partial(unfolded, symmetry, like=to),
    )


def _learned(
    posterior: AlignableT,
    to: Alignable,
    symmetry: Symmetry,
    objective: PathLoss,
    starts: Sequence[Start | Transform] | Start | Transform,
    search: FrankWolfe | None,
    key: jax.Array | None,
) -> Alignment[AlignableT]:
    """Alignment on the loss of the path: learned from the best of some other alignments."""
    began = time.perf_counter()
    key = check_learnable(symmetry, key)
    if search is not None:
        raise ValueError("search is for objectives that are solved by assignment; drop it")
    checked_readings(posterior, to, symmetry)
    given = _checked_starts(starts, symmetry, key)
    best: Learned[Any]
    mixed, restore, mover, target = None, None, posterior, to
    if symmetry.mixings:
        mover, target = symmetry.canonical(posterior), symmetry.canonical(to)
        solved = partial(align, mover, to=target, symmetry=symmetry)
        candidates = transform_starts(given, symmetry, solved, key)
        best, reports, judge = learn_transform(objective, mover, target, symmetry, candidates, key)
        mixed, restore = best.element, partial(unfolded, symmetry, like=to)
        permutation = mixed.permutation
    else:
        units = units_of(objective, to, symmetry)
        kinds = cache(lambda: units.between(posterior, to))
        solved = partial(align, posterior, to=to, symmetry=symmetry)
        ordered = permutation_starts(given, symmetry, solved, units.kinds, kinds, key)
        best, reports, judge = learn_permutation(
            objective, posterior, to, symmetry, ordered, kinds, key
        )
        permutation = best.element

    def measure(posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float:
        return judge.between(side_of(to), side_of(posterior))(symmetry.identity())

    planned = objective.steps_on(symmetry)
    return Alignment(
        permutation=permutation,
        score=-best.loss,
        objective=objective.name,
        trace=tuple(-loss for loss in best.losses),
        sweeps=best.steps,
        solves=best.trials,
        converged=best.steps == planned,
        starts=tuple(StartReport(name, -loss, 0, True, spent) for name, loss, spent in reports),
        seconds=time.perf_counter() - began,
        trace_seconds=tuple(best.seconds),
        mover=mover,
        target=target,
        symmetry=symmetry,
        measure=measure,
        mixed=mixed,
        restore=restore,
    )


def _checked_starts(
    starts: Sequence[Start | Transform] | Start | Transform,
    symmetry: Symmetry,
    key: jax.Array | None,
) -> list[Start | Transform]:
    if isinstance(starts, Sequence) and not isinstance(starts, str):
        chosen: list[Start | Transform] = list(starts)
    else:
        chosen = [cast("Start | Transform", starts)]
    if not chosen:
        raise ValueError("starts is empty; give at least one, for example starts=('forward',)")
    names = get_args(StartName)
    for start in chosen:
        if isinstance(start, Permutation):
            symmetry.check_permutation(start)
            if start.draws is not None:
                raise ValueError(
                    "a start is one permutation, not a stack of them; take one.draw(i)"
                )
        elif isinstance(start, Transform):
            if not symmetry.mixings:
                raise ValueError("a transform is a start for a symmetry found with kinds='all'")
            symmetry.check_transform(start)
        elif start in names if isinstance(start, str) else isinstance(start, AlignmentObjective):
            if start in ("random", "shaken") and key is None:
                raise ValueError(f"a {start} start needs a key; give key=jax.random.key(…)")
        else:
            raise ValueError(
                f"there is no start '{start}'; use {', '.join(names)}, a Permutation or "
                "Activations(network, x)"
            )
    if symmetry.blocks and "shaken" in chosen:
        raise ValueError(
            "a shaken start moves single units, and some of this symmetry move in blocks; give "
            "'random' starts"
        )
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


def _named_start(
    name: StartName, symmetry: Symmetry, key: jax.Array | None, best: Permutation | None
) -> Permutation:
    """The permutation of a named start, before any forward pass; `best` is the best end so far."""
    if name not in ("random", "shaken"):
        return symmetry.identity()
    assert key is not None  # checked with the starts
    if name == "shaken" and best is not None:
        return _shaken(best, key)
    return symmetry.random(key=key)


def _shaken(best: Permutation, key: jax.Array) -> Permutation:
    """The permutation with some units of every group moved along a random cycle.

    Most of a good match is kept, so that descent ends near it and often above it; a random start
    discards all of it.
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
    pair: FeaturePair,
    orders: Callable[[], Orders],
    max_sweeps: int,
    began: float,
) -> tuple[Matcher, Descent]:
    """Descent from `where`, or from a forward pass, as the start asks."""
    matcher = Matcher(ScoreTable(pair, where), Trace(began=began))
    if start not in ("auto", "forward"):
        return matcher, matcher.descend(orders(), max_sweeps)
    score = matcher.forward()
    end = matcher.descend(orders(), max_sweeps, score)
    if start == "forward":
        return matcher, end
    identity_score = matcher.table.total(where.indices)
    if identity_score < score:
        return matcher, end
    # The identity scores no worse than the forward pass: keep the better of the two ends.
    other = Matcher(ScoreTable(pair, where), Trace(began=began, solves=matcher.trace.solves))
    other_end = other.descend(orders(), max_sweeps, identity_score)
    return (other, other_end) if other_end.score >= end.score else (matcher, end)


def _follow_tangents(
    objective: TangentObjective,
    matcher: Matcher,
    posterior: Alignable,
    to: Alignable,
    symmetry: Symmetry,
    orders: Orders,
    max_sweeps: int,
) -> tuple[Matcher, Descent]:
    """Take the tangent where the last descent ended and descend again, while the score rises."""
    best, sweeps, converged = -np.inf, 0, False
    kept = matcher
    trace = Trace(began=matcher.trace.began, solves=matcher.trace.solves)
    for _ in range(max_sweeps):
        permutation = matcher.table.permutation()
        value = -objective.measure(symmetry.act(permutation, posterior), to, symmetry)
        if not value > best + 1e-9 * abs(value):
            converged = True
            break
        best, kept = value, matcher
        trace.add(value)
        tangent = objective.features(posterior, to, symmetry, at=permutation)
        matcher = Matcher(ScoreTable(tangent, permutation), Trace(began=trace.began))
        end = matcher.descend(orders, max_sweeps)
        trace.solves += matcher.trace.solves
        sweeps += end.sweeps
    kept.trace = trace
    return kept, Descent(best, sweeps, converged)
