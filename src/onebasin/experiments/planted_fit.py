"""A network that is trained from initial weights permuted by a known number of transpositions.

The stage of a sweep over such numbers: the networks of a repeat begin at the same weights up to a
permutation, and see the batches in orders of their own, as in `planted_study`, but each is a stage
of its own.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from onebasin.experiments.common_stages import POSTERIOR, Fit, fit_seconds
from onebasin.experiments.setting import Setting, problem, symmetry
from onebasin.experiments.stage import Stage, Work, step
from onebasin.inference.methods import MAP
from onebasin.inference.trajectories import train
from onebasin.keys import subkey
from onebasin.posterior import Samples, save
from onebasin.trees import add_axis


@dataclass(frozen=True)
class PlantedFit:
    """One of the networks of a repeat."""

    setting: Setting
    method: MAP
    planted: int | None = None
    """Transpositions of the initial weights in every group; None for the network as it began."""
    repeat: int = 0
    seed: int = 0

    @property
    def title(self) -> str:
        moved = "" if self.planted is None else f", {self.planted} transpositions planted"
        return f"MAP of {self.setting.title}, repeat {self.repeat}{moved}"


@step(version=1, seconds=lambda config: fit_seconds(Fit(config.setting, config.method)))
def fit_planted(config: PlantedFit, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs
    task, moves = problem(config.setting), symmetry(config.setting)
    own = jax.random.fold_in(jax.random.key(config.seed), config.repeat)
    start, key = task.init(subkey(own, "init")), subkey(own, "W0")
    if config.planted is not None:
        mine = jax.random.fold_in(own, config.planted)
        move = moves.random(key=subkey(mine, "planted"), transpositions=config.planted)
        start, key = moves.act(move, start), subkey(mine, "W1")
    (trained,) = train(
        task, config.method, add_axis(start), keys=jnp.stack([key]), progress=work.progress
    )
    save(work.folder / POSTERIOR, Samples(trained), network=task.network)
    return {"planted": config.planted}


def planted_fit(config: PlantedFit) -> Stage:
    """The stage of one network, refused if its groups do not have so many transpositions."""
    if not isinstance(config.method, MAP):
        raise ValueError("planted is for networks that are trained; set method: map")
    width = config.setting.width
    if config.planted is not None and not 0 <= config.planted < width:
        raise ValueError(
            f"planted cannot be {config.planted}; a permutation of {width} units is a product of "
            f"at most {width - 1} transpositions"
        )
    return Stage(fit_planted, config)
