"""Is the posterior close to unimodal once permutations are removed? Chains before and after.

Alignment makes even chains that share no mode look more alike. The null therefore applies the same
alignment to chains that were scrambled so that they share none.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from onebasin.diagnosis import diagnose
from onebasin.experiments import compact_stages
from onebasin.experiments.claims import Claim, judge, plus_minus, removal
from onebasin.experiments.common_stages import load_inputs
from onebasin.experiments.compact_stages import Sources
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.diagnosis import diagnosis_figure
from onebasin.figures.style import save_figure
from onebasin.tensor_files import finite

FIGURE = "diagnosis.svg"
SOURCE = "Xiao et al. 2023, figure 4"
CONJECTURE = "conjectured: nearly unimodal"


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
    largest_share: float | None = None
    """Share of the barrier that may remain, where less is claimed than that none does."""
    not_unimodal: float = 0.05
    """Share of the weights that may be significantly not unimodal."""


TOY = Unimodality(compact_stages.TOY, Diagnose(compact_stages.TOY.setting, 6, 5, 1000), 0.5)
CPU = Unimodality(compact_stages.CPU, Diagnose(compact_stages.CPU.setting, examples=5000))
PAPER = Unimodality(compact_stages.PAPER, Diagnose(compact_stages.PAPER.setting))


@step(version=2, seconds=lambda config: 60.0 if config.setting.data != "digits" else 5.0)
def diagnose_chains(config: Diagnose, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    found = diagnose(
        load_inputs(config.setting, inputs)["draws"],
        symmetry=symmetry(config.setting),
        key=jax.random.key(0),
        network=problem(config.setting),
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


def conclude(config: Unimodality, outcomes: Mapping[str, Outcomes]) -> Findings:
    chains = outcomes["all"]["chains"]
    found = chains.result
    views = [found[name] for name in ("before", "after", "null")]
    claims = _claims(config, found)
    measures = {
        "median R-hat of a weight": lambda v: f"{v['rhat']['0.5']:.3f}",
        "share with R-hat < 1.05": lambda v: f"{v['share_rhat_below_1.05']:.1%}",
        "median ESS of a weight": lambda v: f"{v['ess']['0.5']:.1f}",
        "variance between chains": lambda v: f"{v['variance_between_chains']:.2%}",
        "weights not unimodal": lambda v: f"{v['not_unimodal']:.2%}",
        "median σ": lambda v: f"{v['sigma_median']:.4f}",
    }
    rows = [[name, *(read(view) for view in views)] for name, read in measures.items()]
    title = f"Chains before and after, {config.sources.setting.title}"
    note = (
        f"{found['chains']} chains, {found['draws']} draws. The null is the same alignment of "
        "chains that share no mode."
    )
    return Findings(
        claims,
        [Table(title, ["", "before", "after", "null"], rows, note)],
        [Picture("chains", title, claims[0].ours, chains.folder / FIGURE)],
    )


def _claims(config: Unimodality, found: Mapping[str, Any]) -> list[Claim]:
    before, after, null = found["before"], found["after"], found["null"]
    apart, joined = (view["barriers_across_chains"] for view in (before, after))
    within = found["barriers_within_chains"]
    # Draws of a chain are correlated: chance depends on how many independent ones they are worth.
    expected = found["variance_between_chains_expected_of_effective_draws"]
    claim = partial(
        judge,
        source=SOURCE,
        conditions=f"{config.sources.title}; {config.diagnose.title}",
        published_scale=config.sources.setting.same_size(PAPER.sources.setting),
        published=CONJECTURE,
        reason="aligned chains that share no mode pass as well, so that passing is no evidence",
    )

    def passes(name: str, limit: float) -> bool | None:
        """None if the null passes too: then the test has no power, and passing is no evidence."""
        mine, by_chance = (view[name] <= limit for view in (after, null))
        return None if mine and by_chance else mine

    def shares(name: str) -> tuple[str, str, str]:
        return f"{before[name]:.2%}", f"{after[name]:.2%}", f"{null[name]:.2%}"

    removed = removal(joined["mean"], joined["stderr"], apart["mean"], config.largest_share)
    barriers = [plus_minus(b["mean"], b["stderr"]) for b in (apart, joined, within)]
    modes, variances = shares("not_unimodal"), shares("variance_between_chains")
    return [
        claim(
            f"Between rebased draws of different chains, {removed.words}",
            removed.holds,
            published=removed.beside(CONJECTURE),
            ours=f"{barriers[0]} → {barriers[1]} nats between draws of two chains",
            criterion=f"mean over pairs: {removed.criterion}",
            headline=f"between chains {apart['mean']:.2g} → {joined['mean']:.2g} nats",
            value=joined["mean"],
            stderr=joined["stderr"],
        ),
        claim(
            "After rebasing, the barrier between chains is no larger than within a chain",
            joined["mean"] <= within["mean"] + 2 * math.hypot(joined["stderr"], within["stderr"]),
            ours=f"{barriers[1]} nats between draws of two chains, {barriers[2]} within a chain",
            criterion="mean barrier above that within chains by at most two standard errors",
            headline=f"{joined['mean']:.2g} nats between chains, {within['mean']:.2g} within",
            value=joined["mean"],
            stderr=joined["stderr"],
        ),
        claim(
            "After rebasing, almost every weight is unimodal",
            passes("not_unimodal", config.not_unimodal),
            ours=f"not unimodal: {modes[0]} of the weights before, {modes[1]} after "
            f"(null {modes[2]})",
            criterion=f"at most {config.not_unimodal:.0%} of the weights significantly not "
            "unimodal, and more than that under the null",
            headline=f"weights not unimodal: {modes[1]}, null {modes[2]}",
            value=after["not_unimodal"],
        ),
        claim(
            "After rebasing, the variance between chains is no larger than by chance",
            passes("variance_between_chains", 2 * expected),
            ours=f"{variances[0]} of the variance before, {variances[1]} after; {expected:.2%} by "
            f"chance (effective draws); null {variances[2]}",
            criterion="at most twice the share expected of one distribution with as many effective "
            "draws, and more than that under the null",
            headline=f"variance between chains {variances[1]}, by chance {expected:.2%}",
            value=after["variance_between_chains"],
        ),
    ]


EXPERIMENT = Experiment("unimodality", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
