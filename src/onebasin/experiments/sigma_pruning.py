"""σ of the weights before and after rebasing, and pruning that keeps the weights of lowest σ."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from onebasin.experiments import draws
from onebasin.experiments.claims import Requirement, judge
from onebasin.experiments.draws import Compact, Sources, all_sigmas, compacted
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem
from onebasin.experiments.stage import Stage, Work, step
from onebasin.experiments.steps import POSTERIOR
from onebasin.posterior import load
from onebasin.pruning import KEEPS, pruning_curve
from onebasin.report.figures_diagnosis import pruning_figure, sigma_figure
from onebasin.report.style import save_figure

SOURCE = "Xiao et al. 2023, figure 5"
SIGMA = "sigma.svg"


@dataclass(frozen=True)
class SigmaPruning:
    sources: Sources
    accuracy: float
    """Test accuracy that the network of the rebased mean must reach unpruned."""


TOY = SigmaPruning(draws.TOY, accuracy=0.7)
CPU = SigmaPruning(draws.CPU, accuracy=0.85)
PAPER = SigmaPruning(draws.PAPER, accuracy=0.92)


@dataclass(frozen=True)
class Prune:
    setting: Setting
    by: str = "std"
    keeps: tuple[float, ...] = KEEPS

    @property
    def title(self) -> str:
        return f"by {self.by}, {self.setting.title}"


@step(version=1, seconds=lambda config: 1.0 + 0.5 * len(config.keeps))
def prune_means(config: Prune, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """The pruning curve of every posterior, and histograms of σ of the first two."""
    task = problem(config.setting)
    test = dataset(config.setting.data).test
    loaded = {name: load(path, like=task.shapes) for name, path in inputs.items()}
    sigmas = {name: all_sigmas(q) for name, q in loaded.items()}
    shown = {"$q_d$, raw": sigmas["HMC q_d"], "$q_r$, rebased": sigmas["HMC q_r"]}
    save_figure(sigma_figure(shown), work.folder / SIGMA)
    return {
        "curves": {
            name: pruning_curve(
                q,
                task.apply,
                test,
                keeps=config.keeps,
                by=config.by,  # pyright: ignore[reportArgumentType]
            ).summary()
            for name, q in loaded.items()
        },
        "sigma_median": {name: float(np.median(s)) for name, s in sigmas.items()},
    }


def plan(config: SigmaPruning) -> dict[str, Plan]:
    fits, setting = config.sources.fits(), config.sources.setting
    ways = {
        "HMC q_d": compacted(fits["hmc"], Compact(setting, "first")),
        "HMC q_r": compacted(fits["hmc"], Compact(setting, "first", rebase="anchor")),
        "Ens. q_d": compacted(fits["ensemble"], Compact(setting)),
        "Ens. q_r": compacted(fits["ensemble"], Compact(setting, rebase="anchor")),
    }
    files = {**{name: stage[POSTERIOR] for name, stage in ways.items()}, "VI": fits["vi"]}
    return {"all": {**ways, "curves": Stage(prune_means, Prune(setting), files)}}


def conclude(config: SigmaPruning, outcomes: Mapping[str, Outcomes]) -> Findings:
    done = outcomes.get("all")
    curves = done["curves"]["curves"] if done else {}
    sigma = done["curves"]["sigma_median"] if done else {}
    accuracy = {name: np.array(c["accuracy"]) for name, c in curves.items()}
    fits = []
    if accuracy:
        whole = float(accuracy["HMC q_r"][0])
        fits = [Requirement("the rebased mean's test accuracy is", whole, config.accuracy)]
    common: dict[str, Any] = {
        "source": SOURCE,
        "conditions": config.sources.title,
        "published_scale": config.sources.setting.same_size(PAPER.sources.setting),
        "fits": fits,
    }
    claims = []
    for kind in ("HMC", "Ens."):
        mean = {k: float(a.mean()) for k, a in accuracy.items()}
        claims.append(
            judge(
                f"Rebased, the weights of lowest σ keep more of the accuracy ({kind})",
                mean[f"{kind} q_r"] > mean[f"{kind} q_d"] if mean else None,
                published="pruning by σ works after rebasing, not before",
                ours=(
                    f"mean accuracy over all shares kept: {mean[f'{kind} q_r']:.1%} rebased, "
                    f"{mean[f'{kind} q_d']:.1%} raw"
                    if mean
                    else "–"
                ),
                criterion="mean accuracy over the published shares (100 % to 1 %) is higher",
                value=mean.get(f"{kind} q_r"),
                **common,
            )
        )
    claims.append(
        judge(
            "Rebasing makes the weights' σ smaller",
            sigma["HMC q_r"] < sigma["HMC q_d"] if sigma else None,
            published="histograms move to smaller σ",
            ours=(
                f"median σ {sigma['HMC q_d']:.4f} raw, {sigma['HMC q_r']:.4f} rebased"
                if sigma
                else "–"
            ),
            criterion="median σ of q_r below that of q_d (HMC)",
            value=sigma.get("HMC q_r"),
            **common,
        )
    )
    if done is None:
        return Findings(claims)
    first = next(iter(curves.values()))
    rows = [[name, *(f"{a:.1%}" for a in accuracy[name])] for name in curves]
    columns = ["mean of", *(f"{kept:.0%}" for kept in first["kept"])]
    title = "Test accuracy against the share of weights kept"
    shown = {
        name: SimpleNamespace(kept=np.array(c["kept"]), accuracy=np.array(c["accuracy"]))
        for name, c in curves.items()
    }
    figure = pruning_figure(shown)  # pyright: ignore[reportArgumentType]
    alt = "; ".join(f"{row[0]}: {row[1]} with all weights, {row[6]} with half" for row in rows)
    spread = "; ".join(f"{name}: median σ {value:.4f}" for name, value in sigma.items())
    return Findings(
        claims,
        [Table(title, columns, rows, f"{first['examples']:,} test images. {spread}.")],
        [
            Picture("accuracy", title, alt, figure),
            Picture("sigma", "σ of the weights", spread, done["curves"].folder / SIGMA),
        ],
    )


EXPERIMENT = Experiment(
    name="sigma-pruning",
    title="Pruning by σ",
    question="Does σ tell which weights matter, once the draws it is taken over are in one basin?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
