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
from onebasin.experiments.claims import Requirement, judge
from onebasin.experiments.common_stages import (
    EVALUATION_RATE,
    OVERHEAD,
    POSTERIOR,
    Align,
    aligned,
    fits,
)
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, flops, problem
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.evaluation import landscape_figure
from onebasin.inference.methods import VI
from onebasin.posterior import load

NAMES = ("q0", "q1", "aligned q1")


@dataclass(frozen=True)
class Grid:
    setting: Setting
    points: int = 25
    examples: int = 2000
    """Training images; their likelihood is scaled up to all of them."""

    @property
    def title(self) -> str:
        return f"{self.points}×{self.points} on {self.examples:,} images, {self.setting.title}"


@dataclass(frozen=True)
class LandscapeConfig:
    grid: Grid
    vi: VI
    accuracy: float
    """On the training images of the grid, of the mean networks."""
    largest_share: float
    together: int = 0


TOY = LandscapeConfig(
    Grid(presets.TOY, 13, 500), presets.TOY_VI, 0.9, 0.1, together=presets.TOGETHER
)
CPU = LandscapeConfig(Grid(presets.CIFAR10_COLD), presets.CPU_VI, 0.45, 0.1)
PAPER = LandscapeConfig(Grid(presets.CIFAR10, 41, 50_000), presets.PAPER_VI_CIFAR, 0.45, 0.1)


def grid_seconds(config: Grid) -> float:
    work = config.points**2 * config.examples * flops(config.setting)
    return OVERHEAD + work / EVALUATION_RATE[config.setting.network]


@step(version=1, seconds=grid_seconds)
def map_plane(config: Grid, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task = problem(config.setting)
    ends = [load(inputs[name], like=task.shapes) for name in ("q0", "q1", "moved")]
    return planes.landscape(
        planes.plane_through(ends, NAMES),
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


def dip(found: Mapping[str, Any], end: int, value: str = "log_posterior") -> float:
    """How far the value falls below the chord on the straight way from q0 to another point."""
    grid = RegularGridInterpolator((found["b"], found["a"]), np.array(found[value]))
    t = np.linspace(0, 1, 101)
    points = np.array(found["points"])
    way = points[0] + t[:, None] * (points[end] - points[0])
    values = grid(way[:, ::-1])
    return float(((1 - t) * values[0] + t * values[-1] - values).max())


def conclude(config: LandscapeConfig, outcomes: Mapping[str, Outcomes]) -> Findings:
    setting = config.grid.setting
    done = outcomes.get("plane")
    holds, ours, fits_met, share = None, "–", [], None
    tables, pictures = [], []
    if done is not None:
        found = done["plane"].result
        before, after = dip(found, 1), dip(found, 2)
        share = after / before if before > 0 else float("nan")
        holds = after <= config.largest_share * before
        ours = f"{before:,.0f} nats between q0 and q1, {after:,.0f} to the aligned q1 ({share:.1%})"
        reached = np.array(found["accuracy"]).max()
        fits_met = [
            Requirement("the best accuracy on the plane is", float(reached), config.accuracy)
        ]
        title = f"Log posterior on the plane of the means, {setting.title}"
        rows = [["q0 to q1", f"{before:,.1f}"], ["q0 to aligned q1", f"{after:,.1f}"]]
        tables.append(Table(title, ["on the straight way from", "largest fall, nats"], rows))
        shown = SimpleNamespace(
            plane=SimpleNamespace(
                points=np.array(found["points"]), names=found["names"], unit=found["unit"]
            ),
            **{k: np.array(found[k]) for k in ("a", "b", "nll", "accuracy", "log_posterior")},
        )
        figure = landscape_figure(shown)  # pyright: ignore[reportArgumentType]
        pictures.append(Picture("plane", title, f"Contours of the log posterior. {ours}.", figure))
    claim = judge(
        "After alignment q0 and q1 lie in one basin of the log posterior",
        holds,
        published="one basin in a 2-D slice on CIFAR-10",
        source="Rossi et al. 2023",
        ours=ours,
        criterion=f"fall below the chord ≤ {config.largest_share:.0%} of the unaligned one",
        conditions=f"{config.grid.title}; {config.vi.epochs} epochs",
        published_scale=setting.same_size(PAPER.grid.setting),
        fits=fits_met,
        value=share,
    )
    return Findings([claim], tables, pictures)


EXPERIMENT = Experiment(
    name="landscape",
    title="The log posterior around two posteriors",
    question="Do q0 and the aligned q1 lie in one basin, and q1 as fitted in another?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
