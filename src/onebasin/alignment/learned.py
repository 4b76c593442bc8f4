"""Alignment by `PathLoss`: choose a start, learn from it, polish, and report as an `Alignment`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from onebasin.alignment.activations import point_of
from onebasin.alignment.learning import Element, Examples, Judging, Learned, Learner
from onebasin.alignment.learning_transforms import TransformLearner, scores_and_signs
from onebasin.alignment.moments import Alignable
from onebasin.alignment.norms import ScaleFree, find_scale_free
from onebasin.alignment.path_loss import (
    Batch,
    Judge,
    PathLoss,
    PathLosses,
    Side,
    moved,
    side_of,
)
from onebasin.alignment.soft_action import single_units
from onebasin.alignment.unit_scores import Scores, UnitScores, biased, project
from onebasin.keys import check_key, subkey
from onebasin.progress import reporting
from onebasin.symmetry import Permutation, Symmetry, Transform

SEEN = 2000  # examples on which units are compared before the permutation is learned

Candidates = Sequence[tuple[str, Callable[[], Element]]]
Report = tuple[str, float, float]
"""A start, its judged loss, and the seconds it took."""


def check_learnable(symmetry: Symmetry, key: jax.Array | None) -> jax.Array:
    """The key, unless there is none or the symmetry has orders that cannot be learned."""
    if key is None:
        raise ValueError("PathLoss draws batches and noise; give key=jax.random.key(…)")
    if symmetry.blocks and not symmetry.mixings:
        raise ValueError(
            "PathLoss learns the orders of single units, and some of this symmetry move in blocks; "
            "find it with own_orders=False, or with kinds='all' to learn matrices inside the blocks"
        )
    return check_key(key)


def units_of(objective: PathLoss, to: Alignable, symmetry: Symmetry) -> UnitScores:
    """The scores of units on the training examples, of the groups that are learned one by one."""
    single, x = single_units(symmetry), objective.examples[0][:SEEN]
    return UnitScores.of(objective.network, x, to, symmetry.permutations, wanted=single)


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
    candidates: Candidates[Permutation],
    kinds: Callable[[], Mapping[str, Scores]],
    key: jax.Array,
) -> tuple[Learned[Permutation], list[Report], Judge]:
    """The learned permutation; the judged loss and seconds of every start; and the judge.

    `kinds` gives the scores that it may begin with, by name.
    """
    began = time.perf_counter()
    task = Task.of(objective, to, symmetry, key)
    target, mover = side_of(to), side_of(posterior)
    judge = task.judge(target, mover)
    with reporting(objective.progress) as report:
        best, starts = _best_start(candidates, judge, began, report)
        if judge.is_flat(best.element):
            return best, starts, judge
        stream = task.examples([target], mover, "learn")
        learner = Learner(objective, task.losses)
        if objective.steps:
            scores = scores_to_learn(kinds(), best.element, judge)
            learner.learn(scores, best, judge, stream, report)
        if objective.exchanges:
            learner.polish(best, judge, stream, report)
    return best, starts, judge


def learn_transform(
    objective: PathLoss,
    posterior: Alignable,
    to: Alignable,
    symmetry: Symmetry,
    candidates: Candidates[Transform],
    key: jax.Array,
) -> tuple[Learned[Transform], list[Report], Judge]:
    """The same over signs, scales and matrices, between two ends with folded gains."""
    began = time.perf_counter()
    task = Task.of(objective, to, symmetry, key)
    target, mover = side_of(to), side_of(posterior)
    judge = task.judge(target, mover)
    single = single_units(symmetry)
    with reporting(objective.progress) as report:
        best, starts = _best_start(candidates, judge, began, report)
        if judge.is_flat(best.element):
            return best, starts, judge
        learner = TransformLearner(objective, task.losses)
        if objective.steps and single:
            start, current = best.element, Permutation({n: symmetry.identity()[n] for n in single})
            units = units_of(objective, to, symmetry)
            found = units.between(symmetry.act(start, posterior), to)
            every, signs = scores_and_signs(symmetry, found.values())
            losses = []
            for scores in every:
                matched = project(scores)
                element = learner.ordered(start, signs, matched)
                losses.append(judge(element))
                if best.offer(element, losses[-1]):
                    current = matched
            if judge.is_flat(best.element):
                return best, starts, judge
            scores = biased(every[int(np.argmin(losses))], current)
            stream = task.examples([target], mover, "learn")
            learner.learn(best, judge, stream, start, scores, signs, objective.steps, report)
        if objective.turns:
            stream = task.examples([target], mover, "turn")
            learner.learn(best, judge, stream, best.element, {}, {}, objective.turns, report)
        if objective.exchanges and single:
            there = moved(symmetry, best.element, mover)
            learner.polish(best, judge, task.examples([target], there, "polish"), report)
    return best, starts, judge


def _best_start(
    candidates: Candidates[Element], judge: Judge, began: float, report: Any
) -> tuple[Learned[Element], list[Report]]:
    found: list[Report] = []
    best: Learned[Element] | None = None
    for number, (name, make) in enumerate(candidates):
        since = time.perf_counter()
        element = make()
        loss = judge(element)
        found.append((name, loss, time.perf_counter() - since))
        if best is None:
            best = Learned(element, loss, began)
        else:
            best.offer(element, loss)
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
