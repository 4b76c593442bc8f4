"""The log posterior on the plane through q0, q1 and the aligned q1."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from onebasin.data import Split
from onebasin.evaluation import landscapes as planes
from onebasin.experiments import presets
from onebasin.experiments.claims import NEGLIGIBLE, Requirement, judge, share_left
from onebasin.experiments.common_stages import (
    POSTERIOR,
    Align,
    aligned,
    evaluation_seconds,
    fits,
    load_inputs,
)
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, problem
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.evaluation import landscape_figure
from onebasin.inference.methods import VI


@dataclass(frozen=True)
class Grid:
    setting: Setting
    points: int = 25
    examples: int = 2000
    """Training images; their likelihood is scaled up to the whole training set."""

    @property
    def title(self) -> str:
        return f"{self.points}×{self.points} on {self.examples:,} images, {self.setting.title}"


@dataclass(frozen=True)
class LandscapeConfig:
    grid: Grid
    vi: VI
    accuracy: float
    """That the best point of the plane must reach on the training images of the grid."""
    together: int = 0
    largest_share: float = NEGLIGIBLE
    """Share of the drop towards q1 as fitted that may remain towards the aligned q1."""


TOY = LandscapeConfig(Grid(presets.TOY, 13, 500), presets.TOY_VI, 0.9, presets.TOGETHER, 0.1)
CPU = LandscapeConfig(Grid(presets.CIFAR10_COLD), presets.CPU_VI, 0.45)
PAPER = LandscapeConfig(Grid(presets.CIFAR10, 41, 50_000), presets.PAPER_VI_CIFAR, 0.45)


def grid_seconds(config: Grid) -> float:
    return evaluation_seconds(config.setting, config.points**2 * config.examples)


@step(version=1, seconds=grid_seconds)
def map_plane(config: Grid, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, loaded = problem(config.setting), load_inputs(config.setting, inputs)
    ends = [loaded[name] for name in ("q0", "q1", "moved")]
    return planes.landscape(
        planes.plane_through(ends, ("q0", "q1", "aligned q1")),
        task.apply,
        Split(task.x, task.y).first(config.examples),
        points=config.points,
        log_prior=task.log_prior,
        likelihood_scale=task.likelihood_scale,
        num_train=task.num_examples,
        progress=work.progress,
    ).summary()


def plan(config: LandscapeConfig) -> dict[str, Plan]:
    setting = config.grid.setting
    q0, q1 = fits(setting, config.vi, 2, together=config.together)
    moved = aligned(Align(setting), q0, q1)
    files = {"q0": q0, "q1": q1, "moved": moved[POSTERIOR]}
    return {"plane": {"align": moved, "plane": Stage(map_plane, config.grid, files)}}


def fall(found: Mapping[str, Any], end: int) -> float:
    """How far the log posterior drops below the chord on the line from q0 to another point."""
    grid = RegularGridInterpolator((found["b"], found["a"]), np.array(found["log_posterior"]))
    t = np.linspace(0, 1, 101)
    points = np.array(found["points"])
    line = points[0] + t[:, None] * (points[end] - points[0])
    values = grid(line[:, ::-1])
    return float(((1 - t) * values[0] + t * values[-1] - values).max())


def conclude(config: LandscapeConfig, outcomes: Mapping[str, Outcomes]) -> Findings:
    setting, found = config.grid.setting, outcomes["plane"]["plane"].result
    before, after = fall(found, 1), fall(found, 2)
    reached = float(np.array(found["accuracy"]).max())
    less = config.largest_share > NEGLIGIBLE
    claim = judge(
        "Alignment removes most of the drop of the log posterior between q0 and q1"
        if less
        else "After alignment q0 and q1 lie in one basin of the log posterior",
        after <= config.largest_share * before,
        published="one basin in a 2-D slice on CIFAR-10"
        + (" (claimed here: most of the drop is removed)" if less else ""),
        source="Rossi et al. 2023",
        figure="Rossi et al., slice of the log posterior on CIFAR-10",
        headline=f"{share_left(after, before, 0)} of the drop remains",
        ours=f"drop of {before:,.0f} nats between q0 and q1, {after:,.0f} between q0 and the "
        f"aligned q1 ({share_left(after, before)} remains)",
        criterion=f"drop below the chord at most {config.largest_share:.0%} of the unaligned one",
        conditions=f"{config.grid.title}; {config.vi.epochs} epochs",
        published_scale=setting.same_size(PAPER.grid.setting),
        fits=[Requirement("the best accuracy on the plane is", reached, config.accuracy)],
        value=after / before if before > 0 else None,
    )
    title = f"Log posterior on the plane of the means, {setting.title}"
    rows = [["q0 to q1", f"{before:,.1f}"], ["q0 to aligned q1", f"{after:,.1f}"]]
    table = Table(title, ["on the straight line from", "largest drop, nats"], rows)
    plane = SimpleNamespace(
        points=np.array(found["points"]), names=found["names"], unit=found["unit"]
    )
    arrays = {k: np.array(found[k]) for k in ("a", "b", "nll", "accuracy", "log_posterior")}
    score = {"score_name": "accuracy", "score": arrays["accuracy"]}
    shown: Any = SimpleNamespace(plane=plane, **arrays, **score)  # has what the figure reads
    alt = f"Contours of the log posterior. {claim.ours}."
    return Findings([claim], [table], [Picture("plane", title, alt, landscape_figure(shown))])


EXPERIMENT = Experiment("landscape", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
