"""Two posteriors aligned by weights, by correlations of units, and by what is learned on the path.

Each way is measured on the geodesic and on the repaired path, with the same draws. Experiments add
such parts to their own: the published conditions at temperature 1, and residual networks of several
widths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from onebasin.alignment import PathLoss, align
from onebasin.experiments.claims import Claim, judge
from onebasin.experiments.common_stages import (
    OVERHEAD,
    POSTERIOR,
    TRAINING_RATE,
    Align,
    AlignAtSites,
    aligned,
    load_inputs,
    measured,
)
from onebasin.experiments.curves import Curve, barrier_table, brief, profile_picture
from onebasin.experiments.experiment import Findings, Outcomes, Plan
from onebasin.experiments.pairs import Pair
from onebasin.experiments.setting import Setting, flops, gradient_flops, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.posterior import save
from onebasin.tensor_files import finite

WAYS = ("w2", "correlations", "learned")
COMPILING = {
    "mlp": 10.0,
    "lenet": 20.0,
    "resnet20": 60.0,
    "vit": 60.0,
    "gpt": 60.0,
}  # seconds of the learning step
EVERY = 10  # steps between two judgements


@dataclass(frozen=True)
class Learn:
    """Learn the permutation of posterior `q1` on the loss of the path to `q0`."""

    setting: Setting
    steps: int = 600
    exchanges: int = 400
    batch_size: int = 100
    judged: int = 1000
    """Training images on which permutations are judged, and which are not learned from."""
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{self.steps} steps, {self.exchanges} exchanges, {self.setting.title}"


def learn_seconds(config: Learn) -> float:
    return learning_seconds(
        config.setting, config.steps, config.exchanges, config.batch_size, config.judged
    )


def learning_seconds(
    setting: Setting, steps: int, exchanges: int, batch_size: int, judged: int
) -> float:
    """The time of learning on a path."""
    learned = steps * batch_size * gradient_flops(setting)
    judgements = (steps / EVERY + exchanges) * judged * flops(setting)
    network = setting.network
    return OVERHEAD + COMPILING[network] + (learned + judgements) / TRAINING_RATE[network]


@step(version=2, seconds=learn_seconds)
def learn_alignment(config: Learn, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, sym = problem(config.setting), symmetry(config.setting)
    q0, q1 = load_inputs(config.setting, inputs).values()
    objective = PathLoss(
        task,
        steps=config.steps,
        exchanges=config.exchanges,
        batch_size=config.batch_size,
        judged=config.judged,
        progress=work.progress,
    )
    found = align(q1, to=q0, symmetry=sym, objective=objective, key=jax.random.key(config.seed))
    save(work.folder / POSTERIOR, found.posterior, network=task.network, aligned_by=config.title)
    return finite(
        {
            "starts": [{"name": s.name, "loss": -float(s.score)} for s in found.starts],
            "trace": [-float(score) for score in found.trace],
            "transpositions": int(found.transpositions.total),
            "units": sum(group.size for group in sym.groups),
        }
    )


@dataclass(frozen=True)
class LearnedPart:
    """Two posteriors, and how the permutation between them is learned."""

    name: str
    pair: Pair
    learn: Learn
    largest_share: float | None = None
    """Share of the barrier that may remain, where less is claimed than that none does."""
    repair_examples: int = 1000
    """Training images over which the units' statistics are restored."""
    source: str = "ours"
    published: str = "not in the paper"
    figure: str = ""

    def plan(self) -> Plan:
        pair, measure = self.pair, self.pair.measure
        q0, q1 = pair.fits(2)
        sides = {"q0": q0, "q1": q1}
        by = {
            "w2": aligned(Align(pair.setting), q0, q1),
            "correlations": aligned(AlignAtSites(pair.setting, "correlations"), q0, q1),
            "learned": Stage(learn_alignment, self.learn, sides),
        }
        repaired = {"path": "repaired", "repair_examples": self.repair_examples}
        stages = {"before": measured(measure, q0, q1)}
        for way, stage in by.items():
            stages[f"align: {way}"] = stage
            stages[way] = measured(measure, q0, stage[POSTERIOR], **repaired)
        return stages


def conclude(parts: Sequence[LearnedPart], outcomes: Mapping[str, Outcomes]) -> Findings:
    """The claims, tables and figures of those parts that are done, and what width changes."""
    found = Findings()
    curves = {part.name: curves_of(outcomes[part.name]) for part in parts if part.name in outcomes}
    for part in parts:
        if part.name not in curves:
            continue
        own, title = curves[part.name], f"{part.pair.setting.title}, learned, test data"
        found += Findings(
            _claims(part, own),
            [barrier_table(title, own, str(part.pair.sizes))],
            [profile_picture(part.name, title, own)],
        )
    wider = [
        _wider(narrow.pair, wide.pair, curves[narrow.name], curves[wide.name])
        for narrow in parts
        for wide in parts
        if narrow.name in curves
        and wide.name in curves
        and narrow.pair.setting.width < wide.pair.setting.width
        and narrow.pair.setting == wide.pair.at(width=narrow.pair.setting.width).setting
    ]
    return found + Findings(wider)


def curves_of(done: Outcomes) -> dict[str, Curve]:
    """The curves of a part, under the names they have in figures and tables."""
    curves = {"as fitted": Curve(done["before"].result)}
    for way in WAYS:
        curves[way] = Curve(done[way]["plain"])
        curves[f"{way} and repaired"] = Curve(done[way].result)
    return curves


def _claims(part: LearnedPart, curves: Mapping[str, Curve]) -> list[Claim]:
    before, learned = curves["as fitted"], curves["learned"]
    given = min((curves["w2"], curves["correlations"]), key=lambda curve: curve.barrier)
    repaired = curves["learned and repaired"]
    on = f"({part.pair.setting.title}, test data)"
    claim = partial(
        judge,
        conditions=f"{part.pair.conditions}; learned in {part.learn.steps} steps",
        published_scale=False,
        fits=[part.pair.requirement(curves.values())],
    )
    claims = [
        claim(
            f"Permutations learned on the path leave less than W2 and correlations {on}",
            learned.clearly_below(given),
            ours=f"{learned.barrier_text} nats, {given.barrier_text} by the better of the two",
            criterion="barrier smaller by two standard errors of the difference",
            **learned.measured,
        )
    ]
    for curve, words in ((learned, "learned on the path"), (repaired, "learned and repaired")):
        gone = curve.removed_from(before, part.largest_share)
        claims.append(
            claim(
                f"With permutations {words}, {gone.words} {on}",
                gone.holds,
                published=gone.beside(part.published),
                source=part.source,
                figure=part.figure,
                ours=f"{before.barrier_text} → {curve.barrier_text} nats ({curve.left_of(before)})",
                criterion=gone.criterion,
                headline=f"{part.pair.setting.title}, {words}: {brief(before, curve)}",
                **curve.measured,
            )
        )
    return claims


def _wider(narrow: Pair, wide: Pair, few: Mapping[str, Curve], many: Mapping[str, Curve]) -> Claim:
    """The barrier that learning leaves between wider networks against that between narrower."""
    before, after = few["learned"], many["learned"]
    return judge(
        f"Permutations learned between wider networks leave less ({wide.setting.title})",
        after.clearly_below(before),
        ours=f"{before.barrier_text} nats at width {narrow.setting.width}, "
        f"{after.barrier_text} at {wide.setting.width}",
        criterion="barrier smaller by two standard errors of the difference",
        conditions=wide.conditions,
        published_scale=False,
        fits=[narrow.requirement(few.values()), wide.requirement(many.values())],
        **after.measured,
    )
