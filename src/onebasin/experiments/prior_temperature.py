"""The barrier against prior variance and temperature."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onebasin.experiments import presets
from onebasin.experiments.claims import judge
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan
from onebasin.experiments.pairs import (
    Sizes,
    before_after,
    pair,
    pair_figure,
    pair_table,
    requirement,
)
from onebasin.experiments.setting import Setting
from onebasin.inference.methods import VI


@dataclass(frozen=True)
class PriorTemperature:
    """Prior variances at temperature 1, and temperatures at the setting's own variance."""

    setting: Setting
    variances: tuple[float, ...]
    temperatures: tuple[float, ...]
    vi: VI
    accuracy: float
    largest_share: float
    sizes: Sizes
    together: int = 0

    def settings(self) -> dict[str, Setting]:
        by_prior = [replace(self.setting, prior_variance=v) for v in self.variances]
        by_temperature = [replace(self.setting, temperature=t) for t in self.temperatures]
        return {
            f"prior-{s.prior_variance:g}-temperature-{s.temperature:g}": s
            for s in dict.fromkeys([*by_prior, *by_temperature])
        }


TOY = PriorTemperature(
    presets.TOY,
    (0.1, 0.4),
    (0.1, 1.0),
    presets.TOY_VI,
    0.9,
    0.1,
    Sizes(9, 32),
    together=presets.TOGETHER,
)
CPU = PriorTemperature(
    replace(presets.MNIST, width=256),
    (0.0025, 0.01, 0.04),
    (0.1, 0.3, 1.0),
    presets.CPU_VI,
    0.95,
    0.1,
    Sizes(7, 32, examples=5000),
)
PAPER = PriorTemperature(
    presets.MNIST,
    (0.0001, 0.001, 0.01, 0.1),
    (0.01, 0.1, 1.0),
    presets.PAPER_VI_MNIST,
    0.95,
    0.1,
    Sizes(25, 128),
)


def plan(config: PriorTemperature) -> dict[str, Plan]:
    return {
        name: pair(setting, config.vi, config.sizes, together=config.together)
        for name, setting in config.settings().items()
    }


def conclude(config: PriorTemperature, outcomes: Mapping[str, Outcomes]) -> Findings:
    settings = {n: s for n, s in config.settings().items() if n in outcomes}
    found = {name: before_after(outcomes[name]) for name in settings}
    claims = []
    for name, setting in config.settings().items():
        label = f"prior variance {setting.prior_variance:g}, temperature {setting.temperature:g}"
        holds, ours, fits, after = None, "–", [], None
        if name in found:
            before, after = found[name]
            holds = after.barrier <= config.largest_share * before.barrier
            ours = f"{before.barrier_text} → {after.barrier_text} nats"
            fits = [requirement([before, after], config.accuracy)]
        claims.append(
            judge(
                f"Alignment removes the barrier at {label}",
                holds,
                published="prior and temperature are varied; curves not legible in our sources",
                source="Rossi et al. 2023",
                ours=ours,
                criterion=f"aligned barrier ≤ {config.largest_share:.0%} of the unaligned one",
                conditions=f"{setting.title}; {config.vi.epochs} epochs; {config.sizes}",
                published_scale=config.setting.same_size(PAPER.setting)
                and config.sizes.num_samples >= 128,
                fits=fits,
                value=None if after is None else after.barrier,
                stderr=None if after is None else after.error,
            )
        )
    if not found:
        return Findings(claims)
    named = {
        f"{settings[n].prior_variance:g}, {settings[n].temperature:g}": curves
        for n, curves in found.items()
    }
    title = f"Barrier against prior variance and temperature, {config.setting.title}, test data"
    pictures = []
    for field, label in (("prior_variance", "prior variance"), ("temperature", "temperature")):
        other = "temperature" if field == "prior_variance" else "prior_variance"
        line = {
            getattr(settings[n], field): curves
            for n, curves in found.items()
            if getattr(settings[n], other) == getattr(config.setting, other)
        }
        alt = "; ".join(
            f"{label} {x:g}: {b.barrier_text} as fitted, {a.barrier_text} aligned"
            for x, (b, a) in line.items()
        )
        figure = pair_figure(label, {"": line})
        pictures.append(Picture(label.replace(" ", "-"), f"Barrier against {label}", alt, figure))
    return Findings(claims, [pair_table(title, "variance, temperature", named)], pictures)


EXPERIMENT = Experiment(
    name="prior-temperature",
    title="Barriers against prior variance and temperature",
    question="Does alignment still connect posteriors under wider priors and colder likelihoods?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
