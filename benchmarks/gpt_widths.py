"""What is left between two character GPTs over all of the symmetry, by their width.

    python benchmarks/gpt_widths.py RUN [--widths 24 48 96 192]     # writes results/gpt_widths.json

Two networks of each width are fitted with the settings of the experiment `transformers`, aligned
over all of the symmetry by weights, and learned from there with the same number of steps. The
stages are kept in the folder RUN, which may be that of the experiment.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from learned_transformers import correlations
from machine import describe, record
from onebasin.data import Dataset
from onebasin.evaluation.profiles import profile
from onebasin.experiments.common_stages import POSTERIOR
from onebasin.experiments.runner import Run
from onebasin.experiments.setting import problem
from onebasin.experiments.transformer_stages import TARGET, LearnOverFaster, group_of
from onebasin.experiments.transformers import CPU, LEARNED_WHOLE, WHOLE
from onebasin.paths import geodesic
from onebasin.posterior import load

WIDTHS = (24, 48, 96, 192)
STEPS, TURNS = 300, 150


def measured(run: Run, width: int) -> dict[str, Any]:
    preset = next(part for part in CPU if part.name == "gpt")
    setting = replace(preset.setting, width=width)
    over = LearnOverFaster(
        setting, steps=STEPS, turns=TURNS, exchanges=20, batch_size=16, judged=50
    )
    part = replace(preset, setting=setting, learn=None, over=over)
    stages = part.plan()
    for name in (WHOLE, LEARNED_WHOLE):
        run.perform(stages[f"align: {name}"])
    task = problem(setting)
    assert isinstance(task.data, Dataset)
    folders = [run.folder(stages[f"align: {name}"]) for name in (WHOLE, LEARNED_WHOLE)]
    q0, by_weights, learned = (
        load(path) for path in (folders[0] / TARGET, folders[0] / POSTERIOR, folders[1] / POSTERIOR)
    )
    row: dict[str, Any] = {"steps": STEPS, "turns": TURNS}
    for name, q1 in (("weights", by_weights), ("learned", learned)):
        own = profile(
            *(geodesic(q0, q1), task, task.data.test.first(part.examples)),
            key=jax.random.key(0),
            points=part.points,
            num_samples=1,
            progress="silent",
        )
        row[name] = own.barrier
        row["ends"] = own.nll[[0, -1]].tolist()
    symmetry = group_of(setting, "permutations")
    return row | {"hidden units": correlations(task, symmetry, q0, learned)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path, help="folder of the stages")
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    arguments = parser.parse_args()
    run = Run(arguments.run, "cpu", quiet=True)
    run.open()
    for width in arguments.widths:
        row = measured(run, width)
        sys.stdout.write(f"{width}: {row}\n")
        sys.stdout.flush()
        record("gpt_widths", {str(width): row, "machine": describe()})


if __name__ == "__main__":
    main()
