"""The barrier against the width of the network."""

from collections.abc import Mapping
from dataclasses import dataclass

from onebasin.experiments import presets
from onebasin.experiments.claims import judge
from onebasin.experiments.curves import Sweep
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Plan
from onebasin.experiments.pairs import Pair, Sizes, before_after, sweep_picture, sweep_table


@dataclass(frozen=True)
class Width:
    pair: Pair
    widths: tuple[int, ...]

    def pairs(self) -> dict[str, Pair]:
        return {f"width-{w}": self.pair.at(width=w) for w in self.widths}


CPU_PAIR = Pair(presets.MNIST, presets.CPU_VI, 0.96, Sizes(7, 32, examples=5000))
TOY = Width(presets.TOY_PAIR, (8, 128))
CPU = Width(CPU_PAIR, (64, 128, 256, 512))
PAPER = Width(Pair(presets.MNIST, presets.PAPER_VI_MNIST, 0.96), (64, 128, 256, 512, 1024))


def plan(config: Width) -> dict[str, Plan]:
    return {name: pair.plan() for name, pair in config.pairs().items()}


def conclude(config: Width, outcomes: Mapping[str, Outcomes]) -> Findings:
    found: Sweep = {
        pair.setting.width: before_after(outcomes[name])
        for name, pair in config.pairs().items()
        if name in outcomes
    }
    title = f"Barrier against width, MLP of depth {config.pair.setting.depth}, test data"
    table = sweep_table(title, "width", {str(width): curves for width, curves in found.items()})
    picture = sweep_picture("barriers", title, "width", found, axis="width of the layers")
    if len(found) < len(config.widths):
        return Findings([], [table], [picture])
    after = {width: curves[1] for width, curves in found.items()}
    widest, narrowest = max(config.widths), min(config.widths)
    setting = config.pair.setting
    claim = judge(
        "The aligned barrier falls with width",
        after[widest].clearly_below(after[narrowest]),
        published="width is varied; the curve is not legible in our sources",
        source="Rossi et al. 2023",
        figure="Rossi et al., width",
        headline=f"{after[narrowest].barrier:.2g} nats at width {narrowest}, "
        f"{after[widest].barrier:.2g} at {widest}",
        ours=f"{after[narrowest].barrier_text} nats at width {narrowest}, "
        f"{after[widest].barrier_text} at {widest}",
        criterion="barrier at the largest width below that at the smallest by two standard errors",
        conditions=f"{setting.title}, widths {config.widths}; {config.pair.vi.epochs} epochs; "
        f"{config.pair.sizes}",
        published_scale=config.pair.published_scale(PAPER.pair),
        fits=[config.pair.requirement(after.values())],
        **after[widest].measured,
    )
    return Findings([claim], [table], [picture])


EXPERIMENT = Experiment("width", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
