"""Permutations of known size are planted before training: what does rebasing find after it?

Four panels: transpositions found, distance and barrier against the number planted; and the number
of transpositions along the line from one trained network to another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.evaluation.transposition_studies import (
    Interpolated,
    Planted,
    interpolation_study,
    planted_study,
)
from onebasin.experiments.claims import judge
from onebasin.experiments.dynamics import (
    CPU_METHOD,
    CPU_SETTING,
    PAPER_METHOD,
    TOY_METHOD,
    TOY_SETTING,
    OverRuns,
    Study,
)
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import dataset
from onebasin.experiments.stage import Stage, Work, step
from onebasin.experiments.transposition_figures import interpolation_figure, planted_figure

SOURCE = "Xiao et al. 2023, figure 3"
FALL = 0.05  # a curve that never falls by more than this share of its range counts as rising
RISES = f"the mean over runs never falls by more than {FALL:.0%} of its range, and ends higher"
COLUMNS = {
    "found": "found",
    "recovered": "units restored, %",
    "distance_before": "distance as trained",
    "distance_after": "rebased",
    "barrier_before": "barrier as trained, nats",
    "barrier_after": "rebased, nats",
}


@dataclass(frozen=True)
class Planting(Study):
    planted: tuple[int, ...] = ()
    examples: int | None = None
    """Test images; None for all."""

    @property
    def title(self) -> str:
        return f"{len(self.planted)} sizes × {self.runs} runs, {self.setting.title}"


@dataclass(frozen=True)
class Line(Study):
    points: int = 21

    @property
    def title(self) -> str:
        return f"{self.points} points × {self.runs} runs, {self.setting.title}"


@dataclass(frozen=True)
class TranspositionsConfig:
    planting: Planting
    line: Line


TOY = TranspositionsConfig(
    Planting(TOY_SETTING, TOY_METHOD, runs=2, points=5, planted=(0, 16, 40, 63)),
    Line(TOY_SETTING, TOY_METHOD, runs=2, points=7),
)
CPU = TranspositionsConfig(
    Planting(CPU_SETTING, CPU_METHOD, runs=3, planted=(1, 128, 256, 384, 511), examples=5000),
    Line(CPU_SETTING, CPU_METHOD, runs=3),
)
PAPER = TranspositionsConfig(
    Planting(CPU_SETTING, PAPER_METHOD, planted=tuple(range(1, 512, 51))),
    Line(CPU_SETTING, PAPER_METHOD),
)


def planting_seconds(config: Planting) -> float:
    networks = config.runs * (len(config.planted) + 1)
    return config.seconds_of(networks) + networks


@step(version=1, seconds=planting_seconds)
def study_planted(config: Planting, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs
    data = dataset(config.setting.data).test.first(config.examples)
    return {"records": config.perform(planted_study, work, planted=config.planted, data=data)}


def line_seconds(config: Line) -> float:
    return config.seconds_of(2 * config.runs) + 0.1 * config.runs * config.points


@step(version=1, seconds=line_seconds)
def study_line(config: Line, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs
    return {"records": config.perform(interpolation_study, work)}


def plan(config: TranspositionsConfig) -> dict[str, Plan]:
    return {
        "planted": {"study": Stage(study_planted, config.planting)},
        "line": {"study": Stage(study_line, config.line)},
    }


def conclude(config: TranspositionsConfig, outcomes: Mapping[str, Outcomes]) -> Findings:
    found = Findings()
    if "planted" in outcomes:
        rows = outcomes["planted"]["study"]["records"]
        found += _planted(config.planting, [Planted(**row) for row in rows])
    if "line" in outcomes:
        rows = outcomes["line"]["study"]["records"]
        found += _line(config.line, [Interpolated(**row) for row in rows])
    return found


def fall(ys: np.ndarray) -> float:
    """How far a curve falls below its running maximum, as a share of its range; 1 if it is flat."""
    if np.ptp(ys) == 0:
        return 1.0
    return float((np.maximum.accumulate(ys) - ys).max() / np.ptp(ys))


def _planted(config: Planting, records: list[Planted]) -> Findings:
    curves = {name: OverRuns(records, "planted", name, config.runs) for name in COLUMNS}
    planted = curves["found"].xs
    claim = partial(
        judge,
        source=SOURCE,
        published="rises with the number planted",
        criterion=RISES,
        conditions=f"{config.title}; {config.method.epochs} epochs of {config.method.optimiser}",
        published_scale=config.setting.same_size(PAPER.planting.setting),
    )
    claims = []
    for name, brief, text in (
        ("found", "found", "The more transpositions are planted, the more are found"),
        (
            "distance_before",
            "distance",
            "The distance between the weights rises with the number planted",
        ),
        ("barrier_before", "barrier", "The barrier rises with the number planted"),
    ):
        curve = curves[name]
        falls = fall(curve.mean)
        ours = (
            f"{curve.text(0)} at {planted[0]:g} planted, {curve.text(-1)} at {planted[-1]:g}; "
            f"drops by at most {falls:.1%} of its range"
        )
        claims.append(
            claim(
                text,
                falls <= FALL,
                ours=ours,
                headline=f"{brief}: {curve.mean[0]:.3g} → {curve.mean[-1]:.3g}",
                value=float(curve.mean[-1]),
            )
        )
    rows = [
        [
            f"{count:g}",
            *(c.text(i, 100 if n == "recovered" else 1) for n, c in curves.items()),
        ]
        for i, count in enumerate(planted.tolist())
    ]
    title = f"Planted transpositions, {config.setting.title}"
    note = "± is one standard error over runs."
    alt = "; ".join(f"{row[0]} planted: {row[1]} found" for row in rows)
    return Findings(
        claims,
        [Table(title, ["planted", *COLUMNS.values()], rows, note)],
        [Picture("planted", title, alt, planted_figure(records))],
    )


def _line(config: Line, records: list[Interpolated]) -> Findings:
    words, falls = [], []
    for kind in dict.fromkeys(record.kind for record in records):
        own = [record for record in records if record.kind == kind]
        mean = OverRuns(own, "t", "transpositions", config.runs).mean
        falls.append(fall(mean))
        words.append(
            f"{kind}: {mean[0]:.0f} to {mean[-1]:.0f}, drops by at most {falls[-1]:.1%} of its "
            "range"
        )
    claim = judge(
        "The number of transpositions is monotone along the line between two networks",
        max(falls) <= FALL,
        published="monotone",
        source=SOURCE,
        ours="; ".join(words),
        criterion=RISES + ", for both kinds of pairs",
        headline=f"along the line: drops by at most {max(falls):.1%} of its range",
        conditions=f"{config.title}; {config.method.epochs} epochs",
        published_scale=config.setting.same_size(PAPER.line.setting),
        value=max(falls),
    )
    title = f"Transpositions along the line, {config.setting.title}"
    return Findings(
        [claim], [], [Picture("line", title, claim.ours, interpolation_figure(records))]
    )


EXPERIMENT = Experiment("transpositions", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
