"""Where the published method fails, and what of ours moves the barrier.

Every variant brings q1 to q0 in its own way; barriers are measured with the same draws. A part
with a wider network shows what width alone does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onebasin.alignment import align_many
from onebasin.choices import WeightObjective
from onebasin.experiments import presets
from onebasin.experiments.claims import Claim, Requirement, judge
from onebasin.experiments.common_stages import POSTERIOR, Align, aligned, fits, measured
from onebasin.experiments.curves import Curve, barrier_table, curves_figure
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan
from onebasin.experiments.pairs import Sizes, requirement
from onebasin.experiments.setting import Setting, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.inference.methods import VI
from onebasin.posterior import load, save

JOINTLY = "w2, jointly with others"
REPAIRED = ("w2", "activations", "correlations")  # measured repaired as well
SHOWN = ("as fitted", "w2", "w2 and repaired", "correlations and repaired")  # in the figures


@dataclass(frozen=True)
class Part:
    """A network that is too small for its task, or so we think."""

    name: str
    setting: Setting
    vi: VI
    accuracy: float
    sizes: Sizes
    none: float
    """Nats that would count as no barrier: the published failure is to stay above."""
    searches: bool = True
    """Whether more than the published way is tried."""
    random_starts: int = 5
    jointly: int = 3
    """So many posteriors are aligned jointly; 0 for none."""
    repair_examples: int = 1000
    """Training images over which the units' statistics are restored."""
    together: int = 0
    """So many fits in one program; 0 for each on its own."""


@dataclass(frozen=True)
class CIFAR100:
    parts: tuple[Part, ...]


TOY = CIFAR100(
    (
        Part(
            "narrow-mlp",
            replace(presets.TOY, width=8),
            presets.TOY_VI,
            0.9,
            Sizes(9, 32),
            none=0.05,
            random_starts=2,
            together=presets.TOGETHER,
        ),
        Part(
            "wider-mlp",
            presets.TOY,
            presets.TOY_VI,
            0.9,
            Sizes(9, 32),
            none=0.05,
            searches=False,
            jointly=0,
            together=presets.TOGETHER,
        ),
    ),
)
CPU = CIFAR100(
    (
        Part(
            "mlp",
            presets.CIFAR100_COLD,
            presets.CPU_VI,
            0.15,
            Sizes(5, 16, examples=5000),
            none=0.05,
        ),
        Part(
            "wider-mlp",
            replace(presets.CIFAR100_COLD, width=1024),
            presets.CPU_VI,
            0.15,
            Sizes(5, 16, examples=5000),
            none=0.05,
            searches=False,
            jointly=0,
        ),
        Part(
            "resnet20",
            presets.CIFAR100_RESNET_COLD,
            presets.CIFAR100_RESNET_VI,
            0.35,
            Sizes(5, 8, examples=2000),
            none=0.1,
            jointly=0,
            repair_examples=presets.RESNET_REPAIR,
            together=2,
        ),
    )
)
PAPER = CIFAR100(
    (
        Part(
            "resnet20",
            presets.CIFAR100_RESNET,
            presets.PAPER_VI_CIFAR,
            0.5,
            Sizes(25, 128),
            none=0.1,
        ),
    )
)


def variants(part: Part) -> dict[str, Align]:
    """Ways to align; the first is the published one."""
    base = Align(part.setting)
    if not part.searches:
        return {"w2": base}
    return {
        "w2": base,
        "l2": replace(base, objective="l2"),
        "activations": replace(base, objective="activations"),
        "correlations": replace(base, objective="correlations"),
        "w2, activation start": replace(base, activation_start=True),
        "w2, random starts": replace(base, random_starts=part.random_starts),
        "w2, Frank–Wolfe": replace(base, search=True),
    }


@dataclass(frozen=True)
class Jointly:
    """Bring all posteriors into one basin, and `q1` to where it then lies from `q0`."""

    setting: Setting
    objective: WeightObjective = "w2"

    @property
    def title(self) -> str:
        return f"{self.objective}, {self.setting.title}"


@step(version=1, seconds=lambda config: 5.0 * (config.setting.width / 512) ** 2 + 1)
def align_jointly(config: Jointly, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, sym = problem(config.setting), symmetry(config.setting)
    posteriors = [load(path, like=task.shapes) for _, path in sorted(inputs.items())]
    found = align_many(posteriors, symmetry=sym, objective=config.objective)
    first, second = found.permutations[:2]
    moved = sym.act(sym.compose(sym.inverse(first), second), posteriors[1])
    save(work.folder / POSTERIOR, moved, network=task.network, aligned_by=config.title)
    return {"rounds": found.rounds, "converged": found.converged, "seconds": found.seconds}


def plan(config: CIFAR100) -> dict[str, Plan]:
    return {part.name: _plan(part) for part in config.parts}


def _plan(part: Part) -> dict[str, Stage]:
    count = max(2, part.jointly)
    q0, q1, *others = fits(part.setting, part.vi, count, together=part.together)
    measure = part.sizes.measure(part.setting)
    repaired = replace(measure, path="repaired", repair_examples=part.repair_examples)
    stages = {"before": measured(measure, q0, q1)}
    for name, how in variants(part).items():
        moved = aligned(how, q0, q1)
        stages[f"align: {name}"] = moved
        how_measured = repaired if name in REPAIRED else measure
        stages[name] = measured(how_measured, q0, moved[POSTERIOR])
    if others:
        files = {f"q{i}": file for i, file in enumerate([q0, q1, *others])}
        moved = Stage(align_jointly, Jointly(part.setting), files)
        stages |= {f"align: {JOINTLY}": moved, JOINTLY: measured(measure, q0, moved[POSTERIOR])}
    return stages


def conclude(config: CIFAR100, outcomes: Mapping[str, Outcomes]) -> Findings:
    claims, tables, pictures = [], [], []
    found = {
        part.name: _curves(part, outcomes[part.name]) if part.name in outcomes else {}
        for part in config.parts
    }
    for part in config.parts:
        curves = found[part.name]
        claims += _claims(part, curves)
        if not curves:
            continue
        title = f"{part.setting.title}, test data"
        tables.append(barrier_table(title, curves, str(part.sizes)))
        shown = {k: curves[k] for k in SHOWN if k in curves}
        alt = ", ".join(f"{k}: barrier {c.barrier_text} nats" for k, c in curves.items())
        pictures.append(Picture(part.name, title, alt, curves_figure(shown)))
    claims += [
        _wider(narrow, wide, found[narrow.name], found[wide.name])
        for narrow in config.parts
        for wide in config.parts
        if narrow.setting.width < wide.setting.width
        and narrow.setting == replace(wide.setting, width=narrow.setting.width)
    ]
    return Findings(claims, tables, pictures)


def _curves(part: Part, done: Outcomes) -> dict[str, Curve]:
    curves = {"as fitted": Curve(done["before"].result)}
    for name in [*variants(part), *([JOINTLY] if part.jointly else [])]:
        found = done[name].result
        curves[name] = Curve(found.get("plain", found))
        if "plain" in found:
            curves[f"{name} and repaired"] = Curve(found)
    return curves


def _claims(part: Part, curves: Mapping[str, Curve]) -> list[Claim]:
    published = curves.get("w2")
    common: dict[str, Any] = {
        "conditions": f"{part.setting.title}; {part.vi.epochs} epochs; {part.sizes}",
        "published_scale": part.setting.same_size(PAPER.parts[0].setting),
        "fits": _fits(part, curves),
    }
    best = min(curves, key=lambda n: curves[n].barrier) if curves else None
    return [
        judge(
            f"W2 alignment fails to find a solution without barrier ({part.setting.title})",
            None if published is None else published.barrier - 3 * published.error > part.none,
            published="fails on CIFAR-100",
            source="Rossi et al. 2023, figure A3",
            ours="–" if published is None else f"{published.barrier_text} nats left",
            criterion=f"aligned barrier above {part.none:g} nats by three standard errors",
            value=None if published is None else published.barrier,
            stderr=None if published is None else published.error,
            **common,
        ),
        judge(
            f"Something of ours leaves less of it ({part.setting.title})",
            None
            if published is None or best is None
            else curves[best].barrier < published.barrier - 2 * published.error,
            published="not in the paper",
            source="ours",
            ours="–" if best is None else f"{best}: {curves[best].barrier_text} nats",
            criterion="smallest barrier below that of plain W2 by two standard errors",
            value=None if best is None else curves[best].barrier,
            stderr=None if best is None else curves[best].error,
            **common,
        ),
    ]


def _fits(part: Part, curves: Mapping[str, Curve]) -> list[Requirement]:
    return [requirement(list(curves.values()), part.accuracy)] if curves else []


def _wider(narrow: Part, wide: Part, few: Mapping[str, Curve], many: Mapping[str, Curve]) -> Claim:
    """What W2 leaves between wider networks against what it leaves between narrower ones."""
    both = (few["w2"], many["w2"]) if few and many else None
    return judge(
        f"A wider network leaves less of it ({wide.setting.title})",
        None if both is None else both[1].clearly_below(both[0]),
        published="not in the paper",
        source="ours",
        ours="–"
        if both is None
        else f"{both[0].barrier_text} nats at width {narrow.setting.width}, "
        f"{both[1].barrier_text} at {wide.setting.width}",
        criterion="barrier after W2 smaller by two standard errors of the difference",
        conditions=f"{wide.setting.title}; {wide.vi.epochs} epochs; {wide.sizes}",
        published_scale=False,
        fits=_fits(narrow, few) + _fits(wide, many),
        value=None if both is None else both[1].barrier,
        stderr=None if both is None else both[1].error,
    )


EXPERIMENT = Experiment(
    name="cifar100",
    title="Where alignment fails",
    question=(
        "On CIFAR-100 the published method leaves a barrier. Does ours, and what moves it: better "
        "searches, activations, several starts, more posteriors at once, repair, width?"
    ),
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
    optional={"cpu": ("resnet20",)},
)
