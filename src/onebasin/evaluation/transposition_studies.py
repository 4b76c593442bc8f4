"""How permutations affect training: three studies of Xiao et al. (their figures 2 and 3).

Each returns plain records, one per run and setting, from which `mean_and_std` computes the mean and
the standard deviation over runs. Networks are trained by `MAP`, all those of a study at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment import align
from onebasin.alignment.objective import ObjectiveLike
from onebasin.data.examples import Examples
from onebasin.evaluation.distances import squared_distance
from onebasin.evaluation.profiles import Profile, profile
from onebasin.inference.methods import MAP
from onebasin.inference.trajectories import steps_per_epoch, train
from onebasin.keys import subkey
from onebasin.paths import line
from onebasin.problem import Problem
from onebasin.progress import Progress, Reporter, reporting
from onebasin.symmetry import Symmetry, find_symmetry, transpositions
from onebasin.trees import PyTree, stack_trees, take_entry


@dataclass(frozen=True)
class Planted:
    """Two trained networks whose initial weights were equal up to a permutation."""

    run: int
    planted: int
    """NoT of the initial permutation, over all groups."""
    found: int
    """NoT of the permutation that alignment finds after training."""
    recovered: float
    """Share of hidden units that alignment returns to their initial position."""
    distance_before: float
    """‖W0 − W1‖ as trained."""
    distance_after: float
    """‖W0 − P W1‖ for the permutation found."""
    distance_undone: float
    """‖W0 − P W1‖ for the inverse of the initial permutation."""
    barrier_before: float
    barrier_after: float


@dataclass(frozen=True)
class Interpolated:
    """W_λ = (1 − λ) W0 + λ W1, rebased onto W0."""

    run: int
    kind: str
    t: float
    transpositions: int
    """NoT of the permutation that rebases W_λ onto W0."""
    distance_before: float
    distance_after: float
    end: int
    """NoT of the permutation that rebases W1."""


@dataclass(frozen=True)
class Dynamics:
    """Two independent networks at one step of their training, and the line between them."""

    run: int
    step: int
    epoch: float
    t: tuple[float, ...]
    before: tuple[float, ...]
    """Loss along the line from W0 (t = 0) to W1 as trained."""
    after: tuple[float, ...]
    """Loss along the line from W0 to W1 rebased onto W0."""
    transpositions: int
    distance_before: float
    distance_after: float


Record: TypeAlias = Planted | Interpolated | Dynamics


def planted_study(
    problem: Problem,
    method: MAP,
    *,
    key: jax.Array,
    planted: Sequence[int],
    runs: int = 5,
    symmetry: Symmetry | None = None,
    objective: ObjectiveLike = "l2",
    data: Examples | None = None,
    points: int = 11,
    progress: Progress = "auto",
) -> list[Planted]:
    """Train two networks whose initial weights are equal up to a permutation of known NoT.

    Every run trains one network W0 from random weights and, for each number in `planted`, a W1
    from the same weights permuted by that many transpositions *in every group*, with another
    order of batches. Barriers are measured on `data` (the test split by default).
    """
    symmetry = symmetry or find_symmetry(problem)
    starts, keys, moves = [], [], []
    for run in range(runs):
        own = jax.random.fold_in(key, run)
        first = problem.init(subkey(own, "init"))
        starts.append(first)
        keys.append(subkey(own, "W0"))
        for count in planted:
            mine = jax.random.fold_in(own, count)
            move = symmetry.random(key=subkey(mine, "planted"), transpositions=count)
            starts.append(symmetry.act(move, first))
            keys.append(subkey(mine, "W1"))
            moves.append(move)
    with reporting(progress) as report:
        (trained,) = train(
            problem, method, stack_trees(starts), keys=jnp.stack(keys), progress=report
        )
        examples = _examples(problem, data)
        records: list[Planted] = []
        width = len(planted) + 1
        for run in range(runs):
            w0 = take_entry(trained, run * width)
            for i in range(len(planted)):
                w1, move = take_entry(trained, run * width + 1 + i), moves[run * len(planted) + i]
                found = align(w1, to=w0, symmetry=symmetry, objective=objective).permutation
                undone = symmetry.inverse(move)
                moved = symmetry.act(found, w1)
                same = sum(int((found[g] == undone[g]).sum()) for g in found)
                records.append(
                    Planted(
                        run=run,
                        planted=int(transpositions(move)),
                        found=int(transpositions(found)),
                        recovered=same / sum(group.size for group in symmetry.groups),
                        distance_before=_distance(w0, w1),
                        distance_after=_distance(w0, moved),
                        distance_undone=_distance(w0, symmetry.act(undone, w1)),
                        barrier_before=_profile(problem, w0, w1, examples, points).barrier,
                        barrier_after=_profile(problem, w0, moved, examples, points).barrier,
                    )
                )
                report("barriers", len(records), runs * len(planted))
    return records


def transpositions_along(
    w0: PyTree,
    w1: PyTree,
    *,
    symmetry: Symmetry,
    points: int = 21,
    objective: ObjectiveLike = "l2",
    run: int = 0,
    kind: str = "",
) -> list[Interpolated]:
    """NoT of the permutation that rebases W_λ = (1 − λ) W0 + λ W1 onto W0, along λ."""
    found: list[tuple[float, int, float, float]] = []
    for t in np.linspace(0.0, 1.0, points):
        middle = jax.tree.map(lambda a, b, t=t: ((1 - t) * a + t * b).astype(a.dtype), w0, w1)
        moved = align(middle, to=w0, symmetry=symmetry, objective=objective)
        distances = _distance(w0, middle), _distance(w0, moved.posterior)
        found.append((float(t), int(moved.transpositions), *distances))
    return [Interpolated(run, kind, *values, end=found[-1][1]) for values in found]


def interpolation_study(
    problem: Problem,
    method: MAP,
    *,
    key: jax.Array,
    runs: int = 5,
    kinds: Sequence[Literal["permuted", "independent"]] = ("permuted", "independent"),
    symmetry: Symmetry | None = None,
    objective: ObjectiveLike = "l2",
    points: int = 21,
    progress: Progress = "auto",
) -> list[Interpolated]:
    """NoT along the line from a trained W0 to W1.

    W1 is W0 under a random permutation ("permuted": the answer at λ = 1 is known), or another
    network trained from its own initial weights ("independent").
    """
    symmetry = symmetry or find_symmetry(problem)
    with reporting(progress) as report:
        (trained,) = _pairs(problem, method, runs, key, None, report)
        records: list[Interpolated] = []
        for run in range(runs):
            w0, w1 = (take_entry(trained, 2 * run + i) for i in (0, 1))
            for kind in kinds:
                other = w1
                if kind == "permuted":
                    own = subkey(jax.random.fold_in(key, run), "permuted")
                    other = symmetry.act(symmetry.random(key=own), w0)
                records += transpositions_along(
                    w0, other, symmetry=symmetry, points=points, objective=objective, run=run,
                    kind=kind,
                )  # fmt: skip
                report("aligning", len(records), runs * len(kinds) * points)
    return records


def dynamics_study(
    problem: Problem,
    method: MAP,
    *,
    key: jax.Array,
    runs: int = 1,
    moments: int = 12,
    symmetry: Symmetry | None = None,
    objective: ObjectiveLike = "l2",
    data: Examples | None = None,
    points: int = 5,
    progress: Progress = "auto",
) -> list[Dynamics]:
    """Loss of two networks and on the line between them during training, as trained and rebased.

    It is measured at about `moments` steps of training, including the first and the last, with
    geometric spacing.
    """
    symmetry = symmetry or find_symmetry(problem)
    each = steps_per_epoch(problem, method)
    last = method.epochs * each
    steps = np.unique([0, *np.geomspace(1, last, max(moments - 1, 1)).round().astype(int), last])
    with reporting(progress) as report:
        trained = _pairs(problem, method, runs, key, steps.tolist(), report)
        examples = _examples(problem, data)
        records: list[Dynamics] = []
        for step, networks in zip(steps.tolist(), trained, strict=True):
            for run in range(runs):
                w0, w1 = (take_entry(networks, 2 * run + i) for i in (0, 1))
                found = align(w1, to=w0, symmetry=symmetry, objective=objective)
                before = _profile(problem, w0, w1, examples, points)
                after = _profile(problem, w0, found.posterior, examples, points)
                records.append(
                    Dynamics(
                        run=run,
                        step=step,
                        epoch=step / each,
                        t=tuple(before.t.tolist()),
                        before=tuple(before.nll.tolist()),
                        after=tuple(after.nll.tolist()),
                        transpositions=int(found.transpositions),
                        distance_before=_distance(w0, w1),
                        distance_after=_distance(w0, found.posterior),
                    )
                )
                report("losses", len(records), runs * len(steps))
    return records


def mean_and_std(
    records: Sequence[Record], x: str, y: str | Callable[[Any], float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every value of the field `x`, the mean of `y` over runs and its standard deviation.

    The standard deviation of a single run is NaN.
    """
    read = y if callable(y) else (lambda record: getattr(record, y))
    xs = sorted({getattr(record, x) for record in records})
    groups = [[read(r) for r in records if getattr(r, x) == value] for value in xs]
    std = [np.std(g, ddof=1) if len(g) > 1 else np.nan for g in groups]
    return np.array(xs), np.array([np.mean(g) for g in groups]), np.array(std)


def as_json(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Records as JSON-able dictionaries."""
    return [asdict(record) for record in records]


def _pairs(
    problem: Problem,
    method: MAP,
    runs: int,
    key: jax.Array,
    steps: list[int] | None,
    report: Reporter,
) -> list[PyTree]:
    """Two networks per run, with independent initial weights and orders of batches."""
    keys = [
        jax.random.fold_in(jax.random.fold_in(key, run), i) for run in range(runs) for i in (0, 1)
    ]
    starts = stack_trees([problem.init(subkey(k, "init")) for k in keys])
    return train(problem, method, starts, keys=jnp.stack(keys), checkpoints=steps, progress=report)


@runtime_checkable
class HasTest(Protocol):
    """Data with a test split."""

    @property
    def test(self) -> Examples: ...


def _examples(problem: Problem, data: Examples | None) -> Examples:
    if data is not None:
        return data
    return problem.data.test if isinstance(problem.data, HasTest) else (problem.x, problem.y)


def _profile(problem: Problem, w0: PyTree, w1: PyTree, data: Examples, points: int) -> Profile:
    # Nothing is random along a line between two networks, so the key has no effect.
    key = jax.random.key(0)
    return profile(line(w0, w1), problem, data, key=key, points=points, num_samples=1)


def _distance(a: PyTree, b: PyTree) -> float:
    return float(np.sqrt(squared_distance(a, b)))
