"""The barrier against the width of the network."""

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
class Width:
    setting: Setting
    widths: tuple[int, ...]
    vi: VI
    accuracy: float
    sizes: Sizes
    together: int = 0

    def settings(self) -> dict[str, Setting]:
        return {f"width-{w}": replace(self.setting, width=w) for w in self.widths}


TOY = Width(presets.TOY, (8, 128), presets.TOY_VI, 0.9, Sizes(9, 32), together=presets.TOGETHER)
CPU = Width(presets.MNIST, (64, 128, 256, 512), presets.CPU_VI, 0.96, Sizes(7, 32, examples=5000))
PAPER = Width(
    presets.MNIST, (64, 128, 256, 512, 1024), presets.PAPER_VI_MNIST, 0.96, Sizes(25, 128)
)


def plan(config: Width) -> dict[str, Plan]:
    return {
        name: pair(setting, config.vi, config.sizes, together=config.together)
        for name, setting in config.settings().items()
    }


def conclude(config: Width, outcomes: Mapping[str, Outcomes]) -> Findings:
    found = {
        setting.width: before_after(outcomes[name])
        for name, setting in config.settings().items()
        if name in outcomes
    }
    whole = len(found) == len(config.widths)
    after = {width: curves[1] for width, curves in found.items()}
    widest, narrowest = max(config.widths), min(config.widths)
    holds, ours, fits = None, "–", []
    if whole:
        holds = after[widest].clearly_below(after[narrowest])
        ours = (
            f"{after[narrowest].barrier_text} nats at width {narrowest}, "
            f"{after[widest].barrier_text} at {widest}"
        )
        fits = [requirement(list(after.values()), config.accuracy)]
    claim = judge(
        "Wider networks are connected more easily: the aligned barrier falls with width",
        holds,
        published="width is varied; the curve itself is not legible in our sources",
        source="Rossi et al. 2023",
        ours=ours,
        criterion="barrier at the largest width below that at the smallest by two standard errors",
        conditions=f"{config.setting.title}, widths {config.widths}; {config.vi.epochs} epochs; "
        f"{config.sizes}",
        published_scale=config.setting.same_size(PAPER.setting) and config.sizes.num_samples >= 128,
        fits=fits,
        value=after[widest].barrier if whole else None,
        stderr=after[widest].error if whole else None,
        reason="" if whole else "not all widths have been run",
    )
    if not found:
        return Findings([claim])
    named = {str(width): curves for width, curves in found.items()}
    title = f"Barrier against width, MLP of depth {config.setting.depth}, test data"
    alt = "; ".join(
        f"width {w}: {b.barrier_text} as fitted, {a.barrier_text} aligned"
        for w, (b, a) in found.items()
    )
    picture = Picture("barriers", title, alt, pair_figure("width of the layers", {"": found}))
    return Findings([claim], [pair_table(title, "width", named)], [picture])


EXPERIMENT = Experiment(
    name="width",
    title="Barriers against width",
    question="Does the barrier that is left after alignment shrink as the network grows wider?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
