"""Two transformers trained independently: what each kind of alignment leaves of the barrier.

Theus et al. (2025) hold the group of a transformer written by hand; here it is found by tracing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from onebasin.experiments.claims import Claim, Requirement, judge
from onebasin.experiments.common_stages import POSTERIOR, Measure, fits, measured
from onebasin.experiments.curves import Curve, brief, profile_picture
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Plan, Table
from onebasin.experiments.learned_barriers import Learn, learn_alignment
from onebasin.experiments.setting import TransformerSetting
from onebasin.experiments.stage import Stage
from onebasin.experiments.transformer_stages import (
    TARGET,
    AlignOver,
    LearnOver,
    LearnOverFaster,
    align_over,
    learn_over,
)
from onebasin.inference.methods import MAP

# --- what may be set -------------------------------------------------------------------------

SOURCE = "Theus et al. 2025, table 2"
LEFT = 0.1  # nats that count as no barrier
AVERAGED, WEIGHTS, OWN = "averaged", "weights", "weights, own orders in heads"
ACTIVATIONS, CORRELATIONS = "activations", "correlations"
LEARNED = "learned on the path"
MATCHED = (WEIGHTS, OWN, ACTIVATIONS, CORRELATIONS)
PERMUTED = (*MATCHED, LEARNED)
WHOLE, BOTH = "weights, all of the symmetry", "all of the symmetry, then permutations learned"
LEARNED_WHOLE = "all of the symmetry, learned on the path"
MIXED = (WHOLE, BOTH, LEARNED_WHOLE)


@dataclass(frozen=True)
class Part:
    """A transformer that is trained twice."""

    name: str
    setting: TransformerSetting
    method: MAP
    accuracy: float
    """Test accuracy that the fits must reach; below it nothing is concluded."""
    learn: Learn | None = None
    """How permutations are learned on the path; None for no rows of learned permutations."""
    over: LearnOver | None = None
    """How the whole group is learned on the path."""
    points: int = 11
    examples: int | None = None
    """Test examples on which barriers are measured; None for all."""
    published_on: str = ""
    """The network and data of the published barriers."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Published barriers in nats, by the names of our rows."""

    @property
    def measure(self) -> Measure:
        return Measure(self.setting, points=self.points, num_samples=1, examples=self.examples)

    @property
    def conditions(self) -> str:
        return f"{self.setting.title}; {self.method.epochs} epochs"

    @property
    def permuted(self) -> tuple[str, ...]:
        """The rows of permutations."""
        return tuple(row for row in PERMUTED if self.learn is not None or row != LEARNED)

    @property
    def mixed(self) -> tuple[str, ...]:
        """The rows of all of the symmetry."""
        learned = {BOTH: self.learn, LEARNED_WHOLE: self.over}
        return tuple(row for row in MIXED if row == WHOLE or learned[row] is not None)

    def plan(self) -> Plan:
        q0, q1 = fits(self.setting, self.method, 2)
        sides = {"q0": q0, "q1": q1}
        over = AlignOver(self.setting)
        found = {
            WEIGHTS: Stage(align_over, over, sides),
            OWN: Stage(align_over, replace(over, over="own orders"), sides),
            ACTIVATIONS: Stage(align_over, replace(over, objective=ACTIVATIONS), sides),
            CORRELATIONS: Stage(align_over, replace(over, objective=CORRELATIONS), sides),
        }
        if self.learn is not None:
            found[LEARNED] = Stage(learn_alignment, self.learn, sides)
        stages = {AVERAGED: measured(self.measure, q0, q1)}
        for row, stage in found.items():
            stages[f"align: {row}"] = stage
            stages[row] = measured(self.measure, q0, stage[POSTERIOR])
        whole = Stage(align_over, replace(over, over="all"), sides)
        target, mixed = whole[TARGET], {WHOLE: whole}
        folded = {"q0": target, "q1": whole[POSTERIOR]}
        if self.learn is not None:
            mixed[BOTH] = Stage(learn_alignment, self.learn, folded)
        if self.over is not None:
            mixed[LEARNED_WHOLE] = Stage(learn_over, self.over, folded)
        for row, stage in mixed.items():
            stages[f"align: {row}"] = stage
            stages[row] = measured(self.measure, target, stage[POSTERIOR])
        return stages


ON_CIFAR10 = {AVERAGED: 1.69, ACTIVATIONS: 1.27, LEARNED: 0.45, WHOLE: 0.36, LEARNED_WHOLE: 0.0}
ON_SHAKESPEARE = {
    AVERAGED: 2.02,
    ACTIVATIONS: 1.43,
    LEARNED: 0.63,
    WHOLE: 0.34,
    LEARNED_WHOLE: 0.02,
}
VIT, GPT = "a ViT on CIFAR-10", "GPT-2 on Shakespeare"

TOY_VIT = TransformerSetting("digits", "vit", 16, 1, prior_variance=0.1, heads=2, patch=2)
TOY_GPT = TransformerSetting("pydoc", "gpt", 16, 1, prior_variance=0.1, limit=300, heads=2)
CPU_VIT = TransformerSetting("cifar10", "vit", width=96, depth=4, prior_variance=0.1, patch=8)
CPU_GPT = TransformerSetting("pydoc", "gpt", width=96, depth=3, prior_variance=0.1)
PAPER_VIT = TransformerSetting("cifar10", "vit", width=384, depth=6, heads=6, prior_variance=0.1)

TOY = (
    Part(
        "vit",
        TOY_VIT,
        MAP(epochs=12, batch_size=100, learning_rate=5e-3),
        0.7,
        Learn(TOY_VIT, steps=10, exchanges=5, batch_size=50, judged=100),
        LearnOver(TOY_VIT, steps=10, turns=20, exchanges=5, batch_size=50, judged=100),
        points=5,
        examples=200,
    ),
    Part(
        "gpt",
        TOY_GPT,
        MAP(epochs=20, batch_size=30, learning_rate=1e-2),
        0.2,
        Learn(TOY_GPT, steps=5, exchanges=3, batch_size=20, judged=30),
        LearnOver(TOY_GPT, steps=5, turns=20, exchanges=3, batch_size=20, judged=30),
        points=5,
        examples=50,
    ),
)
CPU = (
    Part(
        "vit",
        CPU_VIT,
        MAP(epochs=6, batch_size=50, warmup_epochs=1),
        0.45,
        Learn(CPU_VIT, steps=200, exchanges=100, batch_size=100, judged=500),
        LearnOver(CPU_VIT, steps=200, turns=200, exchanges=20),
        examples=2000,
        published_on=VIT,
        published=ON_CIFAR10,
    ),
    Part(
        "gpt",
        CPU_GPT,
        MAP(epochs=3, batch_size=16, learning_rate=2e-3, warmup_epochs=1),
        0.35,
        Learn(CPU_GPT, steps=100, exchanges=60, batch_size=16, judged=50),
        LearnOverFaster(CPU_GPT, steps=1600, turns=300, exchanges=20, batch_size=16, judged=50),
        examples=100,
        published_on=GPT,
        published=ON_SHAKESPEARE,
    ),
)
PAPER = (
    Part(
        "vit",
        PAPER_VIT,
        MAP(epochs=150, batch_size=128, warmup_epochs=5),
        0.8,
        Learn(PAPER_VIT, steps=2000),
        LearnOver(PAPER_VIT, steps=2000, turns=4000),
        points=25,
        published_on=VIT,
        published=ON_CIFAR10,
    ),
)


# --- what is run -----------------------------------------------------------------------------


def plan(config: Sequence[Part]) -> dict[str, Plan]:
    return {part.name: part.plan() for part in config}


# --- what follows ----------------------------------------------------------------------------


def conclude(config: Sequence[Part], outcomes: Mapping[str, Outcomes]) -> Findings:
    found = Findings()
    for part in config:
        if part.name in outcomes:
            done = outcomes[part.name]
            rows = (AVERAGED, *part.permuted, *part.mixed)
            curves = {row: Curve(done[row].result) for row in rows}
            title = f"{part.setting.title}, test data"
            found += Findings(
                _claims(part, curves),
                [_table(title, part, curves)],
                [profile_picture(part.name, title, curves)],
            )
    return found


def _claims(part: Part, curves: Mapping[str, Curve]) -> list[Claim]:
    averaged, whole = curves[AVERAGED], curves[WHOLE]
    least = min(part.mixed, key=lambda row: curves[row].barrier)
    permuted = min(part.permuted, key=lambda row: curves[row].barrier)
    on = f"({part.setting.title}, test data)"
    given = min(MATCHED, key=lambda row: curves[row].barrier)
    claim = partial(
        judge,
        conditions=part.conditions,
        published_scale=False,
        source=SOURCE,
        fits=[
            Requirement(
                "the fits' test accuracy is",
                min(curve.least_accuracy for curve in curves.values()),
                part.accuracy,
            )
        ],
    )

    def published(*rows: str) -> str:
        known = [f"{row} {part.published[row]:g}" for row in rows if row in part.published]
        return f"{', '.join(known)} nats, {part.published_on}" if known else "not in the paper"

    claims = [
        claim(
            f"Matching units removes part of the barrier {on}",
            curves[given].barrier < averaged.barrier,
            published=published(AVERAGED, ACTIVATIONS),
            ours=f"{averaged.barrier_text} nats averaged, {curves[given].barrier_text} by {given}",
            criterion="the best of the matchings leaves a smaller barrier than averaging",
            headline=f"{part.setting.network_title}, {given}: {brief(averaged, curves[given])}",
            **curves[given].measured,
        ),
        claim(
            f"Permutations alone leave a barrier {on}",
            curves[permuted].barrier > LEFT,
            published=published(LEARNED),
            ours=", ".join(f"{row} {curves[row].barrier_text}" for row in part.permuted) + " nats",
            criterion=f"every way leaves more than {LEFT:g} nats",
            headline=f"{part.setting.network_title}, {permuted}: "
            f"{brief(averaged, curves[permuted])}",
            **curves[permuted].measured,
        ),
        claim(
            f"Weights matched over all of the symmetry leave less than over permutations {on}",
            whole.barrier < min(curves[WEIGHTS].barrier, curves[OWN].barrier),
            published=published(WHOLE),
            ours=f"{whole.barrier_text} nats, {curves[WEIGHTS].barrier_text} over permutations, "
            f"{curves[OWN].barrier_text} with own orders",
            criterion="smaller barrier, without data, than over permutations",
            **whole.measured,
        ),
        claim(
            f"With all of the symmetry, less than {LEFT:g} nats remain {on}",
            curves[least].barrier < LEFT,
            published=published(LEARNED_WHOLE),
            ours=f"{curves[least].barrier_text} nats by {least}",
            criterion=f"less than {LEFT:g} nats",
            headline=f"{part.setting.network_title}, {least}: {brief(averaged, curves[least])}",
            **curves[least].measured,
        ),
    ]
    if part.learn is not None:
        learned = curves[LEARNED]
        claims.append(
            claim(
                f"Permutations learned on the path leave less than matching units {on}",
                learned.barrier < curves[given].barrier,
                published=published(ACTIVATIONS, LEARNED),
                ours=f"{learned.barrier_text} nats learned, "
                f"{curves[given].barrier_text} by {given}",
                criterion="the barrier is smaller than that of the best of the matchings",
                **learned.measured,
            )
        )
    return claims


def _table(title: str, part: Part, curves: Mapping[str, Curve]) -> Table:
    """One row per way, with the published barrier beside ours."""
    rows = [
        [
            row,
            curve.barrier_text,
            curve.share_of(curves[AVERAGED], digits=0),
            f"{part.published[row]:.2f}" if row in part.published else "–",
            curve.end_accuracies,
            f"{curve.accuracy.min():.2%}",
        ]
        for row, curve in curves.items()
    ]
    columns = [
        "aligned by",
        "barrier, nats",
        "remaining",
        "published, nats",
        "accuracy at the ends",
        "lowest accuracy on the path",
    ]
    note = f"published: {part.published_on}, {SOURCE}" if part.published else ""
    return Table(title, columns, rows, note)


PRESETS = {"toy": TOY, "cpu": CPU, "paper": PAPER}
EXPERIMENT = Experiment("transformers", PRESETS, plan, conclude)
