"""σ of the weights before and after rebasing, and pruning that keeps the weights of lowest σ.

Beside it, of the same rebased means, what keeping the largest weights (or the largest |mean|/σ)
leaves: σ is worth something only if it beats them. And the same of draws rebased our way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.choices import PruningRule
from onebasin.experiments import compact_stages
from onebasin.experiments.claims import Requirement, judge
from onebasin.experiments.common_stages import POSTERIOR
from onebasin.experiments.compact_stages import OURS, CompactDraws, Sources, all_sigmas, compacted
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.diagnosis import pruning_figure, sigma_figure
from onebasin.figures.style import save_figure
from onebasin.posterior import load
from onebasin.pruning import KEEPS, PruningCurve, pruning_curve

SOURCE = "Xiao et al. 2023, figure 5"
SIGMA = "sigma.svg"
KINDS = {"HMC": "hmc", "Ens.": "ensemble"}
BASES = ("q_r", "q_r, ours")
SHARE = 0.1  # of the weights, at which rules are compared


@dataclass(frozen=True)
class SigmaPruning:
    sources: Sources
    accuracy: float
    """Test accuracy that the network of the rebased mean must reach unpruned."""


TOY = SigmaPruning(compact_stages.TOY, accuracy=0.7)
CPU = SigmaPruning(compact_stages.CPU, accuracy=0.85)
PAPER = SigmaPruning(compact_stages.PAPER, accuracy=0.92)


@dataclass(frozen=True)
class Prune:
    setting: Setting
    others: tuple[PruningRule, ...] = ("magnitude", "snr")
    """Rules beside σ, for the rebased means."""
    keeps: tuple[float, ...] = KEEPS

    @property
    def title(self) -> str:
        return f"by σ, {', '.join(self.others)}, {self.setting.title}"


@step(version=3, seconds=lambda config: 1.0 + len(config.keeps))
def prune_means(config: Prune, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """The pruning curve of every posterior, and histograms of σ of the first two."""
    task = problem(config.setting)
    test = dataset(config.setting.data).test
    loaded = {name: load(path, like=task.shapes) for name, path in inputs.items()}
    sigmas = {name: all_sigmas(q) for name, q in loaded.items()}
    shown = {"$q_d$, raw": sigmas["HMC q_d"], "$q_r$, rebased": sigmas["HMC q_r"]}
    save_figure(sigma_figure(shown), work.folder / SIGMA)
    rules: dict[str, tuple[Any, PruningRule]] = {name: (q, "std") for name, q in loaded.items()}
    for name in (f"{kind} {base}" for kind in KINDS for base in BASES):
        rules |= {f"{name} by {by}": (loaded[name], by) for by in config.others}
    return {
        "curves": {
            name: pruning_curve(q, task.apply, test, keeps=config.keeps, by=by).summary()
            for name, (q, by) in rules.items()
        },
        "sigma_median": {name: float(np.median(s)) for name, s in sigmas.items()},
    }


def plan(config: SigmaPruning) -> dict[str, Plan]:
    fits, setting = config.sources.fits(), config.sources.setting
    hmc, ensemble = fits["hmc"], fits["ensemble"]
    ways = {
        "HMC q_d": compacted(hmc, CompactDraws(setting, "first")),
        "HMC q_r": compacted(hmc, CompactDraws(setting, "first", rebase="anchor")),
        "HMC q_r, ours": compacted(hmc, CompactDraws(setting, "first", **OURS)),
        "Ens. q_d": compacted(ensemble, CompactDraws(setting)),
        "Ens. q_r": compacted(ensemble, CompactDraws(setting, rebase="anchor")),
        "Ens. q_r, ours": compacted(ensemble, CompactDraws(setting, **OURS)),
    }
    files = {**{name: stage[POSTERIOR] for name, stage in ways.items()}, "VI": fits["vi"]}
    return {"all": {**ways, "curves": Stage(prune_means, Prune(setting), files)}}


def conclude(config: SigmaPruning, outcomes: Mapping[str, Outcomes]) -> Findings:
    done = outcomes.get("all")
    curves = done["curves"]["curves"] if done else {}
    sigma = done["curves"]["sigma_median"] if done else {}
    accuracy = {name: np.array(c["accuracy"]) for name, c in curves.items()}
    common: dict[str, Any] = {
        "source": SOURCE,
        "conditions": config.sources.title,
        "published_scale": config.sources.setting.same_size(PAPER.sources.setting),
    }

    def fits(kind: str, base: str = "q_r") -> list[Requirement]:
        if not accuracy:
            return []
        whole = float(accuracy[f"{kind} {base}"][0])
        return [Requirement("the rebased mean's test accuracy is", whole, config.accuracy)]

    claims = []
    for kind in KINDS:
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
                fits=fits(kind),
                **common,
            )
        )
        for base in BASES:
            rules = (f"{kind} q_d", *(f"{kind} {base} by {by}" for by in ("magnitude", "snr")))
            at = _at_share(curves, (f"{kind} {base}", *rules))
            whose, about = kind, {**common, "published": "σ after rebasing tells what matters"}
            if base != "q_r":
                whose = f"{kind}, ours"
                about |= {"published": "not in the paper", "source": "ours"}
            claims.append(
                judge(
                    f"At {SHARE:.0%} the lowest σ keep more than raw σ and than size ({whose})",
                    at[f"{kind} {base}"] > max(at[name] for name in rules[:2]) if at else None,
                    ours="; ".join(f"{name} {value:.1%}" for name, value in at.items()) or "–",
                    criterion=f"accuracy with {SHARE:.0%} of the weights above that of q_d by σ "
                    f"and of {base} by magnitude",
                    value=at.get(f"{kind} {base}"),
                    fits=fits(kind, base),
                    **about,
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
            fits=fits("HMC"),
            **common,
        )
    )
    if done is None:
        return Findings(claims)
    first = next(iter(curves.values()))
    rows = [[name, *(f"{a:.1%}" for a in accuracy[name])] for name in curves]
    columns = ["mean of", *(f"{kept:.0%}" for kept in first["kept"])]
    title = "Test accuracy against the share of weights kept"
    spread = "; ".join(f"{name}: median σ {value:.4f}" for name, value in sigma.items())
    return Findings(
        claims,
        [Table(title, columns, rows, f"{first['examples']:,} test images. {spread}.")],
        [
            *(_picture(kind, curves) for kind in KINDS),
            Picture("sigma", "σ of the weights", spread, done["curves"].folder / SIGMA),
        ],
    )


def _picture(kind: str, all_curves: Mapping[str, Any]) -> Picture:
    """The curves of one kind of draws, and that of VI."""
    curves = {n: c for n, c in all_curves.items() if n.startswith(kind) or n == "VI"}
    figure = pruning_figure({name: PruningCurve.of(c) for name, c in curves.items()})
    alt = "; ".join(
        f"{name}: {c['accuracy'][0]:.1%} with all weights, {c['accuracy'][-1]:.1%} with few"
        for name, c in curves.items()
    )
    return Picture(f"accuracy-{KINDS[kind]}", f"Accuracy against weights kept, {kind}", alt, figure)


def _at_share(curves: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    """Accuracy where the share kept is closest to `SHARE`."""
    return {
        name: curves[name]["accuracy"][int(np.abs(np.array(curves[name]["kept"]) - SHARE).argmin())]
        for name in (names if curves else ())
    }


EXPERIMENT = Experiment(
    name="sigma-pruning",
    title="Pruning by σ",
    question="Does σ tell which weights matter, once the draws it is taken over are in one basin?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
