"""Is the posterior close to unimodal once permutations are removed? Chains before and after.

Alignment makes even chains that share no mode look more alike, so the same alignment of a null
(chains scrambled so that they share none) stands beside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from onebasin.diagnosis import diagnose
from onebasin.experiments import compact_stages
from onebasin.experiments.claims import judge, plus_minus
from onebasin.experiments.compact_stages import Sources
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.diagnosis import diagnosis_figure
from onebasin.figures.style import save_figure
from onebasin.posterior import load
from onebasin.tensor_files import finite

FIGURE = "diagnosis.svg"
SOURCE = "Xiao et al. 2023, figure 4 (a conjecture)"


@dataclass(frozen=True)
class Diagnose:
    setting: Setting
    pairs: int = 16
    points: int = 11
    weights: int = 20_000
    examples: int | None = None

    @property
    def title(self) -> str:
        return f"{self.pairs} pairs of draws, {self.setting.title}"


@dataclass(frozen=True)
class Unimodality:
    sources: Sources
    diagnose: Diagnose
    largest_share: float
    """Of the barrier between chains that may be left after alignment."""
    not_unimodal: float
    """Share of weights that may still not be unimodal."""


TOY = Unimodality(compact_stages.TOY, Diagnose(compact_stages.TOY.setting, 6, 5, 1000), 0.5, 0.05)
CPU = Unimodality(
    compact_stages.CPU, Diagnose(compact_stages.CPU.setting, examples=5000), 0.1, 0.05
)
PAPER = Unimodality(compact_stages.PAPER, Diagnose(compact_stages.PAPER.setting), 0.1, 0.05)


@step(version=2, seconds=lambda config: 60.0 if config.setting.data != "digits" else 5.0)
def diagnose_chains(config: Diagnose, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task = problem(config.setting)
    found = diagnose(
        load(inputs["draws"], like=task.shapes),
        symmetry=symmetry(config.setting),
        key=jax.random.key(0),
        network=task,
        data=dataset(config.setting.data).test.first(config.examples),
        weights=config.weights,
        pairs=config.pairs,
        points=config.points,
        progress=work.progress,
    )
    save_figure(diagnosis_figure(found), work.folder / FIGURE)
    return finite(found.summary())


def plan(config: Unimodality) -> dict[str, Plan]:
    hmc = config.sources.fits()["hmc"]
    return {"all": {"chains": Stage(diagnose_chains, config.diagnose, {"draws": hmc})}}


NO_POWER = "chains that share no mode pass as well once they are aligned, so passing says nothing"


def _unless_null_passes(passes: bool, null_passes: bool) -> bool | None:
    """A test that the null passes too has no power: it may fail, but passing is no evidence."""
    return None if passes and null_passes else passes


def conclude(config: Unimodality, outcomes: Mapping[str, Outcomes]) -> Findings:
    done = outcomes.get("all")
    found = done["chains"].result if done else None
    common: dict[str, Any] = {
        "source": SOURCE,
        "conditions": f"{config.sources.title}; {config.diagnose.title}",
        "published_scale": config.sources.setting.same_size(PAPER.sources.setting),
        "published": "conjectured",
    }
    if found is None or done is None:
        return Findings(
            [
                judge(
                    "Without permutations the posterior is close to unimodal",
                    None,
                    ours="–",
                    criterion="",
                    **common,
                )
            ]
        )
    before, after, null = found["before"], found["after"], found["null"]
    apart, joined = (view["barriers_across_chains"] for view in (before, after))
    within = found["barriers_within_chains"]
    expected = found["variance_between_chains_expected"]
    text = {
        name: plus_minus(b["mean"], b["stderr"])
        for name, b in (("before", apart), ("after", joined), ("within", within))
    }
    claims = [
        judge(
            "Rebased draws of different chains lie in one basin",
            joined["mean"] <= config.largest_share * apart["mean"]
            or joined["mean"] <= within["mean"] + 3 * (joined["stderr"] + within["stderr"]),
            ours=f"barrier between draws of two chains {text['before']} → {text['after']} nats; "
            f"within a chain {text['within']}",
            criterion=f"mean barrier at most {config.largest_share:.0%} of that before, or no "
            "larger than within chains by three standard errors",
            value=joined["mean"],
            stderr=joined["stderr"],
            **common,
        ),
        judge(
            "Rebased, almost every weight is unimodal",
            _unless_null_passes(
                after["not_unimodal"] <= config.not_unimodal,
                null["not_unimodal"] <= config.not_unimodal,
            ),
            reason=NO_POWER,
            ours=f"not unimodal: {before['not_unimodal']:.2%} of the weights before, "
            f"{after['not_unimodal']:.2%} after (null {null['not_unimodal']:.2%})",
            criterion=f"at most {config.not_unimodal:.0%} of the weights significantly not",
            value=after["not_unimodal"],
            **common,
        ),
        judge(
            "Rebased chains have one law: no more variance between them than by chance",
            _unless_null_passes(
                after["variance_between_chains"] <= 2 * expected,
                null["variance_between_chains"] <= 2 * expected,
            ),
            reason=NO_POWER,
            ours=f"{before['variance_between_chains']:.2%} of the variance before, "
            f"{after['variance_between_chains']:.2%} after; {expected:.2%} by chance; null "
            f"{null['variance_between_chains']:.2%}",
            criterion="at most twice the share expected of independent draws of one law",
            value=after["variance_between_chains"],
            **common,
        ),
    ]
    measures = {
        "median R-hat of a weight": lambda v: f"{v['rhat']['0.5']:.3f}",
        "share with R-hat < 1.05": lambda v: f"{v['share_rhat_below_1.05']:.1%}",
        "median ESS of a weight": lambda v: f"{v['ess']['0.5']:.1f}",
        "variance between chains": lambda v: f"{v['variance_between_chains']:.2%}",
        "weights not unimodal": lambda v: f"{v['not_unimodal']:.2%}",
        "median σ": lambda v: f"{v['sigma_median']:.4f}",
    }
    rows = [
        [name, *(read(view) for view in (before, after, null))] for name, read in measures.items()
    ]
    title = f"Chains before and after, {config.sources.setting.title}"
    note = (
        f"{found['chains']} chains, {found['draws']} draws. The null is the same alignment of "
        "chains that share no mode."
    )
    return Findings(
        claims,
        [Table(title, ["", "before", "after", "null"], rows, note)],
        [Picture("chains", title, claims[0].ours, done["chains"].folder / FIGURE)],
    )


EXPERIMENT = Experiment(
    name="unimodality",
    title="Is the posterior unimodal without permutations?",
    question=(
        "Take the permutations out of HMC chains. Do barriers between chains, second modes of "
        "weights and the variance between chains go away?"
    ),
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
