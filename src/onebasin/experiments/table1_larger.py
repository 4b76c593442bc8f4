"""Part "larger" of table 1: at least twice the data and the width, and one Gaussian in one row.

The chains are those of microcanonical sampling, which mixes in fewer gradients than HMC. The rank
is at most a quarter of the draws to which a Gaussian is fitted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from onebasin.experiments.claims import Claim, judge, measured_in, text_of
from onebasin.experiments.common_stages import POSTERIOR, Fit, fit_posterior
from onebasin.experiments.compact_stages import (
    OURS,
    Calibrate,
    CompactDraws,
    calibrated,
    compacted,
)
from onebasin.experiments.experiment import Findings, Outcomes, Plan, Table
from onebasin.experiments.larger_stages import CalibratedGaussians, fitted_to
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import File, Stage
from onebasin.inference.methods import HMC, MCLMC

PART = "larger"
CHAINS = "samples of chains"
COMPONENTS = (2, 3)


@dataclass(frozen=True)
class Larger:
    setting: Setting
    sampler: HMC | MCLMC
    rank: int
    num_samples: int
    seed: int = 0
    largest_rhat: float = 1.05
    least_agreement: float = 0.98
    largest_variation: float = 0.10

    def __post_init__(self) -> None:
        fitted = self.sampler.chains // 2 * self.sampler.draws
        if 4 * self.rank > fitted:
            raise ValueError(
                f"a rank of {self.rank} is more than a quarter of the {fitted} draws fitted"
            )

    @property
    def draws(self) -> File:
        return Stage(fit_posterior, Fit(self.setting, self.sampler, self.seed))[POSTERIOR]

    @property
    def title(self) -> str:
        sampler = self.sampler
        return (
            f"{self.setting.title}, N(0, {self.setting.prior_variance:g}) prior; "
            f"{type(sampler).__name__}: {sampler.chains} chains × {sampler.draws} draws"
        )


TOY = Larger(
    Setting("digits", width=12, depth=1, prior_variance=1.0, limit=500),
    MCLMC(draws=24, warmup=300, thin=10, chains=4, step_size=0.01),
    rank=12,
    num_samples=48,
)
# About 50 minutes on two cores, from 28 minutes for 55,250 steps of HMC on 7,000 images at width
# 128: a gradient costs 4.3 times as much, and there are 23,200 of them per chain.
CPU = Larger(
    Setting("mnist", width=256, depth=1, prior_variance=1.0, limit=15_000),
    MCLMC(
        draws=160,
        warmup=4000,
        thin=120,
        chains=4,
        step_size=3e-3,
        integrator="leapfrog",
        mode_epochs=30,
        data_chunk=1000,
    ),
    rank=80,
    num_samples=500,
)


def one_gaussian(config: Larger) -> str:
    return f"one Gaussian of rank {config.rank}, outputs and calibrated"


def mixture(config: Larger, count: int) -> str:
    return f"mixture of {count} Gaussians in one frame, rank {config.rank} together"


def plan(config: Larger, judged: Callable[..., Stage]) -> Plan:
    """The stages; `judged(rows, files)` compares posteriors with the second half of the chains."""
    draws, setting, rank = config.draws, config.setting, config.rank
    plain = compacted(draws, CompactDraws(setting, "first", **OURS, rank=rank))
    outputs = CompactDraws(setting, "first", **OURS, rank=rank, fit="outputs")
    gaussians = lambda count: fitted_to(
        draws, CalibratedGaussians(setting, "first", rank, components=count)
    )
    stages = {
        f"rank {rank}, calibrated": calibrated(draws, plain, Calibrate(setting, "first")),
        f"rank {rank}, of the outputs": compacted(draws, outputs),
        one_gaussian(config): gaussians(1),
        **{mixture(config, count): gaussians(count) for count in COMPONENTS},
    }
    files = {CHAINS: draws, **{name: stage[POSTERIOR] for name, stage in stages.items()}}
    table = judged(setting, config.num_samples, files)
    return {"chains": draws.stage, **stages, "table": table}


def conclude(config: Larger, done: Outcomes, published_scale: bool) -> Findings:
    found, fitted = done["table"].result, done["chains"]["runs"][0]["stats"]
    rows = {row["name"]: row for row in found["rows"]}
    rhat = fitted["rhat_predictions_max"]
    claim = partial(judge, conditions=config.title, published_scale=published_scale)
    mixed = "R-hat is not defined" if rhat is None else f"R-hat at most {rhat:.3f}"
    claims: list[Claim] = [
        claim(
            "The chains of the larger network have mixed",
            None if rhat is None else rhat <= config.largest_rhat,
            ours=mixed,
            criterion=f"R-hat of predictions ≤ {config.largest_rhat:g}",
            value=rhat,
        )
    ]
    for name in (one_gaussian(config), *(mixture(config, count) for count in COMPONENTS)):
        row = rows[name]
        claims.append(
            claim(
                f"It can replace the chains of the larger network: {name}",
                row["agreement"] >= config.least_agreement
                and row["total_variation"] <= config.largest_variation,
                ours=f"agreement {text_of(row, 'agreement')}, TV {text_of(row, 'total_variation')}",
                criterion=f"agreement ≥ {config.least_agreement:g} and TV ≤ "
                f"{config.largest_variation:g} with chains to which nothing was fitted",
                **measured_in(row, "agreement"),
            )
        )
    cells = [
        [
            name,
            text_of(row, "agreement"),
            text_of(row, "total_variation"),
            text_of(row, "accuracy", times=100),
        ]
        for name, row in rows.items()
        if name != "reference"
    ]
    note = (
        f"Against {found['reference_draws']} draws of chains to which nothing was fitted. "
        f"{config.title}, {mixed}."
    )
    heads = ["posterior", "agreement", "TV", "accuracy, %"]
    return Findings(claims, [Table("Table 1, larger", heads, cells, note)])
