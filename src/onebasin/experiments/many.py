"""Several variational posteriors merged into one, against each of them and against their ensemble.

The merged posterior is the W2 barycentre after joint alignment, without a chosen reference. A
second version also restores the statistics of its hidden units, which averaging shrinks. It costs
as much as one member; the ensemble (their mixture) costs as much as all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onebasin.alignment import align_many
from onebasin.choices import WeightObjective
from onebasin.evaluation.reference import reference_table
from onebasin.experiments import presets
from onebasin.experiments.claims import Claim, Requirement, judge, measured_in, text_of
from onebasin.experiments.common_stages import POSTERIOR, evaluation_seconds, fits, load_inputs
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Plan, Table
from onebasin.experiments.setting import Setting, dataset, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.inference.methods import VI
from onebasin.paths.merging import repaired_mean
from onebasin.posterior import MeanField, Mixture, save
from onebasin.trees import num_parameters

MERGED, AVERAGE, ENSEMBLE = "merged", "averaged as fitted", "ensemble"
REPAIRED = "merged and repaired"
REPAIRED_FILE = "repaired.safetensors"


@dataclass(frozen=True)
class Merge:
    setting: Setting
    objective: WeightObjective = "w2"
    examples: int = 1000
    """Training images on which the statistics of the units are computed."""

    @property
    def title(self) -> str:
        return f"{self.objective}, {self.setting.title}"


@dataclass(frozen=True)
class Judge:
    setting: Setting
    num_samples: int = 128
    members: int = 5

    @property
    def title(self) -> str:
        return f"{self.num_samples} draws, {self.setting.title}"


@dataclass(frozen=True)
class Many:
    setting: Setting
    vi: VI
    members: int
    num_samples: int
    accuracy: float
    """Test accuracy that every member must reach."""
    lost_accuracy: float
    """How far below the members' mean the accuracy of the merged posterior may be."""
    together: int = 0


TOY = Many(presets.TOY, presets.TOY_VI, 3, 32, 0.9, 0.05, together=presets.TOGETHER)
CPU = Many(presets.MNIST, presets.CPU_VI, 5, 128, 0.97, 0.005)
PAPER = Many(presets.MNIST, presets.PAPER_VI_MNIST, 5, 128, 0.98, 0.005)


@step(version=2, seconds=lambda config: 15.0 * (config.setting.width / 512) ** 2 + 1)
def merge_posteriors(config: Merge, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, sym = problem(config.setting), symmetry(config.setting)
    members = list(load_inputs(config.setting, inputs).values())
    found = align_many(members, symmetry=sym, objective=config.objective)
    save(work.folder / POSTERIOR, found.barycenter, network=task.network)
    whole = repaired_mean(found.posteriors, task.apply, task.x[: config.examples], symmetry=sym)
    save(work.folder / REPAIRED_FILE, whole, network=task.network)
    return {"rounds": found.rounds, "converged": found.converged}


def judge_seconds(config: Judge) -> float:
    # Each member and the three averages with all draws, and the ensemble with its own.
    draws = (config.members + 4) * config.num_samples
    return evaluation_seconds(config.setting, draws * config.setting.num_test)


@step(version=2, seconds=judge_seconds)
def judge_posteriors(config: Judge, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """The members and their three averages, compared with the ensemble and the labels."""
    del work
    task, loaded = problem(config.setting), load_inputs(config.setting, inputs)
    merged, whole = loaded.pop("merged"), loaded.pop("repaired")
    members = list(loaded.values())

    def mean(*leaves: jax.Array) -> jax.Array:
        return sum(leaves[1:], start=leaves[0]) / len(leaves)

    plain = MeanField(
        jax.tree.map(mean, *(q.mean for q in members)),
        jax.tree.map(mean, *(q.std for q in members)),
    )
    weights = np.full(len(members), 1 / len(members), np.float32)
    posteriors = {f"member {i}": q for i, q in enumerate(members)}
    table = reference_table(
        {**posteriors, MERGED: merged, REPAIRED: whole, AVERAGE: plain},
        Mixture(tuple(members), weights),  # pyright: ignore[reportArgumentType]
        task,
        dataset(config.setting.data).test,
        key=jax.random.key(0),
        num_samples=config.num_samples,
    )
    size = 2 * num_parameters(task.shapes)
    stored = {"member": size, MERGED: size, ENSEMBLE: size * len(members)}
    return {**table.summary(), "stored_numbers": stored}


def plan(config: Many) -> dict[str, Plan]:
    members = fits(config.setting, config.vi, config.members, together=config.together)
    files = {f"member-{i}": file for i, file in enumerate(members)}
    merged = Stage(merge_posteriors, Merge(config.setting), files)
    asked = Judge(config.setting, config.num_samples, config.members)
    made = {"merged": merged[POSTERIOR], "repaired": merged[REPAIRED_FILE]}
    table = Stage(judge_posteriors, asked, {**files, **made})
    return {"all": {"merge": merged, "table": table}}


def conclude(config: Many, outcomes: Mapping[str, Outcomes]) -> Findings:
    found = outcomes["all"]["table"].result
    rows = {row["name"]: row for row in found["rows"]}
    rows[ENSEMBLE] = rows.pop("reference")
    stored, one = found["stored_numbers"], found["stored_numbers"]["member"]
    columns = {
        "NLL, nats": "nll",
        "calibration error": "calibration_error",
        "agreement with the ensemble": "agreement",
        "TV to the ensemble": "total_variation",
    }
    listed = [
        [
            name,
            f"{row['accuracy']:.2%}",
            *(text_of(row, measure) for measure in columns.values()),
            f"{stored.get(name, one) / one:.0f}×",
        ]
        for name, row in rows.items()
        if "half" not in name
    ]
    heads = ["posterior", "test accuracy", *columns, "stored numbers"]
    title = f"{config.members} posteriors and their averages, {config.setting.title}"
    note = f"{found['examples']:,} test images, {found['samples']} draws of each."
    return Findings(_claims(config, rows), [Table(title, heads, listed, note)])


def _claims(config: Many, rows: Mapping[str, Any]) -> list[Claim]:
    accuracies = [row["accuracy"] for name, row in rows.items() if name.startswith("member")]
    mean = float(np.mean(accuracies))
    merged, whole = rows[MERGED], rows[REPAIRED]
    plain, ensemble = rows[AVERAGE], rows[ENSEMBLE]
    claim = partial(
        judge,
        published="not in the papers",
        conditions=f"{config.setting.title}; {config.members} VI posteriors of "
        f"{config.vi.epochs} epochs; {config.num_samples} draws",
        published_scale=config.setting.same_size(PAPER.setting),
        fits=[Requirement("the members' test accuracy is", min(accuracies), config.accuracy)],
    )
    return [
        claim(
            "One merged posterior classifies as well as its members",
            merged["accuracy"] >= mean - config.lost_accuracy,
            ours=f"{merged['accuracy']:.2%}, members {mean:.2%} on average",
            headline=f"accuracy {merged['accuracy']:.1%}, members {mean:.1%}",
            criterion=f"accuracy at most {config.lost_accuracy:.1%} below the mean of the members",
            **measured_in(merged, "accuracy"),
        ),
        claim(
            "Without alignment, the average predicts worse than the merged posterior",
            plain["nll"] > merged["nll"] + 3 * (plain["nll_stderr"] + merged["nll_stderr"]),
            ours=f"NLL {plain['nll']:.3f} averaged as fitted, {merged['nll']:.3f} merged",
            headline=f"NLL {plain['nll']:.2f} averaged as fitted, {merged['nll']:.2f} merged",
            criterion="NLL of the unaligned average higher by three standard errors",
            **measured_in(plain, "nll"),
        ),
        claim(
            "Restoring the statistics of the units lowers the NLL of the merged posterior",
            whole["nll"] < merged["nll"] - 2 * (whole["nll_stderr"] + merged["nll_stderr"]),
            ours=f"NLL {merged['nll']:.4f} → {whole['nll']:.4f}",
            headline=f"NLL {merged['nll']:.3f}, repaired {whole['nll']:.3f}",
            criterion="NLL lower by two standard errors",
            **measured_in(whole, "nll"),
        ),
        claim(
            "Merged and repaired, one posterior matches the ensemble at a fraction of its cost",
            whole["nll"] <= ensemble["nll"] + 2 * (whole["nll_stderr"] + ensemble["nll_stderr"]),
            ours=f"NLL {whole['nll']:.4f} against {ensemble['nll']:.4f}",
            headline=f"NLL {whole['nll']:.3f}, ensemble {ensemble['nll']:.3f}",
            criterion="NLL within two standard errors of the ensemble's",
            **measured_in(whole, "nll"),
        ),
    ]


EXPERIMENT = Experiment("many", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
