"""Alignment by `PathLoss`: choose a start, learn from it, polish, and report as an `Alignment`."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from onebasin.alignment.activations import Activations, point_of
from onebasin.alignment.learning import Examples, Learned, Scores, biased, learn, polish
from onebasin.alignment.moments import Alignable
from onebasin.alignment.norms import ScaleFree, find_scale_free
from onebasin.alignment.path_loss import Batch, Judge, PathLoss, PathLosses, side_of
from onebasin.keys import check_key, subkey
from onebasin.progress import reporting
from onebasin.symmetry import Permutation, Symmetry

BONUS = 0.3  # added to the scores of a start that the scores themselves do not give

Candidates = Sequence[tuple[str, Callable[[], Permutation]]]


def learn_permutation(
    objective: PathLoss,
    posterior: Alignable,
    to: Alignable,
    symmetry: Symmetry,
    candidates: Candidates,
    units: Activations | None,
    key: jax.Array,
) -> tuple[Learned, list[tuple[str, float, float]], Judge]:
    """The learned permutation; the judged loss and seconds of every start; and the judge.

    `units` gives the scores to begin with; without it they are those of the best start alone.
    """
    began = time.perf_counter()
    key = check_key(key)
    x, y = objective.examples
    order = _generator(key, "split").permutation(len(x))
    held, rest = order[: objective.judged], order[objective.judged :]
    free = ScaleFree({})
    if objective.keep_norms:
        params, state = point_of(to)
        free = find_scale_free(
            objective.network, params, x[held[:8]], symmetry=symmetry, state=state
        )
    losses = PathLosses(objective, symmetry, free)
    sides = side_of(to), side_of(posterior)
    data = Batch(x[np.sort(held)], y[np.sort(held)])
    judge = Judge.of(losses, sides, data, objective, _generator(key, "judge"))
    with reporting(objective.progress) as report:
        best, starts = _best_start(candidates, judge, began, report)
        if objective.steps == objective.exchanges == 0:
            return best, starts, judge
        data = Batch(x[rest], y[rest])
        stream = Examples(objective, data, sides, _generator(key, "learn"))
        if objective.steps:
            scores = _scores(units, posterior, to, symmetry)
            scores = biased(scores, best.permutation, symmetry, BONUS)
            learn(objective, losses, sides, scores, best, judge, stream, report)
        polish(objective, losses, sides, best, judge, stream, report)
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


def _scores(
    units: Activations | None, posterior: Alignable, to: Alignable, symmetry: Symmetry
) -> Scores:
    """Correlations of all pairs of units; zero for a network whose units cannot be recorded."""
    if units is None:
        return {g.name: np.zeros((g.size, g.size), np.float32) for g in symmetry.groups}
    (scores,) = units.features(posterior, to, symmetry).target
    return {name: np.asarray(score, np.float32) for name, score in scores.items()}


def _generator(key: jax.Array, name: str) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(subkey(key, name))).tolist())
