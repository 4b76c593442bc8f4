"""The loss of two networks and of points between them through training, as trained and rebased."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onebasin.evaluation.transposition_studies import Dynamics as Moment
from onebasin.evaluation.transposition_studies import (
    Record,
    as_json,
    dynamics_study,
    mean_and_std,
)
from onebasin.experiments.claims import judge, plus_minus, removal, share_left, words_left
from onebasin.experiments.common_stages import Fit, fit_seconds
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.experiments.transposition_figures import dynamics_figure
from onebasin.inference.methods import MAP

TOY_SETTING = Setting("digits", width=64, depth=1, prior_variance=1.0)
TOY_METHOD = MAP(epochs=40, batch_size=250, learning_rate=1e-2)
CPU_SETTING = Setting("mnist", width=512, depth=1, prior_variance=1.0)
CPU_METHOD = MAP(epochs=15, batch_size=200, learning_rate=1e-3)
# The authors' own: stochastic gradient descent with momentum on the mean loss.
PAPER_METHOD = MAP(
    epochs=50, batch_size=64, learning_rate=1e-3, optimiser="sgd", schedule="constant"
)


@dataclass(frozen=True)
class Study:
    """Networks that are trained, several times over; shared by all studies of transpositions."""

    setting: Setting
    method: MAP
    runs: int = 5
    points: int = 11
    """On the line between two networks."""
    seed: int = 0

    def seconds_of(self, networks: int) -> float:
        return fit_seconds(Fit(self.setting, self.method, runs=networks))

    def perform(self, study: Callable[..., Sequence[Record]], work: Work, **options: Any) -> Any:
        """The records of a study of this setting, as JSON."""
        records = study(
            problem(self.setting),
            self.method,
            key=jax.random.key(self.seed),
            runs=self.runs,
            symmetry=symmetry(self.setting),
            points=self.points,
            progress=work.progress,
            **options,
        )
        return as_json(records)


class OverRuns:
    """The mean of a value over the runs of a study, against another, with standard errors."""

    def __init__(
        self, records: Sequence[Record], x: str, y: str | Callable[[Any], float], runs: int
    ) -> None:
        self.xs, self.mean, std = mean_and_std(records, x, y)
        self.error = np.nan_to_num(std) / runs**0.5

    def text(self, index: int, times: float = 1) -> str:
        return plus_minus(times * float(self.mean[index]), times * float(self.error[index]))


@dataclass(frozen=True)
class DynamicsStudy(Study):
    moments: int = 12
    examples: int | None = None
    """Test images; None for all."""

    @property
    def title(self) -> str:
        return f"{self.runs} runs of {self.method.epochs} epochs, {self.setting.title}"


@dataclass(frozen=True)
class DynamicsConfig:
    study: DynamicsStudy
    largest_share: float | None = None
    """Share of the barrier that may remain, where less is claimed than that none does."""


TOY = DynamicsConfig(DynamicsStudy(TOY_SETTING, TOY_METHOD, runs=2, moments=5, points=5), 0.3)
CPU = DynamicsConfig(DynamicsStudy(CPU_SETTING, CPU_METHOD, runs=5, examples=5000))
PAPER = DynamicsConfig(DynamicsStudy(CPU_SETTING, PAPER_METHOD, runs=5))


def dynamics_seconds(config: DynamicsStudy) -> float:
    return config.seconds_of(2 * config.runs) + 0.5 * config.runs * config.moments


@step(version=1, seconds=dynamics_seconds)
def study_dynamics(config: DynamicsStudy, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs
    data = dataset(config.setting.data).test.first(config.examples)
    return {"moments": config.perform(dynamics_study, work, moments=config.moments, data=data)}


def plan(config: DynamicsConfig) -> dict[str, Plan]:
    return {"all": {"study": Stage(study_dynamics, config.study)}}


def barrier(moment: Moment, which: str) -> float:
    """The largest rise above the chord along the line."""
    t, loss = np.array(moment.t), np.array(getattr(moment, which))
    return max(0.0, float((loss - (1 - t) * loss[0] - t * loss[-1]).max()))


def conclude(config: DynamicsConfig, outcomes: Mapping[str, Outcomes]) -> Findings:
    study = config.study
    rows: list[dict[str, Any]] = outcomes["all"]["study"]["moments"]
    lists = ("t", "before", "after")
    moments = [Moment(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in rows]
    before, after = (
        OverRuns(moments, "epoch", partial(barrier, which=which), study.runs)
        for which in ("before", "after")
    )
    claim = partial(
        judge,
        source="Xiao et al. 2023, figure 2",
        conditions=f"{study.title}; {study.method.optimiser}, {study.points} points",
        published_scale=study.setting.same_size(PAPER.study.setting),
    )
    start, end, left = (float(v) for v in (before.mean[0], before.mean[-1], after.mean[-1]))
    removed = removal(left, float(after.error[-1]), end, config.largest_share)
    claims = [
        claim(
            "A barrier between two networks grows as they are trained",
            end > start and end > 3 * left,
            headline=f"{start:.2g} → {end:.2g} nats in training",
            published="a barrier grows",
            ours=f"{before.text(0)} nats at the start, {before.text(-1)} at the end",
            criterion="mean barrier at the end above that at the start, and above three times the "
            "rebased one",
        ),
        claim(
            f"After rebasing, {removed.words} at the end of training",
            removed.holds,
            published=removed.beside("no barrier after rebasing"),
            ours=f"{before.text(-1)} → {after.text(-1)} nats at the end of training "
            f"({words_left(left, end)})",
            criterion=f"mean over runs: {removed.criterion}",
            headline=f"{end:.2g} → {left:.2g} nats ({share_left(left, end)})",
            value=left,
            stderr=float(after.error[-1]),
        ),
    ]
    listed = [
        [f"{epoch:.3g}", before.text(i), after.text(i)]
        for i, epoch in enumerate(before.xs.tolist())
    ]
    title = f"Barrier through training, {study.setting.title}, test data"
    table = Table(title, ["epoch", "as trained, nats", "rebased, nats"], listed)
    alt = f"Loss of both networks and between them through training. As trained: {claims[0].ours}."
    caption = f"Loss through training, {study.title}"
    return Findings(claims, [table], [Picture("losses", caption, alt, dynamics_figure(moments))])


EXPERIMENT = Experiment("dynamics", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
