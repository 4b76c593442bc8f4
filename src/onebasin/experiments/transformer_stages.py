"""Stages of transformers: alignment over groups of several sizes, by weights and on the path."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax

from onebasin.alignment import PathLoss, align
from onebasin.alignment.activations import objective_on
from onebasin.choices import ObjectiveName
from onebasin.experiments.common_stages import OVERHEAD, POSTERIOR, evaluation_seconds, load_inputs
from onebasin.experiments.learned_barriers import learning_seconds
from onebasin.experiments.setting import TransformerSetting, problem, symmetry
from onebasin.experiments.stage import Work, step
from onebasin.posterior import save
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.tensor_files import finite

GroupName: TypeAlias = Literal["permutations", "own orders", "all"]
TARGET = "target.safetensors"


@dataclass(frozen=True)
class AlignOver:
    """Align posterior `q1` to `q0` over a group of the network's symmetries."""

    setting: TransformerSetting
    objective: ObjectiveName = "l2"
    over: GroupName = "permutations"
    """Permutations with one order of dimensions for all heads, with an own order for each head,
    or with signs, scales, rotations and invertible maps as well."""
    examples: int = 500
    """Training examples on which activations are computed."""
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{self.objective}, {self.over}, {self.setting.title}"


def align_seconds(config: AlignOver) -> float:
    return 2 * OVERHEAD + evaluation_seconds(config.setting, 2 * config.examples)


@step(version=2, seconds=align_seconds)
def align_over(config: AlignOver, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """Both posteriors, `q0` with the gains folded that rotations need so, and what was found."""
    task, group = problem(config.setting), group_of(config.setting, config.over)
    q0, q1 = load_inputs(config.setting, inputs).values()
    q0, q1 = group.canonical(q0), group.canonical(q1)
    objective = objective_on(config.objective, task.apply, task.x[: config.examples])
    key = jax.random.key(config.seed)
    found = align(q1, to=q0, symmetry=group, objective=objective, key=key)
    for name, posterior in ((POSTERIOR, found.posterior), (TARGET, q0)):
        save(work.folder / name, posterior, network=task.network, aligned_by=config.title)
    return {
        "kinds": {group.name: group.kind for group in group.groups},
        "distance_before": found.distance_before,
        "distance_after": found.distance_after,
        "transpositions": int(found.transpositions.total),
        "units": sum(part.size for part in group.groups),
        "converged": found.converged,
    }


@dataclass(frozen=True)
class LearnOver:
    """Learn permutations, rotations and invertible maps of `q1` on the path to `q0`.

    Both have folded gains, and `q1` is where weight matching over the same group left it.
    """

    setting: TransformerSetting
    steps: int = 600
    turns: int = 600
    exchanges: int = 100
    batch_size: int = 100
    judged: int = 500
    """Training examples on which is judged, and which are not learned from."""
    seed: int = 0

    @property
    def title(self) -> str:
        counts = f"{self.steps} + {self.turns} steps, {self.exchanges} exchanges"
        return f"{counts}, all, {self.setting.title}"


@dataclass(frozen=True)
class LearnOverFaster(LearnOver):
    """The same with larger steps of scales and matrices.

    It is a type of its own so that the stages which were recorded without it keep their keys.
    """

    turning_rate: float = 0.1


def learn_over_seconds(config: LearnOver) -> float:
    steps = config.steps + config.turns
    return 2 * learning_seconds(
        config.setting, steps, config.exchanges, config.batch_size, config.judged
    )


@step(version=2, seconds=learn_over_seconds)
def learn_over(config: LearnOver, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, group = problem(config.setting), group_of(config.setting, "all")
    q0, q1 = load_inputs(config.setting, inputs).values()
    faster = isinstance(config, LearnOverFaster)
    objective = PathLoss(
        task,
        steps=config.steps,
        turns=config.turns,
        turning_rate=config.turning_rate if faster else PathLoss.turning_rate,
        exchanges=config.exchanges,
        batch_size=config.batch_size,
        judged=config.judged,
        progress=work.progress,
    )
    found = align(
        q1,
        to=q0,
        symmetry=group,
        objective=objective,
        starts="identity",
        key=jax.random.key(config.seed),
    )
    save(work.folder / POSTERIOR, found.posterior, network=task.network, aligned_by=config.title)
    return finite({"trace": [-float(score) for score in found.trace]})


@lru_cache(maxsize=8)
def group_of(setting: TransformerSetting, over: GroupName) -> Symmetry:
    """The group of a name."""
    if over == "permutations":
        return symmetry(setting)
    if over == "own orders":
        return find_symmetry(problem(setting), own_orders=True)
    return find_symmetry(problem(setting), kinds="all")
