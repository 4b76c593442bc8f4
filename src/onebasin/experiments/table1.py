"""One Gaussian in place of HMC draws or of an ensemble, before and after rebasing; and VI.

q_d is the diagonal Gaussian of the raw draws; q_r is that of the draws after each was rebased onto
one of them by activations, as published. Our variants balance scales, match units by their
contributions to the outputs, and add a low-rank covariance, whose noise is either calibrated to
predict as the draws do or placed along the directions in which the outputs vary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from onebasin.evaluation.reference import reference_table
from onebasin.experiments import compact_stages, table1_larger
from onebasin.experiments.claims import Claim, Requirement, judge, measured_in, text_of
from onebasin.experiments.common_stages import POSTERIOR, evaluation_seconds, load_inputs
from onebasin.experiments.compact_stages import (
    OURS,
    Calibrate,
    CompactDraws,
    Half,
    Sources,
    as_published,
    calibrated,
    chains_of,
    compacted,
)
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem
from onebasin.experiments.stage import File, Stage, Work, step
from onebasin.experiments.table1_larger import Larger

Row = Mapping[str, Any]
Claims = Callable[..., Claim]
"""`judge` with what all claims here have in common."""
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
    """Of our low-rank Gaussians."""
    num_samples: int
    accuracy: float
    """Test accuracy that the HMC draws must reach."""
    larger: Larger | None = None
    """The optional part with more data and a wider network."""
    largest_rhat: float = 1.05
    """R-hat of predictions up to which the chains count as mixed."""
    least_agreement: float = 0.97
    largest_variation: float = 0.20
    """What one Gaussian must reach against held-out chains to replace HMC."""
    least_agreement_of_ensemble: float = 0.98
    largest_loss: float = 0.005
    """How much of the ensemble's accuracy its Gaussian may lose."""


TOY = Table1(compact_stages.TOY, rank=20, num_samples=60, accuracy=0.9, larger=table1_larger.TOY)
CPU = Table1(compact_stages.CPU, rank=60, num_samples=500, accuracy=0.92, larger=table1_larger.CPU)
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
    return evaluation_seconds(config.setting, draws * config.setting.num_test)


@step(version=2, seconds=judge_seconds)
def judge_against_draws(config: Judge, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """Every posterior against the reference chains on the whole test set.

    Those made from the ensemble are also compared with the ensemble itself.
    """
    task, loaded = problem(config.setting), load_inputs(config.setting, inputs)
    hmc = loaded[config.rows[0]]
    reference = chains_of(hmc, config.reference)
    posteriors = {name: loaded[name] for name in config.rows[1:]}
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
    hmc = {**as_published(config.sources, "HMC"), **_low_rank(config, "first")}
    factors = config.sources.ensemble.members - 1
    outputs = CompactDraws(setting, **OURS, rank=factors, fit="outputs", examples=1000)
    ensemble = {
        **as_published(config.sources, "Ens."),
        _of_ensemble(config): compacted(fits["ensemble"], outputs),
    }
    files = {
        "HMC samples": fits["hmc"],
        **{name: stage[POSTERIOR] for name, stage in hmc.items()},
        ENSEMBLE: fits["ensemble"],
        **{name: stage[POSTERIOR] for name, stage in ensemble.items()},
        "VI": fits["vi"],
    }
    swapped = _low_rank(config, "second")
    others = {"HMC samples": fits["hmc"], **{n: stage[POSTERIOR] for n, stage in swapped.items()}}
    table = Judge(setting, config.num_samples, tuple(files))
    check = Judge(setting, config.num_samples, tuple(others), reference="first")
    main: Plan = {
        "hmc": fits["hmc"].stage,
        **hmc,
        **ensemble,
        "table": Stage(judge_against_draws, table, files),
        **{f"{name}, swapped": stage for name, stage in swapped.items()},
        "swapped": Stage(judge_against_draws, check, others),
    }
    if config.larger is None:
        return {"all": main}
    return {"all": main, table1_larger.PART: table1_larger.plan(config.larger, judged)}


def judged(setting: Setting, num_samples: int, files: dict[str, File]) -> Stage:
    """Posteriors, the first of which are the draws of all chains, against half of the chains."""
    return Stage(judge_against_draws, Judge(setting, num_samples, tuple(files)), files)


def _of_ensemble(config: Table1) -> str:
    return f"Ens. rank {config.sources.ensemble.members - 1}, ours, of the outputs"


def _low_rank(config: Table1, half: Half) -> dict[str, Stage]:
    """Our Gaussians for HMC, from one half of the chains."""
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
    findings = Findings()
    if "all" in outcomes:
        findings += conclude_all(config, outcomes["all"])
    if config.larger is not None and table1_larger.PART in outcomes:
        same = config.larger.setting.same_size(PAPER.sources.setting)
        findings += table1_larger.conclude(config.larger, outcomes[table1_larger.PART], same)
    return findings


def conclude_all(config: Table1, done: Outcomes) -> Findings:
    found = done["table"].result
    rows = _by_name(found["rows"])
    rhat = done["hmc"]["runs"][0]["stats"]["rhat_predictions_max"]
    mixing = "–" if rhat is None else f"R-hat of predictions at most {rhat:.3f}"  # None: no moves
    claim = partial(
        judge,
        conditions=config.sources.title,
        published_scale=config.sources.setting.same_size(PAPER.sources.setting),
        fits=[
            Requirement(
                "the HMC draws' test accuracy is", rows["HMC samples"]["accuracy"], config.accuracy
            )
        ],
    )
    mixed = claim(
        "The HMC chains have mixed",
        None if rhat is None else rhat <= config.largest_rhat,
        ours=mixing,
        criterion=f"R-hat of predictions ≤ {config.largest_rhat:g}",
        value=rhat,
    )
    claims = [
        *_comparisons(config, rows, claim),
        mixed,
        *_in_place_of_hmc(config, rows, _by_name(done["swapped"]["rows"]), claim),
        *_in_place_of_ensemble(config, rows, _by_name(found["against_ensemble"]), claim),
    ]
    columns = ["posterior", "agreement", "TV", "accuracy, %", "of the mean, %"]
    heads = [columns[0], *(head for column in columns[1:] for head in (column, "published"))]
    listed = [_cells(name, row) for name, row in rows.items() if name != "reference"]
    note = (
        f"Against {found['reference_draws']} draws of chains to which no Gaussian was fitted; "
        f"{found['examples']:,} test images, {found['samples']} draws of each posterior. "
        f"Ours: {config.sources.title}, {mixing}. "
        "Published: MLP 1×512, all of MNIST, 10,000 draws of one chain, which is its own reference."
    )
    return Findings(claims, [Table("Table 1: ours and published", heads, listed, note)])


def _by_name(rows: list[Row]) -> dict[str, Row]:
    return {row["name"]: row for row in rows}


def _cells(name: str, row: Row) -> list[str]:
    published = PUBLISHED.get(name, (None,) * 4)
    said = ["–" if value is None else f"{value:g}" for value in published]
    ours = [
        text_of(row, "agreement"),
        text_of(row, "total_variation"),
        text_of(row, "accuracy", times=100),
        "–" if row["mean_accuracy"] is None else f"{100 * row['mean_accuracy']:.2f}",
    ]
    return [name, *(cell for pair in zip(ours, said, strict=True) for cell in pair)]


def _comparisons(config: Table1, rows: Mapping[str, Row], claim: Claims) -> list[Claim]:
    """One posterior against another: which is closer to HMC?"""
    low_rank = f"HMC rank {config.rank}, ours"
    rebased = "After rebasing, one diagonal Gaussian better represents"
    claims = []
    for first, second, text in (
        ("HMC q_r", "HMC q_d", f"{rebased} HMC draws"),
        ("Ens. q_r", "Ens. q_d", f"{rebased} an ensemble"),
        (
            "HMC q_r, ours",
            "HMC q_r",
            "Balancing scales and matching by contributions brings q_r closer to HMC",
        ),
        (low_rank, "HMC q_r, ours", "A low-rank covariance brings it closer than a diagonal one"),
        (
            f"{low_rank}, calibrated",
            low_rank,
            "Calibrated noise brings the low-rank Gaussian closer",
        ),
    ):
        a, b = rows[first], rows[second]
        allowed = {
            m: 2 * (a[f"{m}_stderr"] ** 2 + b[f"{m}_stderr"] ** 2) ** 0.5
            for m in ("agreement", "total_variation")
        }
        known = {}
        if first in PUBLISHED:
            said = [
                f"{n}: agreement {PUBLISHED[n][0]}, TV {PUBLISHED[n][1]}" for n in (second, first)
            ]
            known = {"published": "; ".join(said), "source": SOURCE, "headline": _change(b, a)}
        claims.append(
            claim(
                text,
                a["agreement"] > b["agreement"] - allowed["agreement"]
                and a["total_variation"] < b["total_variation"] - allowed["total_variation"],
                ours="; ".join(
                    f"{r['name']}: agreement {r['agreement']:.4f}, TV {r['total_variation']:.4f}"
                    for r in (b, a)
                ),
                criterion="TV lower by two standard errors, and agreement not lower by two",
                **known,
                **measured_in(a, "agreement"),
            )
        )
    return claims


def _in_place_of_hmc(
    config: Table1, rows: Mapping[str, Row], swapped: Mapping[str, Row], claim: Claims
) -> list[Claim]:
    agreement, variation = config.least_agreement, config.largest_variation
    claims = []
    for how in ("calibrated", "of the outputs"):
        name = f"HMC rank {config.rank}, ours, {how}"
        row, other = rows[name], swapped[name]
        claims.append(
            claim(
                f"One Gaussian can replace HMC ({name})",
                all(
                    r["agreement"] >= agreement and r["total_variation"] <= variation
                    for r in (row, other)
                ),
                ours=f"{_both(row)}; chains swapped: {_both(other)}",
                criterion=f"agreement ≥ {agreement:g} and TV ≤ {variation:g} against held-out "
                "chains, whichever half is held out",
                headline=f"one Gaussian for HMC, {how}: {_short(row)}",
                **measured_in(row, "agreement"),
            )
        )
    return claims


def _in_place_of_ensemble(
    config: Table1, rows: Mapping[str, Row], against: Mapping[str, Row], claim: Claims
) -> list[Claim]:
    name, least = _of_ensemble(config), config.least_agreement_of_ensemble
    lost = rows[ENSEMBLE]["accuracy"] - rows[name]["accuracy"]
    return [
        claim(
            f"One Gaussian can replace an ensemble, compared with {to} ({name})",
            row["agreement"] >= least and lost <= config.largest_loss,
            ours=f"{_both(row)} to {to}; {lost:.2%} less accurate",
            criterion=f"agreement with {to} ≥ {least:g}, and at most "
            f"{config.largest_loss:.1%} less accurate than the ensemble",
            headline=f"one Gaussian for the ensemble, against {to}: {_short(row)}",
            **measured_in(row, "agreement"),
        )
        for to, row in (("HMC", rows[name]), ("the ensemble", against[name]))
    ]


def _short(row: Row) -> str:
    return f"agreement {row['agreement']:.3f}, TV {row['total_variation']:.3f}"


def _change(before: Row, after: Row) -> str:
    return (
        f"{before['name']} → {after['name']}: agreement {before['agreement']:.2f} → "
        f"{after['agreement']:.2f}, TV {before['total_variation']:.2f} → "
        f"{after['total_variation']:.2f}"
    )


def _both(row: Row) -> str:
    return f"agreement {text_of(row, 'agreement')}, TV {text_of(row, 'total_variation')}"


EXPERIMENT = Experiment(
    "table1",
    {"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan,
    conclude,
    optional={"cpu": (table1_larger.PART,)},
)
