"""The loss of two networks and of points between them through training, as trained and rebased."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onebasin.evaluation.transposition_studies import Dynamics as Moment
from onebasin.evaluation.transposition_studies import as_json, dynamics_study, mean_and_std
from onebasin.experiments.claims import judge, plus_minus
from onebasin.experiments.common_stages import Fit, fit_seconds
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.transpositions import dynamics_figure
from onebasin.inference.methods import MAP


@dataclass(frozen=True)
class Study:
    setting: Setting
    method: MAP
    runs: int = 5
    moments: int = 12
    points: int = 11
    examples: int | None = None
    """Test images; all of them if None."""
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{self.runs} runs of {self.method.epochs} epochs, {self.setting.title}"


@dataclass(frozen=True)
class DynamicsConfig:
    study: Study
    largest_share: float
    """Of the barrier at the end of training that may be left after rebasing."""


TOY_SETTING = Setting("digits", width=64, depth=1, prior_variance=1.0)
TOY_METHOD = MAP(epochs=40, batch_size=250, learning_rate=1e-2)
CPU_SETTING = Setting("mnist", width=512, depth=1, prior_variance=1.0)
# The authors' own: stochastic gradient descent with momentum on the mean loss.
PAPER_METHOD = MAP(
    epochs=50, batch_size=64, learning_rate=1e-3, optimiser="sgd", schedule="constant"
)
CPU_METHOD = MAP(epochs=15, batch_size=200, learning_rate=1e-3)

TOY = DynamicsConfig(Study(TOY_SETTING, TOY_METHOD, runs=2, moments=5, points=5), 0.3)
CPU = DynamicsConfig(Study(CPU_SETTING, CPU_METHOD, runs=5, examples=5000), 0.1)
PAPER = DynamicsConfig(Study(CPU_SETTING, PAPER_METHOD, runs=5), 0.1)


def study_seconds(config: Study) -> float:
    training = fit_seconds(Fit(config.setting, config.method, runs=2 * config.runs))
    return training + 0.5 * config.runs * config.moments


@step(version=1, seconds=study_seconds)
def study_dynamics(config: Study, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs
    records = dynamics_study(
        problem(config.setting),
        config.method,
        key=jax.random.key(config.seed),
        runs=config.runs,
        moments=config.moments,
        symmetry=symmetry(config.setting),
        data=dataset(config.setting.data).test.first(config.examples),
        points=config.points,
        progress=work.progress,
    )
    return {"moments": as_json(records)}


def plan(config: DynamicsConfig) -> dict[str, Plan]:
    return {"all": {"study": Stage(study_dynamics, config.study)}}


def barrier(moment: Moment, which: str) -> float:
    """The largest rise above the chord along the line."""
    t, loss = np.array(moment.t), np.array(getattr(moment, which))
    return max(0.0, float((loss - (1 - t) * loss[0] - t * loss[-1]).max()))


def conclude(config: DynamicsConfig, outcomes: Mapping[str, Outcomes]) -> Findings:
    study = config.study
    common: dict[str, Any] = {
        "source": "Xiao et al. 2023, figure 2",
        "conditions": f"{study.title}; {study.method.optimiser}, {study.points} points",
        "published_scale": study.setting.same_size(PAPER.study.setting),
    }
    done = outcomes.get("all")
    if done is None:
        return Findings([_growth(None, "–", common)])
    rows: list[dict[str, Any]] = done["study"]["moments"]
    lists = ("t", "before", "after")
    moments = [Moment(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in rows]
    found = {
        which: mean_and_std(moments, "epoch", lambda m, which=which: barrier(m, which))
        for which in ("before", "after")
    }
    epochs, before, _ = found["before"]
    after = found["after"][1]

    def said(which: str, index: int) -> str:
        _, mean, std = found[which]
        error = float(np.nan_to_num(std[index])) / study.runs**0.5
        return plus_minus(float(mean[index]), error)

    text = f"{said('before', 0)} nats at the start, {said('before', -1)} at the end"
    claims = [
        _growth(bool(before[-1] > before[0] and before[-1] > 3 * after[-1]), text, common),
        judge(
            "Rebased, it is gone",
            bool(after[-1] <= config.largest_share * before[-1]),
            published="no barrier after rebasin",
            ours=f"{said('before', -1)} → {said('after', -1)} nats at the end of training",
            criterion=f"mean barrier at the end ≤ {config.largest_share:.0%} of the unaligned one",
            value=float(after[-1]),
            **common,
        ),
    ]
    listed = [
        [f"{e:.3g}", said("before", i), said("after", i)] for i, e in enumerate(epochs.tolist())
    ]
    title = f"Barrier through training, {study.setting.title}, test data"
    table = Table(title, ["epoch", "as trained, nats", "rebased, nats"], listed)
    alt = f"Loss of both networks and between them through training. As trained: {text}."
    picture = Picture(
        "losses", f"Loss through training, {study.title}", alt, dynamics_figure(moments)
    )
    return Findings(claims, [table], [picture])


def _growth(holds: bool | None, ours: str, common: Mapping[str, Any]) -> Any:
    return judge(
        "A barrier between two networks grows as they are trained",
        holds,
        published="a barrier grows",
        ours=ours,
        criterion="mean barrier at the end above that at the start, and above the rebased one",
        **common,
    )


EXPERIMENT = Experiment(
    name="dynamics",
    title="Barriers through training",
    question="When does the barrier between two networks arise, and is it there after rebasing?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
