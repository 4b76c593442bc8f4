"""Permutations of known size are planted at the start of training: what rebasing finds after it.

Four panels: transpositions found, distance and barrier against the number planted; and the number
along the line from one trained network to another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onebasin.evaluation.transposition_studies import (
    Interpolated,
    Planted,
    as_json,
    interpolation_study,
    mean_and_std,
    planted_study,
)
from onebasin.experiments.claims import Claim, judge, plus_minus
from onebasin.experiments.common_stages import Fit, fit_seconds
from onebasin.experiments.dynamics import (
    CPU_METHOD,
    CPU_SETTING,
    PAPER_METHOD,
    TOY_METHOD,
    TOY_SETTING,
)
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.transpositions import interpolation_figure, planted_figure
from onebasin.inference.methods import MAP

SOURCE = "Xiao et al. 2023, figure 3"
FALL = 0.05  # a curve that never falls by more than this share of its range counts as rising
RISES = f"the mean over runs never falls by more than {FALL:.0%} of its range, and ends higher"


@dataclass(frozen=True)
class Planting:
    setting: Setting
    method: MAP
    planted: tuple[int, ...]
    runs: int = 5
    points: int = 11
    examples: int | None = None
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{len(self.planted)} sizes × {self.runs} runs, {self.setting.title}"


@dataclass(frozen=True)
class Line:
    setting: Setting
    method: MAP
    runs: int = 5
    points: int = 21
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{self.points} points × {self.runs} runs, {self.setting.title}"


@dataclass(frozen=True)
class TranspositionsConfig:
    planting: Planting
    line: Line


TOY = TranspositionsConfig(
    Planting(TOY_SETTING, TOY_METHOD, (0, 16, 40, 63), runs=2, points=5),
    Line(TOY_SETTING, TOY_METHOD, runs=2, points=7),
)
CPU = TranspositionsConfig(
    Planting(CPU_SETTING, CPU_METHOD, (1, 128, 256, 384, 511), runs=3, examples=5000),
    Line(CPU_SETTING, CPU_METHOD, runs=3),
)
PAPER = TranspositionsConfig(
    Planting(
        CPU_SETTING, PAPER_METHOD, (1, 52, 103, 154, 205, 256, 307, 358, 409, 460, 511), runs=5
    ),
    Line(CPU_SETTING, PAPER_METHOD, runs=5),
)


def planting_seconds(config: Planting) -> float:
    networks = config.runs * (len(config.planted) + 1)
    return fit_seconds(Fit(config.setting, config.method, runs=networks)) + networks


@step(version=1, seconds=planting_seconds)
def study_planted(config: Planting, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs
    records = planted_study(
        problem(config.setting),
        config.method,
        key=jax.random.key(config.seed),
        planted=config.planted,
        runs=config.runs,
        symmetry=symmetry(config.setting),
        data=dataset(config.setting.data).test.first(config.examples),
        points=config.points,
        progress=work.progress,
    )
    return {"records": as_json(records)}


def line_seconds(config: Line) -> float:
    training = fit_seconds(Fit(config.setting, config.method, runs=2 * config.runs))
    return training + 0.1 * config.runs * config.points


@step(version=1, seconds=line_seconds)
def study_line(config: Line, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs
    records = interpolation_study(
        problem(config.setting),
        config.method,
        key=jax.random.key(config.seed),
        runs=config.runs,
        symmetry=symmetry(config.setting),
        points=config.points,
        progress=work.progress,
    )
    return {"records": as_json(records)}


def plan(config: TranspositionsConfig) -> dict[str, Plan]:
    return {
        "planted": {"study": Stage(study_planted, config.planting)},
        "line": {"study": Stage(study_line, config.line)},
    }


def conclude(config: TranspositionsConfig, outcomes: Mapping[str, Outcomes]) -> Findings:
    claims: list[Claim] = []
    tables: list[Table] = []
    pictures: list[Picture] = []
    if "planted" in outcomes:
        rows = outcomes["planted"]["study"]["records"]
        _planted(config.planting, [Planted(**row) for row in rows], claims, tables, pictures)
    if "line" in outcomes:
        rows = outcomes["line"]["study"]["records"]
        _line(config.line, [Interpolated(**row) for row in rows], claims, pictures)
    for part, text in (("planted", "Rebasing finds what was planted"), ("line", "NoT is monotone")):
        if part not in outcomes:
            claims.append(
                judge(
                    text,
                    None,
                    published="it does",
                    source=SOURCE,
                    ours="–",
                    criterion="",
                    conditions=config.planting.title,
                    published_scale=False,
                )
            )
    return Findings(claims, tables, pictures)


def fall(ys: np.ndarray) -> float:
    """How far a curve falls below where it has been, as a share of its range; 1 if it is flat."""
    if np.ptp(ys) == 0:
        return 1.0
    return float((np.maximum.accumulate(ys) - ys).max() / np.ptp(ys))


def _planted(
    config: Planting, records: list[Planted], claims: list, tables: list, pictures: list
) -> None:
    common: dict[str, Any] = {
        "source": SOURCE,
        "conditions": f"{config.title}; {config.method.epochs} epochs of {config.method.optimiser}",
        "published_scale": config.setting.same_size(PAPER.planting.setting),
    }
    curves = {
        name: mean_and_std(records, "planted", name)
        for name in (
            "found",
            "recovered",
            "distance_before",
            "distance_after",
            "barrier_before",
            "barrier_after",
        )
    }
    planted = curves["found"][0]

    def said(name: str, index: int, percent: bool = False) -> str:
        _, mean, std = curves[name]
        error = float(np.nan_to_num(std[index])) / config.runs**0.5
        times = 100 if percent else 1
        return plus_minus(times * float(mean[index]), times * error)

    for name, text, published in (
        ("found", "The more transpositions are planted, the more are found", "rises with it"),
        ("distance_before", "Distance in weights rises with what was planted", "rises with it"),
        ("barrier_before", "So does the barrier", "rises with it"),
    ):
        falls = fall(curves[name][1])
        claims.append(
            judge(
                text,
                falls <= FALL,
                published=published,
                ours=f"{said(name, 0)} at {planted[0]:g} planted, {said(name, -1)} at "
                f"{planted[-1]:g}; falls by {falls:.1%} of its range on the way",
                criterion=RISES,
                value=float(curves[name][1][-1]),
                **common,
            )
        )
    columns = [
        "planted",
        "found",
        "units sent back, %",
        "distance as trained",
        "rebased",
        "barrier as trained, nats",
        "rebased, nats",
    ]
    rows = [
        [
            f"{count:g}",
            said("found", i),
            said("recovered", i, percent=True),
            *(said(n, i) for n in list(curves)[2:]),
        ]
        for i, count in enumerate(planted.tolist())
    ]
    title = f"Planted transpositions, {config.setting.title}"
    tables.append(Table(title, columns, rows, "± is one standard error over runs."))
    alt = "; ".join(f"{row[0]} planted: {row[1]} found" for row in rows)
    pictures.append(Picture("planted", title, alt, planted_figure(records)))


def _line(config: Line, records: list[Interpolated], claims: list, pictures: list) -> None:
    words = []
    falls = []
    for kind in dict.fromkeys(record.kind for record in records):
        own = [record for record in records if record.kind == kind]
        _, mean, _ = mean_and_std(own, "t", "transpositions")
        falls.append(fall(mean))
        words.append(
            f"{kind}: {mean[0]:.0f} to {mean[-1]:.0f}, falls by {falls[-1]:.1%} of its range"
        )
    title = f"Transpositions along the line, {config.setting.title}"
    claims.append(
        judge(
            "The number of transpositions changes monotonically along the line",
            max(falls) <= FALL,
            published="monotone",
            source=SOURCE,
            ours="; ".join(words),
            criterion=RISES + ", both kinds",
            conditions=f"{config.title}; {config.method.epochs} epochs",
            published_scale=config.setting.same_size(PAPER.line.setting),
            value=max(falls),
        )
    )
    pictures.append(Picture("line", title, "; ".join(words), interpolation_figure(records)))


EXPERIMENT = Experiment(
    name="transpositions",
    title="Planted transpositions",
    question=(
        "Two networks start from the same weights up to a permutation of known size. Is it still "
        "found after training, and what does it cost in distance and loss?"
    ),
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
