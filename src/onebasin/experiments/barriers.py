"""The marginalised loss between two variational posteriors, before and after alignment.

It is measured on training and test data along the Wasserstein geodesic as fitted, aligned by L2
and by W2, aligned and repaired, and on request aligned by correlations of activations; along the
mixture; and between two MAP networks, the baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onebasin.choices import SplitName
from onebasin.experiments import learned_barriers, presets
from onebasin.experiments.claims import Claim, Requirement, judge
from onebasin.experiments.common_stages import POSTERIOR, Align, Measure, aligned, fits, measured
from onebasin.experiments.curves import Curve, barrier_table, brief, profile_picture
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Plan
from onebasin.experiments.learned_barriers import Learn, LearnedPart
from onebasin.experiments.pairs import Pair, Sizes
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import Stage
from onebasin.inference.methods import MAP, VI

FIGURE = "Rossi et al., loss barriers"
BARRIER = 0.1  # nats: a barrier counts as one above this
SPLITS: tuple[SplitName, ...] = ("test", "train")


@dataclass(frozen=True)
class Resolution:
    """How finely barriers are measured."""

    points: int = 25
    num_samples: int = 128
    few_samples: int = 128
    """Draws where less precision suffices: unaligned paths, L2, training data."""
    train_examples: int | None = None
    test_examples: int | None = None
    """None for all of them."""
    repair_examples: int = 1000
    """Training images over which the units' statistics are restored."""

    def examples(self, split: SplitName) -> int | None:
        return self.test_examples if split == "test" else self.train_examples


@dataclass(frozen=True)
class Part:
    """One data set and network."""

    name: str
    setting: Setting
    vi: VI
    map: MAP
    accuracy: float
    """Test accuracy that both fits must reach; below it nothing is concluded."""
    largest_share: float | None = None
    """Share of the barrier that may remain, where less is claimed than that none does."""
    resolution: Resolution = Resolution()
    correlations: bool = False
    """Whether to match by correlations of activations too, plain and repaired."""
    published: str = "zero barrier after alignment"
    figure: str = f"{FIGURE}, MLPs"
    together: int = 0
    """Number of fits in one program; 0 for each in its own."""


NARROW = presets.TOY_PAIR.at(width=32)
TOY = (
    Part(
        "digits-mlp",
        presets.TOY,
        presets.TOY_VI,
        presets.TOY_MAP,
        accuracy=0.95,
        largest_share=0.1,
        resolution=Resolution(9, 32, 32),
        correlations=True,
        together=presets.TOGETHER,
    ),
    LearnedPart(
        "digits-mlp-learned",
        presets.TOY_PAIR,
        Learn(presets.TOY, steps=20, exchanges=10, judged=300),
        largest_share=0.2,
    ),
    LearnedPart(
        "digits-narrow-mlp-learned",
        NARROW,
        Learn(NARROW.setting, steps=20, exchanges=10, judged=300),
        largest_share=0.5,
    ),
)
FINE = Resolution(9, 128, 32, train_examples=5000)
MNIST = Part("mnist-mlp", presets.MNIST, presets.CPU_VI, presets.CPU_MAP, 0.98, resolution=FINE)
# The published temperature and priors. An epoch takes four times as long at twice the width.
WARM_MLP = Pair(presets.CIFAR10, presets.WARM_MLP_VI, 0.4, Sizes(5, 32))
RESNET = Pair(presets.CIFAR10_RESNET, presets.WARM_RESNET_VI, 0.6, Sizes(3, 16, 1000))
WIDER = replace(
    RESNET.at(width=32), vi=replace(RESNET.vi, epochs=2), sizes=Sizes(3, 8, 500), accuracy=0.5
)
WIDEST = replace(
    RESNET.at(width=64), vi=replace(RESNET.vi, epochs=1), sizes=Sizes(3, 8, 200), accuracy=0.4
)
AT_ONE = partial(
    LearnedPart,
    repair_examples=presets.RESNET_REPAIR,
    source="Rossi et al. 2023",
    published="nearly zero barrier after alignment",
    figure=f"{FIGURE}, ResNet20",
)
WARM = (
    LearnedPart(
        "cifar10-mlp-warm",
        WARM_MLP,
        Learn(WARM_MLP.setting),
        source="Rossi et al. 2023",
        published="zero barrier after alignment",
        figure=f"{FIGURE}, MLPs",
    ),
    AT_ONE("cifar10-resnet20-warm", RESNET, Learn(RESNET.setting, 600, 200)),
    AT_ONE("cifar10-resnet20-32-warm", WIDER, Learn(WIDER.setting, 300, 100, judged=500)),
    AT_ONE("cifar10-resnet20-64-warm", WIDEST, Learn(WIDEST.setting, 100, 40, judged=200)),
)
CPU = (
    MNIST,
    replace(
        MNIST,
        name="mnist-mlp-cold",
        setting=presets.MNIST_COLD,
        vi=presets.COLD_VI,
        resolution=replace(FINE, points=5),
    ),
    replace(
        MNIST,
        name="fashion-mnist-mlp",
        setting=presets.FASHION,
        accuracy=0.86,
        resolution=replace(FINE, points=5, num_samples=64),
    ),
    replace(
        MNIST,
        name="cifar10-mlp",
        setting=presets.CIFAR10_COLD,
        map=MAP(epochs=10),
        accuracy=0.45,
        resolution=replace(FINE, points=5, num_samples=32, few_samples=16),
    ),
    Part(
        "cifar10-resnet20",
        presets.CIFAR10_RESNET_COLD,
        presets.RESNET_VI,
        presets.RESNET_MAP,
        accuracy=0.70,
        resolution=Resolution(5, 8, 8, 1000, 2000, presets.RESNET_REPAIR),
        correlations=True,
        published="nearly zero barrier after alignment",
        figure=f"{FIGURE}, ResNet20",
        together=2,
    ),
    *WARM,
)
AS_MNIST = (presets.PAPER_VI_MNIST, presets.PAPER_MAP)
AS_CIFAR = (presets.PAPER_VI_CIFAR, presets.PAPER_MAP)
PAPER = (
    Part("mnist-mlp", presets.MNIST, *AS_MNIST, accuracy=0.98),
    Part("fashion-mnist-mlp", presets.FASHION, *AS_MNIST, accuracy=0.86),
    Part("cifar10-mlp", presets.CIFAR10, *AS_CIFAR, accuracy=0.45),
    replace(
        Part("cifar10-resnet20", presets.CIFAR10_RESNET, *AS_CIFAR, accuracy=0.85),
        correlations=True,
        published="nearly zero barrier after alignment",
        figure=f"{FIGURE}, ResNet20",
    ),
)


def plan(config: Sequence[Part | LearnedPart]) -> dict[str, Plan]:
    return {
        part.name: part.plan() if isinstance(part, LearnedPart) else _plan(part) for part in config
    }


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
    moved = {name: stage[POSTERIOR] for name, stage in by.items()}
    stages = {f"align-{name}": stage for name, stage in by.items()}
    size = part.resolution
    for split in SPLITS:
        base = Measure(part.setting, split=split, examples=size.examples(split), points=size.points)
        few = replace(base, num_samples=size.few_samples)
        many = replace(base, num_samples=size.num_samples) if split == "test" else few
        repaired = replace(many, path="repaired", repair_examples=size.repair_examples)
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


def curves_of(done: Outcomes, split: SplitName) -> dict[str, Curve]:
    """The curves of one split, under the names they have in figures and tables."""
    found = {
        "as fitted": done[f"unaligned-{split}"].result,
        "aligned, l2": done[f"l2-{split}"].result,
        "aligned, w2": done[f"repaired-{split}"]["plain"],
        "aligned and repaired": done[f"repaired-{split}"].result,
    }
    if f"correlations-{split}" in done:
        found["aligned, correlations"] = done[f"correlations-{split}"]["plain"]
        found["correlations and repaired"] = done[f"correlations-{split}"].result
    found["mixture"] = done[f"mixture-{split}"].result
    found["modes, as fitted"] = done[f"mode-{split}"].result
    found["modes, aligned"] = done[f"mode-aligned-{split}"].result
    return {name: Curve(summary) for name, summary in found.items()}


def conclude(config: Sequence[Part | LearnedPart], outcomes: Mapping[str, Outcomes]) -> Findings:
    found = Findings()
    for part in (p for p in config if isinstance(p, Part) and p.name in outcomes):
        # The curve with the most draws; a permutation does not change a predictive. Its accuracy
        # on test data says whether the fits are good, also for the curves on training data.
        ends = curves_of(outcomes[part.name], "test")["aligned, w2"]
        fits = [Requirement("the fits' test accuracy is", ends.least_accuracy, part.accuracy)]
        for split in SPLITS:
            curves = curves_of(outcomes[part.name], split)
            title = f"{part.setting.title}, {split} data"
            gaussians = {k: c for k, c in curves.items() if not k.startswith("modes")}
            found += Findings(
                _claims(part, split, curves, fits),
                [barrier_table(title, curves, _sizes(split, curves))],
                [profile_picture(f"{part.name}-{split}", title, gaussians)],
            )
    learned = [part for part in config if isinstance(part, LearnedPart)]
    return found + learned_barriers.conclude(learned, outcomes)


def _sizes(split: SplitName, curves: Mapping[str, Curve]) -> str:
    few, many = curves["as fitted"], curves["aligned, w2"]
    return (
        f"{many.examples:,} {split} images; {many.samples} draws for w2, correlations and "
        f"repaired, {few.samples} for the others; {len(few.t)} points on the path."
    )


def _published_scale(part: Part, split: SplitName) -> bool:
    """Whether everything is measured at full size, including the unaligned path."""
    size = part.resolution
    same = any(part.setting.same_size(p.setting) for p in PAPER)
    whole = size.examples(split) is None
    return same and whole and min(size.num_samples, size.few_samples) >= 128


def _claims(
    part: Part, split: SplitName, curves: Mapping[str, Curve], fits: list[Requirement]
) -> list[Claim]:
    before, after = curves["as fitted"], curves["aligned, w2"]
    repaired, mixture = curves["aligned and repaired"], curves["mixture"]
    mode, mode_moved = curves["modes, as fitted"], curves["modes, aligned"]
    on, share = f"({part.setting.title}, {split} data)", part.largest_share
    by_w2, by_us = (c.removed_from(before, share) for c in (after, repaired))
    of_modes = mode_moved.removed_from(mode, share)
    claim = partial(
        judge,
        conditions=f"{part.setting.title}, prior variance {part.setting.prior_variance:g}; VI with "
        f"{part.vi.optimiser.capitalize()}, {part.vi.epochs} epochs; modes: {part.map.epochs} "
        f"epochs; {_sizes(split, curves)}",
        published_scale=_published_scale(part, split),
        fits=fits,
    )

    def named(curve: Curve) -> str:
        """What is left, for the summary; on test data only."""
        network, _, data = part.setting.title.partition(" on ")
        name = data if part.setting.network == "mlp" else f"{network} on {data}"
        return f"{name}: {brief(before, curve)}" if split == "test" else ""

    published = partial(claim, source="Rossi et al. 2023", figure=part.figure)
    claims = [
        published(
            f"A barrier separates two independent posteriors {on}",
            before.barrier > max(BARRIER, 3 * before.error),
            published="always a barrier",
            ours=f"{before.barrier_text} nats",
            criterion=f"barrier above {BARRIER:g} nats and above three standard errors",
            **before.measured,
        ),
        published(
            f"Aligned by W2, {by_w2.words} {on}",
            by_w2.holds,
            published=by_w2.beside(part.published),
            ours=_left(before, after),
            criterion=by_w2.criterion,
            headline=named(after),
            **after.measured,
        ),
        published(
            f"The mixture of the two has no barrier {on}",
            mixture.barrier <= 2 * mixture.error + 1e-6,
            published="zero (Jensen)",
            ours=f"{mixture.barrier_text} nats",
            criterion="barrier within two standard errors of zero",
            **mixture.measured,
        ),
        published(
            f"Two modes aligned by weight matching (the baseline): {of_modes.words} {on}",
            of_modes.holds,
            published=of_modes.beside("zero barrier after matching (Git Re-Basin, the baseline)"),
            source="Rossi et al. 2023; Ainsworth et al. 2023",
            ours=_left(mode, mode_moved),
            criterion=of_modes.criterion,
            **mode_moved.measured,
        ),
        claim(
            f"Aligned by W2 and repaired, {by_us.words} {on}",
            by_us.holds,
            ours=_left(before, repaired),
            criterion=by_us.criterion,
            headline=named(repaired),
            **repaired.measured,
        ),
        claim(
            f"Restoring the statistics of the units lowers the aligned barrier {on}",
            repaired.barrier <= after.barrier,
            ours=f"{after.barrier_text} → {repaired.barrier_text} nats",
            criterion="repaired barrier no larger than the aligned one, with the same draws",
            **repaired.measured,
        ),
    ]
    if part.correlations:
        matched = curves["aligned, correlations"]
        best = curves["correlations and repaired"]
        correlations = claim(
            f"Matching by correlations of activations leaves a smaller barrier than W2 {on}",
            matched.clearly_below(after),
            ours=f"{after.barrier_text} nats by W2, {matched.barrier_text} by correlations, "
            f"{best.barrier_text} by correlations and repaired",
            criterion="barrier smaller by two standard errors of the difference",
            **matched.measured,
        )
        claims.append(correlations)
    return claims


def _left(before: Curve, after: Curve) -> str:
    return f"{before.barrier_text} → {after.barrier_text} nats ({after.left_of(before)})"


PRESETS = {"toy": TOY, "cpu": CPU, "paper": PAPER}
EXPERIMENT = Experiment(
    "barriers",
    PRESETS,
    plan,
    conclude,
    optional={"cpu": ("cifar10-resnet20", *(part.name for part in WARM))},
)
