"""Stages of transformers: alignment over groups of several sizes."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax

from onebasin.alignment import align
from onebasin.alignment.activations import objective_on
from onebasin.choices import ObjectiveName
from onebasin.experiments.common_stages import OVERHEAD, POSTERIOR, evaluation_seconds, load_inputs
from onebasin.experiments.setting import TransformerSetting, problem, symmetry
from onebasin.experiments.stage import Work, step
from onebasin.posterior import save
from onebasin.symmetry import Symmetry, find_symmetry

GroupName: TypeAlias = Literal["permutations", "own orders"]


@dataclass(frozen=True)
class AlignOver:
    """Align posterior `q1` to `q0` over a group of the network's symmetries."""

    setting: TransformerSetting
    objective: ObjectiveName = "l2"
    over: GroupName = "permutations"
    """Permutations with one order of dimensions for all heads, or an own order for each head."""
    examples: int = 500
    """Training examples on which activations are computed."""
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{self.objective}, {self.over}, {self.setting.title}"


def align_seconds(config: AlignOver) -> float:
    return 2 * OVERHEAD + evaluation_seconds(config.setting, 2 * config.examples)


@step(version=1, seconds=align_seconds)
def align_over(config: AlignOver, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, group = problem(config.setting), group_of(config.setting, config.over)
    q0, q1 = load_inputs(config.setting, inputs).values()
    objective = objective_on(config.objective, task.apply, task.x[: config.examples])
    key = jax.random.key(config.seed)
    found = align(q1, to=q0, symmetry=group, objective=objective, key=key)
    save(work.folder / POSTERIOR, found.posterior, network=task.network, aligned_by=config.title)
    return {
        "distance_before": found.distance_before,
        "distance_after": found.distance_after,
        "transpositions": int(found.transpositions.total),
        "units": sum(part.size for part in group.groups),
        "converged": found.converged,
    }


@lru_cache(maxsize=8)
def group_of(setting: TransformerSetting, over: GroupName) -> Symmetry:
    """The group of a name."""
    if over == "permutations":
        return symmetry(setting)
    return find_symmetry(problem(setting), own_orders=True)
