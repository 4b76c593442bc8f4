"""Alignment by `PathLoss`: choose a start, learn from it, polish, and report as an `Alignment`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from onebasin.alignment.activations import point_of
from onebasin.alignment.learning import Examples, Judging, Learned, Learner
from onebasin.alignment.moments import Alignable
from onebasin.alignment.norms import ScaleFree, find_scale_free
from onebasin.alignment.path_loss import Batch, Judge, PathLoss, PathLosses, Side, side_of
from onebasin.alignment.unit_scores import Scores, UnitScores, biased, project
from onebasin.keys import check_key, subkey
from onebasin.progress import reporting
from onebasin.symmetry import Permutation, Symmetry

SEEN = 2000  # examples on which units are compared before the permutation is learned

Candidates = Sequence[tuple[str, Callable[[], Permutation]]]


def check_learnable(symmetry: Symmetry, key: jax.Array | None) -> jax.Array:
    """The key, unless there is none or the symmetry has orders that cannot be learned."""
    if key is None:
        raise ValueError("PathLoss draws batches and noise; give key=jax.random.key(…)")
    if symmetry.blocks:
        raise ValueError(
            "PathLoss learns the orders of single units, and some of this symmetry move in blocks; "
            "find it with own_orders=False"
        )
    return check_key(key)


def units_of(objective: PathLoss, to: Alignable, symmetry: Symmetry) -> UnitScores:
    """The scores of units on the training examples."""
    return UnitScores.of(objective.network, objective.examples[0][:SEEN], to, symmetry)


@dataclass(frozen=True, eq=False)
class Task:
    """An objective on a network: its compiled loss, and what to learn from and to judge on."""

    objective: PathLoss
    symmetry: Symmetry
    losses: PathLosses
    held: Batch
    rest: Batch
    key: jax.Array

    @classmethod
    def of(cls, objective: PathLoss, to: Alignable, symmetry: Symmetry, key: jax.Array) -> "Task":
        """The task with its examples divided at random, in the order of the data."""
        x, y = objective.examples
        order = _generator(key, "split").permutation(len(x))
        held, rest = np.sort(order[: objective.judged]), np.sort(order[objective.judged :])
        free = ScaleFree({})
        if objective.keep_norms:
            params, state = point_of(to)
            free = find_scale_free(
                objective.network, params, x[held[:8]], symmetry=symmetry, state=state
            )
        losses = PathLosses(objective, symmetry, free)
        return cls(
            objective, symmetry, losses, Batch(x[held], y[held]), Batch(x[rest], y[rest]), key
        )

    def judge(self, target: Side, mover: Side) -> Judge:
        rng = _generator(self.key, "judge")
        return Judge.of(self.losses, (target, mover), self.held, self.objective, rng)

    def examples(self, targets: Sequence[Side], mover: Side, name: str) -> Examples:
        """A stream of examples to learn from, its own for every name."""
        return Examples(self.objective, self.rest, targets, mover, _generator(self.key, name))


def learn_permutation(
    objective: PathLoss,
    posterior: Alignable,
    to: Alignable,
    symmetry: Symmetry,
    candidates: Candidates,
    kinds: Callable[[], Mapping[str, Scores]],
    key: jax.Array,
) -> tuple[Learned, list[tuple[str, float, float]], Judge]:
    """The learned permutation; the judged loss and seconds of every start; and the judge.

    `kinds` gives the scores that it may begin with, by name.
    """
    began = time.perf_counter()
    task = Task.of(objective, to, symmetry, key)
    target, mover = side_of(to), side_of(posterior)
    judge = task.judge(target, mover)
    with reporting(objective.progress) as report:
        best, starts = _best_start(candidates, judge, began, report)
        if judge.is_flat(best.permutation):
            return best, starts, judge
        stream = task.examples([target], mover, "learn")
        learner = Learner(objective, task.losses)
        if objective.steps:
            scores = scores_to_learn(kinds(), best.permutation, judge)
            learner.learn(scores, best, judge, stream, report)
        if objective.exchanges:
            learner.polish(best, judge, stream, report)
    return best, starts, judge


def _best_start(
    candidates: Candidates, judge: Judge, began: float, report: Any
) -> tuple[Learned, list[tuple[str, float, float]]]:
    found: list[tuple[str, float, float]] = []
    best: Learned | None = None
    for number, (name, make) in enumerate(candidates):
        since = time.perf_counter()
        permutation = make()
        loss = judge(permutation)
        found.append((name, loss, time.perf_counter() - since))
        if best is None:
            best = Learned(permutation, loss, began)
        else:
            best.offer(permutation, loss)
        report("starts", number + 1, len(candidates), f"{name}: loss {loss:.4f}")
    assert best is not None
    # The trace begins at the best start.
    best.losses, best.seconds = best.losses[-1:], best.seconds[-1:]
    return best, found


def scores_to_learn(kinds: Mapping[str, Scores], best: Permutation, judge: Judging) -> Scores:
    """The scores whose own projection is judged best, with a bonus for the best permutation."""
    losses = {name: judge(project(scores)) for name, scores in kinds.items()}
    return biased(kinds[min(losses, key=lambda name: losses[name])], best)


def _generator(key: jax.Array, name: str) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(subkey(key, name))).tolist())
