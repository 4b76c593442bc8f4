"""One Gaussian in place of HMC draws, of an ensemble, of both after rebasing; and VI.

q_d is the diagonal Gaussian of the raw draws, q_r the same after every draw was rebased onto one
by its activations, as published. Ours go on: balanced scales, units matched by what they contribute
to the outputs, a low-rank covariance, and noise that predicts as the draws do: scaled to, or along
the directions in which the outputs vary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from onebasin.evaluation.reference import reference_table
from onebasin.experiments import compact_stages
from onebasin.experiments.claims import Claim, Requirement, judge, plus_minus
from onebasin.experiments.common_stages import EVALUATION_RATE, OVERHEAD, POSTERIOR
from onebasin.experiments.compact_stages import (
    OURS,
    Calibrate,
    CompactDraws,
    Half,
    Sources,
    calibrated,
    chains_of,
    compacted,
)
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Plan, Table
from onebasin.experiments.setting import Setting, dataset, flops, problem
from onebasin.experiments.stage import Stage, Work, step
from onebasin.posterior import load

SOURCE = "Xiao et al. 2023, table 1"
ENSEMBLE = "Ens. samples"
# agreement with HMC, total variation to it, accuracy of draws and of the mean in %
PUBLISHED: dict[str, tuple[float | None, ...]] = {
    "HMC samples": (1.0, 0.0, 98.43, None),
    "HMC q_d": (0.1212, 0.8641, 11.11, 28.06),
    "HMC q_r": (0.8249, 0.6570, 82.34, 92.25),
    ENSEMBLE: (0.9931, 0.0229, 98.66, None),
    "Ens. q_d": (0.5239, 0.7210, 52.25, 86.40),
    "Ens. q_r": (0.9868, 0.0495, 97.72, 97.97),
    "VI": (0.9885, 0.0235, 98.11, 98.04),
}


@dataclass(frozen=True)
class Table1:
    sources: Sources
    rank: int
    """Of the low-rank rows of ours."""
    num_samples: int
    accuracy: float
    """Test accuracy that the HMC draws must reach."""
    largest_rhat: float = 1.05
    """Of predictions, at which chains count as mixed."""
    least_agreement: float = 0.97
    largest_variation: float = 0.20
    """What one Gaussian must reach against held-out chains to stand in for HMC."""
    least_agreement_of_ensemble: float = 0.98
    largest_loss: float = 0.005
    """Of the ensemble's accuracy that its Gaussian may lose."""


TOY = Table1(compact_stages.TOY, rank=20, num_samples=60, accuracy=0.9)
CPU = Table1(compact_stages.CPU, rank=60, num_samples=500, accuracy=0.92)
PAPER = Table1(compact_stages.PAPER, rank=60, num_samples=100, accuracy=0.98)


@dataclass(frozen=True)
class Judge:
    setting: Setting
    num_samples: int
    rows: tuple[str, ...]
    reference: Half = "second"

    @property
    def title(self) -> str:
        return f"{len(self.rows)} posteriors × {self.num_samples} draws, {self.setting.title}"


def judge_seconds(config: Judge) -> float:
    draws = (len(config.rows) + 2) * config.num_samples
    work = draws * config.setting.num_test * flops(config.setting)
    return OVERHEAD + work / EVALUATION_RATE[config.setting.network]


@step(version=2, seconds=judge_seconds)
def judge_against_draws(config: Judge, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """Every posterior against the reference chains on the whole test set; those made of the
    ensemble also against the ensemble itself."""
    task = problem(config.setting)
    hmc = load(inputs["HMC samples"], like=task.shapes)
    reference = chains_of(hmc, config.reference)
    posteriors = {name: load(inputs[name], like=task.shapes) for name in config.rows[1:]}
    other: Half = "first" if config.reference == "second" else "second"
    judged = partial(
        reference_table,
        network=task,
        data=dataset(config.setting.data).test,
        key=jax.random.key(0),
        num_samples=config.num_samples,
        progress=work.progress,
    )
    table = judged({config.rows[0]: chains_of(hmc, other), **posteriors}, reference)
    found = {**table.summary(), "reference_draws": reference.num_draws}
    if ENSEMBLE in posteriors:
        ensemble = posteriors.pop(ENSEMBLE)
        made_of_it = {name: q for name, q in posteriors.items() if name.startswith("Ens.")}
        against = judged(made_of_it, ensemble, ceiling=False)
        found["against_ensemble"] = against.summary()["rows"]
    return found


def plan(config: Table1) -> dict[str, Plan]:
    fits, setting = config.sources.fits(), config.sources.setting
    hmc = {
        "HMC q_d": CompactDraws(setting, "first"),
        "HMC q_r": CompactDraws(setting, "first", rebase="anchor"),
        "HMC q_r, ours": CompactDraws(setting, "first", **OURS),
    }
    ensemble = {
        "Ens. q_d": CompactDraws(setting),
        "Ens. q_r": CompactDraws(setting, rebase="anchor"),
        "Ens. q_r, ours": CompactDraws(setting, **OURS),
        _of_ensemble(config): CompactDraws(
            setting,
            **OURS,
            rank=config.sources.ensemble.members - 1,
            fit="outputs",
            examples=1000,
        ),
    }
    stages = {name: compacted(fits["hmc"], how) for name, how in hmc.items()}
    stages |= _low_rank(config, "first")
    from_hmc = tuple(stages)
    stages |= {name: compacted(fits["ensemble"], how) for name, how in ensemble.items()}
    files = {
        "HMC samples": fits["hmc"],
        **{name: stages[name][POSTERIOR] for name in from_hmc},
        ENSEMBLE: fits["ensemble"],
        **{name: stages[name][POSTERIOR] for name in ensemble},
        "VI": fits["vi"],
    }
    judged = Stage(judge_against_draws, Judge(setting, config.num_samples, tuple(files)), files)
    swapped = _low_rank(config, "second")
    others = {"HMC samples": fits["hmc"], **{n: stage[POSTERIOR] for n, stage in swapped.items()}}
    check = Judge(setting, config.num_samples, tuple(others), reference="first")
    return {
        "all": {
            "hmc": fits["hmc"].stage,
            **stages,
            "table": judged,
            **{f"{name}, swapped": stage for name, stage in swapped.items()},
            "swapped": Stage(judge_against_draws, check, others),
        }
    }


def _low_rank(config: Table1, half: Half) -> dict[str, Stage]:
    """Our stand-ins for HMC, of one half of the chains."""
    draws, setting = config.sources.fits()["hmc"], config.sources.setting
    name = f"HMC rank {config.rank}, ours"
    plain = compacted(draws, CompactDraws(setting, half, **OURS, rank=config.rank))
    outputs = CompactDraws(setting, half, **OURS, rank=config.rank, fit="outputs")
    return {
        name: plain,
        f"{name}, of the outputs": compacted(draws, outputs),
        f"{name}, calibrated": calibrated(draws, plain, Calibrate(setting, half)),
    }


def conclude(config: Table1, outcomes: Mapping[str, Outcomes]) -> Findings:
    done = outcomes.get("all")
    rows = {} if done is None else {row["name"]: row for row in done["table"]["rows"]}
    mixed = None if done is None else done["hmc"]["runs"][0]["stats"]["rhat_predictions_max"]
    against = [] if done is None else done["table"]["against_ensemble"]
    ensemble = {row["name"]: row for row in against}
    again = {} if done is None else {row["name"]: row for row in done["swapped"]["rows"]}
    claims = [*_claims(config, rows), *_targets(config, rows, again, ensemble, mixed)]
    if done is None:
        return Findings(claims)
    found = done["table"].result
    columns = [
        "posterior",
        "agreement",
        "published",
        "TV",
        "published",
        "accuracy, %",
        "published",
        "of the mean, %",
        "published",
    ]
    listed = [_cells(name, row) for name, row in rows.items() if name != "reference"]
    note = (
        f"Against {found['reference_draws']} draws of chains that no stand-in has seen; "
        f"{found['examples']:,} test images, {found['samples']} draws of each posterior. "
        f"Ours: {config.sources.title}, {_mixing(mixed)}. "
        "Published: MLP 1×512, all of MNIST, 10,000 draws of one chain that is its own reference."
    )
    return Findings(claims, [Table("Table 1, ours beside the published", columns, listed, note)])


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    published = PUBLISHED.get(name, (None,) * 4)
    said = ["–" if value is None else f"{value:g}" for value in published]
    mean = "–" if row["mean_accuracy"] is None else f"{100 * row['mean_accuracy']:.2f}"
    ours = [
        plus_minus(row["agreement"], row["agreement_stderr"]),
        plus_minus(row["total_variation"], row["total_variation_stderr"]),
        plus_minus(100 * row["accuracy"], 100 * row["accuracy_stderr"]),
        mean,
    ]
    return [name, *(cell for pair in zip(ours, said, strict=True) for cell in pair)]


def _common(config: Table1, rows: Mapping[str, Any]) -> dict[str, Any]:
    fits = []
    if rows:
        least = rows["HMC samples"]["accuracy"]
        fits = [Requirement("the HMC draws' test accuracy is", least, config.accuracy)]
    return {
        "conditions": config.sources.title,
        "published_scale": config.sources.setting.same_size(PAPER.sources.setting),
        "fits": fits,
    }


def _of_ensemble(config: Table1) -> str:
    return f"Ens. rank {config.sources.ensemble.members - 1}, ours, of the outputs"


def _targets(
    config: Table1,
    rows: Mapping[str, Any],
    swapped: Mapping[str, Any],
    against_ensemble: Mapping[str, Any],
    rhat: float | None,
) -> list[Claim]:
    """What we set out to reach, each met or not."""
    common = {**_common(config, rows), "published": "not in the paper", "source": "ours"}
    low_rank = f"HMC rank {config.rank}, ours"
    agreement, variation = config.least_agreement, config.largest_variation
    claims = [
        judge(
            "The HMC chains have mixed",
            None if rhat is None else rhat <= config.largest_rhat,
            ours=_mixing(rhat),
            criterion=f"R-hat of predictions ≤ {config.largest_rhat:g}",
            value=rhat,
            **common,
        )
    ]
    for name in (f"{low_rank}, calibrated", f"{low_rank}, of the outputs"):
        row, other = rows.get(name), swapped.get(name)
        reached = [
            r["agreement"] >= agreement and r["total_variation"] <= variation
            for r in (row, other)
            if r
        ]
        claims.append(
            judge(
                f"One Gaussian stands in for HMC ({name})",
                all(reached) if reached else None,
                ours=f"{_both(row)}; chains swapped: {_both(other)}" if row and other else "–",
                criterion=f"agreement ≥ {agreement:g} and TV ≤ {variation:g} to chains held out, "
                "whichever half of them that is",
                value=row and row["agreement"],
                stderr=row and row["agreement_stderr"],
                **common,
            )
        )
    name = _of_ensemble(config)
    lost = rows[ENSEMBLE]["accuracy"] - rows[name]["accuracy"] if rows else 0.0
    least = config.least_agreement_of_ensemble
    for to, row in (("HMC", rows.get(name)), ("the ensemble", against_ensemble.get(name))):
        claims.append(
            judge(
                f"One Gaussian stands in for an ensemble, judged by {to} ({name})",
                row and row["agreement"] >= least and lost <= config.largest_loss,
                ours=f"{_both(row)} to {to}; {lost:.2%} less accurate" if row else "–",
                criterion=f"agreement with {to} ≥ {least:g}, and at most "
                f"{config.largest_loss:.1%} less accurate than the ensemble",
                value=row and row["agreement"],
                stderr=row and row["agreement_stderr"],
                **common,
            )
        )
    return claims


def _mixing(rhat: float | None) -> str:
    """`rhat` is None before the chains are drawn, or if they never moved."""
    return "–" if rhat is None else f"R-hat of predictions at most {rhat:.3f}"


def _both(row: Mapping[str, Any]) -> str:
    agreement = plus_minus(row["agreement"], row["agreement_stderr"])
    variation = plus_minus(row["total_variation"], row["total_variation_stderr"])
    return f"agreement {agreement}, TV {variation}"


def _claims(config: Table1, rows: Mapping[str, Any]) -> list[Claim]:
    common = _common(config, rows)

    def better(first: str, second: str) -> bool | None:
        if not rows:
            return None
        a, b = rows[first], rows[second]
        allowed = {
            m: 2 * (a[f"{m}_stderr"] ** 2 + b[f"{m}_stderr"] ** 2) ** 0.5
            for m in ("agreement", "total_variation")
        }
        return (
            a["agreement"] > b["agreement"] - allowed["agreement"]
            and a["total_variation"] < b["total_variation"] - allowed["total_variation"]
        )

    def ours(first: str, second: str) -> str:
        if not rows:
            return "–"
        return "; ".join(
            f"{n}: agreement {rows[n]['agreement']:.4f}, TV {rows[n]['total_variation']:.4f}"
            for n in (first, second)
        )

    def published(first: str, second: str) -> str:
        return "; ".join(
            f"{n}: agreement {PUBLISHED[n][0]}, TV {PUBLISHED[n][1]}" for n in (first, second)
        )

    low_rank = f"HMC rank {config.rank}, ours"
    both = "TV lower by two standard errors, and agreement not lower by as many"
    claims = []
    for kind, word in (("HMC", "HMC draws"), ("Ens.", "an ensemble")):
        pair = (f"{kind} q_r", f"{kind} q_d")
        claims.append(
            judge(
                f"Rebased, one diagonal Gaussian stands in better for {word}",
                better(*pair),
                published=published(*pair),
                source=SOURCE,
                ours=ours(*pair),
                criterion=both,
                value=rows[pair[0]]["agreement"] if rows else None,
                stderr=rows[pair[0]]["agreement_stderr"] if rows else None,
                **common,
            )
        )
    for first, second, text in (
        ("HMC q_r, ours", "HMC q_r", "Balanced and matched by contributions, q_r comes closer"),
        (low_rank, "HMC q_r, ours", "A low-rank covariance keeps what the diagonal loses"),
        (f"{low_rank}, calibrated", low_rank, "So does noise scaled to predict as the draws do"),
    ):
        claims.append(
            judge(
                text,
                better(first, second),
                published="not in the paper",
                source="ours",
                ours=ours(first, second),
                criterion=both,
                value=rows[first]["agreement"] if rows else None,
                stderr=rows[first]["agreement_stderr"] if rows else None,
                **common,
            )
        )
    return claims


EXPERIMENT = Experiment(
    name="table1",
    title="One Gaussian in place of many draws",
    question=(
        "How close does one Gaussian come to the predictive of HMC, fitted to draws as they are "
        "and after rebasing?"
    ),
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
