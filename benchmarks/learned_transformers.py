"""How the barrier between two character GPTs falls the longer the whole group is learned.

    onebasin reproduce transformers --preset cpu --parts gpt --out RUN
    python benchmarks/learned_transformers.py RUN     # writes results/learned_transformers.json

The ends are those of the experiment: two fits with the gains folded, the second aligned over all of
the symmetry by weights. From there `PathLoss` learns with several numbers of steps, rates and spans
of the path. Rows without `activations` are of a version that did not compare hidden units. The
barrier is measured on test sequences, and on as many sequences of the training data: if it is
the same there, what is left is not that too few examples were learned from. The correlations of
hidden units say how alike the two networks are, whichever units are matched.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from machine import describe, record
from onebasin.alignment import PathLoss, align
from onebasin.alignment.unit_scores import UnitScores, project
from onebasin.data import Dataset
from onebasin.evaluation.profiles import profile
from onebasin.experiments.common_stages import POSTERIOR
from onebasin.experiments.setting import problem
from onebasin.experiments.transformer_stages import TARGET, group_of
from onebasin.experiments.transformers import CPU, LEARNED_WHOLE, WHOLE, Part
from onebasin.paths import geodesic
from onebasin.posterior import Posterior, load
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry

SETTINGS = (
    "0+0@0.03",
    "500+300@0.1:0.4-0.6",
    "500+300@0.1:0.25-0.75",
    "1600+300@0.1:0.4-0.6",
    "1600+300@0.1:0.25-0.75",
)
"""Steps on permutations and matrices + on matrices alone @ the size of the steps of matrices : the
span of the path."""
SEEN = 100  # sequences on which hidden units are compared


def measured(part: Part, run: Path, setting: str) -> dict[str, Any]:
    """One row; that of the preset is read from the run."""
    task, group = problem(part.setting), group_of(part.setting, "all")
    assert isinstance(task.data, Dataset)
    plan = part.plan()
    whole, learned = (run / "stages" / plan[f"align: {row}"].key for row in (WHOLE, LEARNED_WHOLE))
    q0, q1 = (load(whole / name) for name in (TARGET, POSTERIOR))
    over = plan[f"align: {LEARNED_WHOLE}"].config
    counts, _, sizes = setting.partition("@")
    rate, _, ends = sizes.partition(":")
    steps, turns = (int(count) for count in counts.split("+"))
    low, high = map(float, ends.split("-")) if ends else PathLoss.span
    given = (steps, turns, float(rate), (low, high))
    if given == (over.steps, over.turns, over.turning_rate, PathLoss.span):
        q1 = load(learned / POSTERIOR)
    elif steps + turns:
        objective = PathLoss(
            task,
            steps=steps,
            turns=turns,
            turning_rate=float(rate),
            span=(low, high),
            exchanges=over.exchanges,
            batch_size=over.batch_size,
            judged=over.judged,
        )
        key = jax.random.key(over.seed)
        q1 = align(
            q1, to=q0, symmetry=group, objective=objective, starts="identity", key=key
        ).posterior
    row: dict[str, Any] = {"steps": steps, "turns": turns, "rate": float(rate)}
    if steps:
        row |= {"span": [low, high], "activations": True}
    path = geodesic(q0, q1)
    for name, examples in (("test", task.data.test), ("train", task.data.train)):
        some = examples.first(part.examples)
        own = profile(path, task, some, key=jax.random.key(0), points=part.points, num_samples=1)
        row[name] = {"barrier": own.barrier, "t": own.barrier_t, "ends": own.nll[[0, -1]].tolist()}
    symmetry = group_of(part.setting, "permutations")
    return row | {"hidden units": correlations(task, symmetry, q0, q1)}


def correlations(
    task: Problem, symmetry: Symmetry, q0: Posterior, q1: Posterior
) -> dict[str, float]:
    """Of the activations of hidden units that are one behind the other, and of the best matching.

    They are means over the units of all feed-forward layers, on the training data.
    """
    units = UnitScores.of(task, task.x[:SEEN], q0, symmetry)
    scores = units.between(q1, q0)["correlations after"]
    hidden = {name: score for name, score in scores.items() if name.endswith("/up")}
    best = project(hidden)
    aligned = [np.diag(score).mean() for score in hidden.values()]
    matched = [s[np.arange(len(s)), best[name]].mean() for name, s in hidden.items()]
    return {"aligned": float(np.mean(aligned)), "best": float(np.mean(matched))}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path, help="folder of the experiment")
    parser.add_argument("--settings", nargs="*", default=SETTINGS)
    arguments = parser.parse_args()
    part = next(part for part in CPU if part.name == "gpt")
    for setting in arguments.settings:
        row = measured(part, arguments.run, setting)
        sys.stdout.write(f"{setting}: {row}\n")
        sys.stdout.flush()
        record("learned_transformers", {setting: row, "machine": describe()})


if __name__ == "__main__":
    main()
