"""The barrier against prior variance and temperature."""

from collections.abc import Mapping
from dataclasses import dataclass

from onebasin.experiments import presets
from onebasin.experiments.claims import judge
from onebasin.experiments.curves import brief
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Plan
from onebasin.experiments.pairs import Pair, Sizes, before_after, sweep_picture, sweep_table


@dataclass(frozen=True)
class PriorTemperature:
    """Prior variances at temperature 1, and temperatures at the setting's own variance."""

    pair: Pair
    variances: tuple[float, ...]
    temperatures: tuple[float, ...]
    largest_share: float | None = None
    """Share of the barrier that may remain, where less is claimed than that none does."""

    def pairs(self) -> dict[str, Pair]:
        by_prior = [self.pair.at(prior_variance=v) for v in self.variances]
        by_temperature = [self.pair.at(temperature=t) for t in self.temperatures]
        return {
            f"prior-{p.setting.prior_variance:g}-temperature-{p.setting.temperature:g}": p
            for p in [*by_prior, *by_temperature]
        }


CPU_PAIR = Pair(presets.MNIST, presets.CPU_VI, 0.95, Sizes(7, 32, examples=5000)).at(width=256)
PAPER_PAIR = Pair(presets.MNIST, presets.PAPER_VI_MNIST, 0.95)
TOY = PriorTemperature(presets.TOY_PAIR, (0.1, 0.4), (0.1, 1.0), largest_share=0.1)
CPU = PriorTemperature(CPU_PAIR, (0.0025, 0.01, 0.04), (0.1, 0.3, 1.0))
PAPER = PriorTemperature(PAPER_PAIR, (0.0001, 0.001, 0.01, 0.1), (0.01, 0.1, 1.0))


def plan(config: PriorTemperature) -> dict[str, Plan]:
    return {name: pair.plan() for name, pair in config.pairs().items()}


def conclude(config: PriorTemperature, outcomes: Mapping[str, Outcomes]) -> Findings:
    base = config.pair.setting
    found = {
        (pair.setting.prior_variance, pair.setting.temperature): before_after(outcomes[name])
        for name, pair in config.pairs().items()
        if name in outcomes
    }
    claims = []
    for (variance, temperature), (before, after) in found.items():
        pair = config.pair.at(prior_variance=variance, temperature=temperature)
        removed = after.removed_from(before, config.largest_share)
        claims.append(
            judge(
                f"Aligned by W2, {removed.words} (prior variance {variance:g}, "
                f"temperature {temperature:g})",
                removed.holds,
                published="prior and temperature are varied; the curves are not legible in our "
                "sources",
                source="Rossi et al. 2023",
                figure="Rossi et al., prior variance and temperature",
                ours=f"{before.barrier_text} → {after.barrier_text} nats ({after.left_of(before)})",
                criterion=removed.criterion,
                headline=f"variance {variance:g}, temperature {temperature:g}: "
                f"{brief(before, after)}",
                conditions=pair.conditions,
                published_scale=config.pair.published_scale(PAPER.pair),
                fits=[pair.requirement([before, after])],
                **after.measured,
            )
        )
    title = f"Barrier against prior variance and temperature, {base.title}, test data"
    named = {f"{v:g}, {t:g}": curves for (v, t), curves in found.items()}
    lines = {
        "prior variance": {v: c for (v, t), c in found.items() if t == base.temperature},
        "temperature": {t: c for (v, t), c in found.items() if v == base.prior_variance},
    }
    pictures = [
        sweep_picture(what.replace(" ", "-"), f"Barrier against {what}", what, line)
        for what, line in lines.items()
        if line
    ]
    return Findings(claims, [sweep_table(title, "variance, temperature", named)], pictures)


EXPERIMENT = Experiment(
    "prior-temperature", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude
)
