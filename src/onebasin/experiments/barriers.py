"""The marginalised loss between two variational posteriors, before and after alignment.

Along the Wasserstein geodesic as fitted, aligned by l2 and by w2, aligned and repaired, where it is
asked for also by correlations of activations; along the mixture; and between two networks at the
mode (the baseline), on training and test data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onebasin.experiments import presets
from onebasin.experiments.claims import Claim, Requirement, judge
from onebasin.experiments.common_stages import Align, Measure, aligned, fits, measured
from onebasin.experiments.curves import Curve, barrier_table, curves_figure
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import Stage
from onebasin.inference.methods import MAP, VI

SPLITS = ("test", "train")


@dataclass(frozen=True)
class Part:
    """One data set and network."""

    name: str
    setting: Setting
    vi: VI
    map: MAP
    accuracy: float
    """Test accuracy that both fits must reach; below it nothing is concluded."""
    largest_barrier: float
    """Nats that count as none."""
    largest_share: float
    """Of the unaligned barrier; both limits must be kept."""
    points: int = 25
    num_samples: int = 128
    few_samples: int = 128
    """Draws where less precision will do: unaligned paths, l2, training data."""
    test_examples: int | None = None
    train_examples: int | None = None
    repair_examples: int = 1000
    """Training images over which the units' statistics are restored."""
    correlations: bool = False
    """Whether matching by correlations of activations is measured too, plain and repaired."""
    published: str = "zero"
    together: int = 0
    """So many fits in one program; 0 for each on its own."""


@dataclass(frozen=True)
class Barriers:
    parts: tuple[Part, ...]


TOY = Barriers(
    parts=(
        Part(
            "digits-mlp",
            presets.TOY,
            presets.TOY_VI,
            presets.TOY_MAP,
            accuracy=0.95,
            largest_barrier=0.1,
            largest_share=0.1,
            points=9,
            num_samples=32,
            few_samples=32,
            correlations=True,
            together=presets.TOGETHER,
        ),
    ),
)
CPU_SIZES: dict[str, Any] = {
    "points": 9,
    "num_samples": 128,
    "few_samples": 32,
    "train_examples": 5000,
}
MNIST_PART = Part(
    "mnist-mlp",
    presets.MNIST,
    presets.CPU_VI,
    presets.CPU_MAP,
    accuracy=0.98,
    largest_barrier=0.02,
    largest_share=0.02,
    **CPU_SIZES,
)
MNIST_COLD_PART = replace(
    MNIST_PART,
    name="mnist-mlp-cold",
    setting=presets.MNIST_COLD,
    vi=presets.COLD_VI,
    points=5,
)
RESNET_PART = Part(
    "cifar10-resnet20",
    presets.CIFAR10_RESNET_COLD,
    presets.RESNET_VI,
    presets.RESNET_MAP,
    accuracy=0.70,
    largest_barrier=0.1,
    largest_share=0.1,
    points=5,
    num_samples=8,
    few_samples=8,
    test_examples=2000,
    train_examples=1000,
    repair_examples=presets.RESNET_REPAIR,
    correlations=True,
    published="nearly zero",
    together=2,
)
CPU = Barriers(
    parts=(
        MNIST_PART,
        MNIST_COLD_PART,
        Part(
            "fashion-mnist-mlp",
            presets.FASHION,
            presets.CPU_VI,
            presets.CPU_MAP,
            accuracy=0.86,
            largest_barrier=0.02,
            largest_share=0.02,
            **{**CPU_SIZES, "points": 5, "num_samples": 64},
        ),
        Part(
            "cifar10-mlp",
            presets.CIFAR10_COLD,
            presets.CPU_VI,
            MAP(epochs=10),
            accuracy=0.45,
            largest_barrier=0.02,
            largest_share=0.02,
            **{**CPU_SIZES, "points": 5, "num_samples": 32, "few_samples": 16},
        ),
        RESNET_PART,
    )
)
PAPER_SIZES: dict[str, Any] = {
    "map": presets.PAPER_MAP,
    "points": 25,
    "num_samples": 128,
    "few_samples": 128,
    "test_examples": None,
    "train_examples": None,
    "repair_examples": 1000,
}
AT_CPU = {part.name: part for part in CPU.parts}
PAPER = Barriers(
    parts=(
        replace(MNIST_PART, vi=presets.PAPER_VI_MNIST, **PAPER_SIZES),
        replace(AT_CPU["fashion-mnist-mlp"], vi=presets.PAPER_VI_MNIST, **PAPER_SIZES),
        replace(
            AT_CPU["cifar10-mlp"],
            setting=presets.CIFAR10,
            vi=presets.PAPER_VI_CIFAR,
            **PAPER_SIZES,
        ),
        replace(
            RESNET_PART,
            setting=presets.CIFAR10_RESNET,
            vi=presets.PAPER_VI_CIFAR,
            accuracy=0.85,
            together=0,
            **PAPER_SIZES,
        ),
    )
)


def plan(config: Barriers) -> dict[str, Plan]:
    return {part.name: _plan(part) for part in config.parts}


def _plan(part: Part) -> dict[str, Stage]:
    q0, q1 = fits(part.setting, part.vi, 2, together=part.together)
    m0, m1 = fits(part.setting, part.map, 2, together=part.together)
    by = {
        "l2": aligned(Align(part.setting, "l2"), q0, q1),
        "w2": aligned(Align(part.setting, "w2"), q0, q1),
        "mode": aligned(Align(part.setting, "l2"), m0, m1),
    }
    if part.correlations:
        by["correlations"] = aligned(Align(part.setting, "correlations"), q0, q1)
    moved = {name: stage["posterior.safetensors"] for name, stage in by.items()}
    stages: dict[str, Stage] = {f"align-{name}": stage for name, stage in by.items()}
    for split in SPLITS:
        examples = part.test_examples if split == "test" else part.train_examples
        base = Measure(part.setting, split=split, examples=examples, points=part.points)
        few = replace(base, num_samples=part.few_samples)
        many = replace(base, num_samples=part.num_samples if split == "test" else part.few_samples)
        repaired = replace(many, path="repaired", repair_examples=part.repair_examples)
        stages |= {
            f"unaligned-{split}": measured(few, q0, q1),
            f"l2-{split}": measured(few, q0, moved["l2"]),
            f"repaired-{split}": measured(repaired, q0, moved["w2"]),
            f"mixture-{split}": measured(few, q0, q1, path="mixture"),
            f"mode-{split}": measured(few, m0, m1, num_samples=1),
            f"mode-aligned-{split}": measured(few, m0, moved["mode"], num_samples=1),
        }
        if part.correlations:
            stages[f"correlations-{split}"] = measured(repaired, q0, moved["correlations"])
    return stages


def curves_of(done: Outcomes, split: str) -> dict[str, Curve]:
    """The curves of one split, under the names they have in figures and tables."""
    repaired = done[f"repaired-{split}"].result
    matched = done[f"correlations-{split}"].result if f"correlations-{split}" in done else None
    by_correlations = {}
    if matched is not None:
        by_correlations["aligned, correlations"] = Curve(matched["plain"])
        by_correlations["correlations and repaired"] = Curve(matched)
    return {
        "as fitted": Curve(done[f"unaligned-{split}"].result),
        "aligned, l2": Curve(done[f"l2-{split}"].result),
        "aligned, w2": Curve(repaired["plain"]),
        "aligned and repaired": Curve(repaired),
        **by_correlations,
        "mixture": Curve(done[f"mixture-{split}"].result),
        "modes, as fitted": Curve(done[f"mode-{split}"].result),
        "modes, aligned": Curve(done[f"mode-aligned-{split}"].result),
    }


def conclude(config: Barriers, outcomes: Mapping[str, Outcomes]) -> Findings:
    claims, tables, pictures = [], [], []
    for part in config.parts:
        if part.name not in outcomes:
            claims.append(_untested(part))
            continue
        # The curve with the most draws; a permutation changes no predictive.
        ends = curves_of(outcomes[part.name], "test")["aligned, w2"]
        for split in SPLITS:
            curves = curves_of(outcomes[part.name], split)
            claims += _claims(part, split, curves, ends.least_accuracy)
            title = f"{part.setting.title}, {split} data"
            tables.append(barrier_table(title, curves, _sizes(split, curves)))
            gaussians = {k: c for k, c in curves.items() if not k.startswith("modes")}
            alt = ", ".join(f"{k}: barrier {c.barrier_text} nats" for k, c in gaussians.items())
            figure = curves_figure(gaussians)
            pictures.append(Picture(f"{part.name}-{split}", title, alt, figure))
    return Findings(claims, tables, pictures)


def _sizes(split: str, curves: Mapping[str, Curve]) -> str:
    few, many = curves["as fitted"], curves["aligned, w2"]
    return (
        f"{many.examples:,} {split} images; {many.samples} draws for w2, correlations and "
        f"repaired, {few.samples} for the others; {len(few.t)} points on the path."
    )


def _conditions(part: Part, split: str, curves: Mapping[str, Curve]) -> str:
    return (
        f"{part.setting.title}, prior variance {part.setting.prior_variance:g}; VI with "
        f"{part.vi.optimiser.capitalize()}, {part.vi.epochs} epochs; modes of {part.map.epochs}; "
        f"{_sizes(split, curves)}"
    )


def _published_scale(part: Part, split: str) -> bool:
    """Whether all of it, the unaligned path that the others are held against too, is full size."""
    whole = (part.test_examples if split == "test" else part.train_examples) is None
    same = any(part.setting.same_size(p.setting) for p in PAPER.parts)
    return same and whole and min(part.num_samples, part.few_samples) >= 128


def _claims(part: Part, split: str, curves: Mapping[str, Curve], accuracy: float) -> list[Claim]:
    before, after = curves["as fitted"], curves["aligned, w2"]
    fixed, mixed = curves["aligned and repaired"], curves["mixture"]
    mode, mode_moved = curves["modes, as fitted"], curves["modes, aligned"]
    on = f"({part.setting.title}, {split} data)"
    share = after.barrier / before.barrier if before.barrier > 0 else float("nan")
    mode_share = mode_moved.barrier / mode.barrier if mode.barrier > 0 else float("nan")
    common: dict[str, Any] = {
        "conditions": _conditions(part, split, curves),
        "published_scale": _published_scale(part, split),
        # Test accuracy says whether a fit is a fit, whatever split the curve is on.
        "fits": [Requirement("the fits' test accuracy is", accuracy, part.accuracy)],
    }
    limits = f"≤ {part.largest_barrier:g} nats and ≤ {part.largest_share:.0%} of the unaligned one"
    return [
        judge(
            f"Two independent posteriors are separated by a barrier {on}",
            before.barrier > max(part.largest_barrier, 3 * before.error),
            published="always a barrier",
            source="Rossi et al. 2023",
            ours=f"{before.barrier_text} nats",
            criterion=f"barrier above {part.largest_barrier:g} nats and three standard errors",
            value=before.barrier,
            stderr=before.error,
            **common,
        ),
        judge(
            f"Aligned by W2, they are not {on}",
            after.barrier <= part.largest_barrier
            and after.barrier <= part.largest_share * before.barrier,
            published=part.published,
            source="Rossi et al. 2023",
            ours=f"{after.barrier_text} nats, {share:.1%} of the unaligned barrier",
            criterion=f"barrier {limits}",
            value=after.barrier,
            stderr=after.error,
            **common,
        ),
        judge(
            f"The mixture of the two has no barrier {on}",
            mixed.barrier <= 3 * mixed.error + 1e-6,
            published="zero (Jensen)",
            source="Rossi et al. 2023",
            ours=f"{mixed.barrier_text} nats",
            criterion="barrier within three standard errors of zero",
            value=mixed.barrier,
            stderr=mixed.error,
            **common,
        ),
        judge(
            f"Weight matching does the same for two modes, the baseline {on}",
            mode_moved.barrier <= part.largest_share * mode.barrier,
            published="zero barrier after matching (Git Re-Basin, the baseline)",
            source="Rossi et al. 2023; Ainsworth et al. 2023",
            ours=f"{mode.barrier_text} → {mode_moved.barrier_text} nats ({mode_share:.1%} left)",
            criterion=f"barrier ≤ {part.largest_share:.0%} of the unaligned one",
            value=mode_moved.barrier,
            **common,
        ),
        judge(
            f"Restoring the units' statistics on the way removes more {on}",
            fixed.barrier <= after.barrier,
            published="not in the paper",
            source="ours",
            ours=f"{after.barrier_text} → {fixed.barrier_text} nats",
            criterion="repaired barrier no larger than the aligned one, same draws",
            value=fixed.barrier,
            stderr=fixed.error,
            **common,
        ),
        *([_by_correlations(on, curves, common)] if part.correlations else []),
    ]


def _by_correlations(on: str, curves: Mapping[str, Curve], common: dict[str, Any]) -> Claim:
    matched, fixed = curves["aligned, correlations"], curves["correlations and repaired"]
    by_w2 = curves["aligned, w2"]
    return judge(
        f"Correlations of activations leave less than W2 does {on}",
        matched.clearly_below(by_w2),
        published="not in the paper",
        source="ours",
        ours=f"{by_w2.barrier_text} by W2, {matched.barrier_text} by correlations, "
        f"{fixed.barrier_text} repaired as well",
        criterion="barrier smaller by two standard errors of the difference",
        value=matched.barrier,
        stderr=matched.error,
        **common,
    )


def _untested(part: Part) -> Claim:
    return judge(
        f"Aligned by W2, two posteriors are not separated by a barrier ({part.setting.title})",
        None,
        published=part.published,
        source="Rossi et al. 2023",
        ours="–",
        criterion="",
        conditions=part.setting.title,
        published_scale=False,
        reason=f"part '{part.name}' has not been run",
    )


EXPERIMENT = Experiment(
    name="barriers",
    title="Barriers between two variational posteriors",
    question=(
        "Fit the same Bayesian network twice. How far does the loss of the predictive rise on the "
        "way from one posterior to the other, and does it still once hidden units are in order?"
    ),
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
    optional={"cpu": (RESNET_PART.name,)},
)
