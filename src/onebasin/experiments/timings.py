"""How long alignment takes as the width grows, by L2 (weight matching) and by W2."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from onebasin.alignment import align
from onebasin.experiments import presets
from onebasin.experiments.claims import judge
from onebasin.experiments.common_stages import fits, load_inputs
from onebasin.experiments.curves import tick_at
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.style import COLOURS, COLUMN, MARKERS, paper
from onebasin.inference.methods import VI

OBJECTIVES: tuple[Literal["l2", "w2"], ...] = ("l2", "w2")
MINUTE = 60.0


@dataclass(frozen=True)
class Time:
    setting: Setting
    rounds: int

    @property
    def title(self) -> str:
        return f"{self.rounds} rounds, {self.setting.title}"


@dataclass(frozen=True)
class Timings:
    setting: Setting
    widths: tuple[int, ...]
    vi: VI
    together: int = 0
    rounds: int = 5


TOY = Timings(presets.TOY, (8, 128), presets.TOY_VI, presets.TOGETHER)
CPU = Timings(presets.MNIST, (64, 128, 256, 512), presets.CPU_VI)
PAPER = Timings(presets.MNIST, (64, 128, 256, 512, 1024), presets.PAPER_VI_MNIST)


@step(version=1, seconds=lambda config: 2.0 * config.rounds * (config.setting.width / 512) ** 2)
def time_alignment(config: Time, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """The objectives alternate, so that other load on the machine slows both alike."""
    del work
    sym = symmetry(config.setting)
    q0, q1 = load_inputs(config.setting, inputs).values()
    seconds: dict[str, list[float]] = {name: [] for name in OBJECTIVES}
    for turn in range(config.rounds + 1):
        for name in OBJECTIVES:
            began = time.perf_counter()
            align(q1, to=q0, symmetry=sym, objective=name)
            if turn > 0:  # the first turn compiles
                seconds[name].append(time.perf_counter() - began)
    return seconds


def plan(config: Timings) -> dict[str, Plan]:
    stages = {}
    for width in config.widths:
        setting = replace(config.setting, width=width)
        q0, q1 = fits(setting, config.vi, 2, together=config.together)
        files = {"q0": q0, "q1": q1}
        stages[f"width-{width}"] = Stage(time_alignment, Time(setting, config.rounds), files)
    return {"all": stages}


def conclude(config: Timings, outcomes: Mapping[str, Outcomes]) -> Findings:
    seconds = {
        w: {n: np.array(outcomes["all"][f"width-{w}"][n]) for n in OBJECTIVES}
        for w in config.widths
    }
    largest = max(float(np.median(s[n])) for s in seconds.values() for n in s)
    ratios = {w: float(np.median(s["w2"] / s["l2"])) for w, s in seconds.items()}
    widest = config.widths[-1]
    conditions = (
        f"{config.setting.title} and narrower, trained posteriors; {config.rounds} rounds, "
        "the two objectives in turn"
    )
    claim = partial(
        judge,
        conditions=conditions,
        source="Rossi et al. 2023, figure A2",
        published_scale=max(config.widths) >= 512,
    )
    claims = [
        claim(
            "Alignment takes under a minute",
            largest < MINUTE,
            headline=f"{largest:.2g} s at most",
            published="under a minute in most cases",
            ours=f"{largest:.3g} s at most",
            criterion="median time of every width and objective under 60 s",
            value=largest,
        ),
        claim(
            "W2 alignment costs more than weight matching as width grows",
            ratios[widest] > 1,
            headline=f"{ratios[widest]:.1f} times as long at width {widest}",
            published="more, increasingly with width",
            ours=f"{ratios[widest]:.2f} times as long at width {widest}",
            criterion="median ratio of times at the largest width above 1",
            value=ratios[widest],
        ),
    ]
    rows = [
        [w, *(f"{np.median(s[n]):.3g} s" for n in OBJECTIVES), f"{ratios[w]:.2f}"]
        for w, s in seconds.items()
    ]
    title = "Time of one alignment"
    alt = "; ".join(f"width {row[0]}: l2 {row[1]}, w2 {row[2]}" for row in rows)
    return Findings(
        claims,
        [Table(title, ["width", *OBJECTIVES, "w2 / l2"], rows, conditions)],
        [Picture("seconds", title, alt, _figure(seconds))],
    )


def _figure(seconds: Mapping[int, Mapping[str, np.ndarray]]) -> Figure:
    widths = list(seconds)
    with paper():
        figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
        ax = figure.subplots()
        for i, name in enumerate(OBJECTIVES):
            times = np.array([s[name] for s in seconds.values()])
            middle = np.median(times, axis=1)
            beyond = [middle - times.min(axis=1), times.max(axis=1) - middle]
            ax.errorbar(
                widths, middle, yerr=beyond, color=COLOURS[i], marker=MARKERS[i], label=name
            )
        ax.set_yscale("log")
        tick_at(ax, widths, "width of the layers")
        ax.set_ylabel("seconds (median, range)")
        ax.legend()
    return figure


EXPERIMENT = Experiment("timings", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
