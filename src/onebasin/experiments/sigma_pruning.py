"""σ of the weights before and after rebasing, and pruning that keeps the weights of lowest σ.

For comparison, the same rebased means are pruned by magnitude and by |mean|/σ: σ is useful only if
it beats them. All of it is repeated for draws rebased as we do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.choices import PruningRule
from onebasin.experiments import compact_stages
from onebasin.experiments.claims import Claim, Requirement, judge
from onebasin.experiments.common_stages import POSTERIOR, load_inputs
from onebasin.experiments.compact_stages import Sources, all_sigmas, as_published
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.diagnosis import pruning_figure, sigma_figure
from onebasin.figures.style import save_figure
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
    """Test accuracy that the network of the rebased mean must reach before pruning."""


TOY = SigmaPruning(compact_stages.TOY, accuracy=0.7)
CPU = SigmaPruning(compact_stages.CPU, accuracy=0.85)
PAPER = SigmaPruning(compact_stages.PAPER, accuracy=0.92)


@dataclass(frozen=True)
class Prune:
    setting: Setting
    others: tuple[PruningRule, ...] = ("magnitude", "snr")
    """Rules other than σ, for the rebased means."""
    keeps: tuple[float, ...] = KEEPS

    @property
    def title(self) -> str:
        return f"by σ, {', '.join(self.others)}, {self.setting.title}"


@step(version=3, seconds=lambda config: 1.0 + len(config.keeps))
def prune_means(config: Prune, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """The pruning curve of every posterior, and histograms of σ of HMC raw and rebased."""
    task, test = problem(config.setting), dataset(config.setting.data).test
    loaded = load_inputs(config.setting, inputs)
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
    ways = {**as_published(config.sources, "HMC"), **as_published(config.sources, "Ens.")}
    vi = config.sources.fits()["vi"]
    files = {**{name: stage[POSTERIOR] for name, stage in ways.items()}, "VI": vi}
    return {"all": {**ways, "curves": Stage(prune_means, Prune(config.sources.setting), files)}}


def conclude(config: SigmaPruning, outcomes: Mapping[str, Outcomes]) -> Findings:
    done = outcomes["all"]["curves"]
    curves, sigma = done["curves"], done["sigma_median"]
    first = next(iter(curves.values()))
    rows = [[name, *(f"{a:.1%}" for a in curve["accuracy"])] for name, curve in curves.items()]
    columns = ["mean of", *(f"{kept:.0%}" for kept in first["kept"])]
    title = "Test accuracy against the share of weights kept"
    medians = "; ".join(f"{name}: median σ {value:.4f}" for name, value in sigma.items())
    return Findings(
        _claims(config, curves, sigma),
        [Table(title, columns, rows, f"{first['examples']:,} test images. {medians}.")],
        [
            *(_picture(kind, curves) for kind in KINDS),
            Picture("sigma", "σ of the weights", medians, done.folder / SIGMA),
        ],
    )


def _claims(
    config: SigmaPruning, curves: Mapping[str, Any], sigma: Mapping[str, float]
) -> list[Claim]:
    mean = {name: float(np.mean(curve["accuracy"])) for name, curve in curves.items()}

    def claim(name: str, *what: Any, **about: Any) -> Claim:
        """A claim about the rebased mean of a name, which must be accurate enough unpruned."""
        whole = float(curves[name]["accuracy"][0])
        fits = [Requirement("the rebased mean's test accuracy is", whole, config.accuracy)]
        scale = config.sources.setting.same_size(PAPER.sources.setting)
        common = {"conditions": config.sources.title, "published_scale": scale, "fits": fits}
        return judge(*what, **{"source": SOURCE, **common, **about})

    claims = []
    for kind in KINDS:
        raw, rebased = f"{kind} q_d", f"{kind} q_r"
        claims.append(
            claim(
                rebased,
                f"After rebasing, pruning by σ keeps more of the accuracy ({kind})",
                mean[rebased] > mean[raw],
                headline=f"{kind} mean accuracy {mean[raw]:.0%} → {mean[rebased]:.0%}",
                published="pruning by σ works after rebasing, not before",
                ours=f"mean accuracy over all shares kept: {mean[rebased]:.1%} rebased, "
                f"{mean[raw]:.1%} raw",
                criterion="mean accuracy over the published shares (100 % to 1 %) is higher",
                value=mean[rebased],
            )
        )
        for base in BASES:
            name, size = f"{kind} {base}", f"{kind} {base} by magnitude"
            at = {n: _at_share(curves[n]) for n in (name, raw, size, f"{name} by snr")}
            whose = kind
            about: dict[str, Any] = {"published": "σ after rebasing shows which weights matter"}
            if base != "q_r":
                whose = f"{kind}, ours"
                about |= {"published": "not in the paper", "source": "ours"}
            claims.append(
                claim(
                    name,
                    f"With {SHARE:.0%} of the weights, rebased σ beats raw σ and magnitude "
                    f"({whose})",
                    at[name] > max(at[raw], at[size]),
                    ours="; ".join(f"{n} {value:.1%}" for n, value in at.items()),
                    criterion=f"accuracy with {SHARE:.0%} of the weights above that of q_d by σ "
                    f"and of {base} by magnitude",
                    headline=f"{whose} at {SHARE:.0%}: σ {at[name]:.0%}, magnitude {at[size]:.0%}",
                    value=at[name],
                    **about,
                )
            )
    smaller = claim(
        "HMC q_r",
        "Rebasing makes the σ of the weights smaller",
        sigma["HMC q_r"] < sigma["HMC q_d"],
        headline=f"median σ {sigma['HMC q_d']:.3f} → {sigma['HMC q_r']:.3f}",
        published="histograms move to smaller σ",
        ours=f"median σ {sigma['HMC q_d']:.4f} raw, {sigma['HMC q_r']:.4f} rebased",
        criterion="median σ of q_r below that of q_d (HMC)",
        value=sigma["HMC q_r"],
    )
    return [*claims, smaller]


def _picture(kind: str, all_curves: Mapping[str, Any]) -> Picture:
    """The curves of one kind of draws, and of VI."""
    curves = {n: c for n, c in all_curves.items() if n.startswith(kind) or n == "VI"}
    figure = pruning_figure({name: PruningCurve.of(c) for name, c in curves.items()})
    alt = "; ".join(
        f"{name}: {c['accuracy'][0]:.1%} with all weights, {c['accuracy'][-1]:.1%} with few"
        for name, c in curves.items()
    )
    return Picture(f"accuracy-{KINDS[kind]}", f"Accuracy against weights kept, {kind}", alt, figure)


def _at_share(curve: Mapping[str, Any]) -> float:
    """The accuracy where the share kept is closest to `SHARE`."""
    return curve["accuracy"][int(np.abs(np.array(curve["kept"]) - SHARE).argmin())]


EXPERIMENT = Experiment("sigma-pruning", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
