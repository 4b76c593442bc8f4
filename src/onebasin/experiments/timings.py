"""How long alignment takes as width grows, by l2 (weight matching) and by w2."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from onebasin.alignment import align
from onebasin.experiments import presets
from onebasin.experiments.claims import judge
from onebasin.experiments.common_stages import fits
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.style import COLOURS, COLUMN, MARKERS, paper
from onebasin.inference.methods import VI
from onebasin.posterior import load

OBJECTIVES = ("l2", "w2")
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
    rounds: int
    together: int = 0


TOY = Timings(presets.TOY, (8, 128), presets.TOY_VI, rounds=5, together=presets.TOGETHER)
CPU = Timings(presets.MNIST, (64, 128, 256, 512), presets.CPU_VI, rounds=5)
PAPER = Timings(presets.MNIST, (64, 128, 256, 512, 1024), presets.PAPER_VI_MNIST, rounds=5)


@step(version=1, seconds=lambda config: 2.0 * config.rounds * (config.setting.width / 512) ** 2)
def time_alignment(config: Time, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """Both objectives in turn, so that whatever else the machine does slows both alike."""
    del work
    task, sym = problem(config.setting), symmetry(config.setting)
    q0, q1 = (load(inputs[name], like=task.shapes) for name in ("q0", "q1"))
    seconds: dict[str, list[float]] = {name: [] for name in OBJECTIVES}
    for turn in range(config.rounds + 1):
        for name in OBJECTIVES:
            began = time.perf_counter()
            align(q1, to=q0, symmetry=sym, objective=name)
            if turn > 0:  # the first turn warms up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def plan(config: Timings) -> dict[str, Plan]:
    stages = {}
    for width in config.widths:
        setting = replace(config.setting, width=width)
        q0, q1 = fits(setting, config.vi, 2, together=config.together)
        stages[f"width-{width}"] = Stage(
            time_alignment, Time(setting, config.rounds), {"q0": q0, "q1": q1}
        )
    return {"all": stages}


def conclude(config: Timings, outcomes: Mapping[str, Outcomes]) -> Findings:
    conditions = (
        f"{config.setting.title} and narrower, trained posteriors; {config.rounds} rounds, "
        "both objectives in turn"
    )
    done = outcomes.get("all")
    seconds = (
        {w: {n: np.array(done[f"width-{w}"][n]) for n in OBJECTIVES} for w in config.widths}
        if done
        else {}
    )
    largest = max((float(np.median(s[n])) for s in seconds.values() for n in s), default=None)
    ratios = {w: float(np.median(s["w2"] / s["l2"])) for w, s in seconds.items()}
    same: dict[str, Any] = {"conditions": conditions, "source": "Rossi et al. 2023, figure A2"}
    widest = config.widths[-1]
    claims = [
        judge(
            "Alignment takes under a minute",
            None if largest is None else largest < MINUTE,
            published="under a minute in most cases",
            ours="–" if largest is None else f"{largest:.3g} s at most",
            criterion="median time of every width and objective under 60 s",
            published_scale=max(config.widths) >= 512,
            value=largest,
            **same,
        ),
        judge(
            "W2 alignment costs more than weight matching as width grows",
            ratios[widest] > 1 if ratios else None,
            published="more, increasingly with width",
            ours="–" if not ratios else f"{ratios[widest]:.2f} times as long at width {widest}",
            criterion="median ratio of times at the largest width above 1",
            published_scale=max(config.widths) >= 512,
            value=ratios.get(widest),
            **same,
        ),
    ]
    if not seconds:
        return Findings(claims)
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
    with paper():
        figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
        ax: Any = figure.subplots()
        for i, name in enumerate(OBJECTIVES):
            times = [s[name] for s in seconds.values()]
            middle = np.array([np.median(t) for t in times])
            spread = [middle - [t.min() for t in times], [t.max() for t in times] - middle]
            ax.errorbar(
                list(seconds), middle, yerr=spread, color=COLOURS[i], marker=MARKERS[i], label=name
            )
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(list(seconds))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.set_xlabel("width of the layers")
        ax.set_ylabel("seconds (median, range)")
        ax.legend()
    return figure


EXPERIMENT = Experiment(
    name="timings",
    title="How long alignment takes",
    question="How does the time of an alignment grow with width, and what does scoring σ cost?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
