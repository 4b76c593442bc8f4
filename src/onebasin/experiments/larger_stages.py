"""Gaussians for chains of a larger network: factors along the outputs, and calibrated noise.

The draws are rebased and balanced as ours are. The factors are the directions in which the outputs
vary, and the independent noise is that of a Gaussian fitted to the weights, scaled to predict as
the draws do. With several components the draws are first divided, in the one frame they share, by
what they predict; each part has its own Gaussian, and the rank is shared out.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans

from onebasin.alignment import Activations
from onebasin.compaction import Rebase, calibrate, compact
from onebasin.experiments.common_stages import POSTERIOR, load_inputs
from onebasin.experiments.compact_stages import OURS, Half, chains_of
from onebasin.experiments.setting import Setting, problem, symmetry
from onebasin.experiments.stage import File, Stage, Work, step
from onebasin.posterior import LowRank, Mixture, Samples, save
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry
from onebasin.trees import take_entry

FEWEST = 4  # draws of a component
DIRECTIONS = 20  # of the outputs, by which draws are divided


@dataclass(frozen=True)
class CalibratedGaussians:
    setting: Setting
    half: Half
    rank: int
    """Of all components together."""
    components: int = 1
    examples: int = 1000
    """Training images on which outputs are compared, without labels."""

    @property
    def title(self) -> str:
        count = f"{self.components} Gaussians" if self.components > 1 else "one Gaussian"
        return f"{count} of rank {self.rank}, outputs and calibrated, {self.setting.title}"


def seconds(config: CalibratedGaussians) -> float:
    return 6.0 if config.setting.data == "digits" else 90.0


@step(version=1, seconds=seconds)
def calibrated_gaussians(
    config: CalibratedGaussians, inputs: dict[str, Path], work: Work
) -> dict[str, Any]:
    task, sym = problem(config.setting), symmetry(config.setting)
    samples = chains_of(load_inputs(config.setting, inputs)["draws"], config.half)
    images = task.x[: config.examples]
    rebase = Rebase(OURS["rebase"], objective=Activations(task, images))
    moved = compact(
        samples,
        symmetry=sym,
        rebase=rebase,
        balance=OURS["balance"],
        network=task,
        x=images,
        progress=work.progress,
    ).samples
    groups = divided(task, moved, images, config.components)
    parts, kept = [], []
    for own in groups:
        draws = Samples(take_entry(moved.draws, own), moved.chain[own])
        rank = max(1, min(config.rank // len(groups), len(own) - 1))
        part, diagonal = outputs_and_noise(task, sym, draws, images, rank)
        parts.append(part)
        kept.append(diagonal)
    shares = jnp.asarray([len(own) / samples.num_draws for own in groups])
    found = parts[0] if len(parts) == 1 else Mixture(tuple(parts), shares)
    save(work.folder / POSTERIOR, found, network=task.network, calibrated=config.title)
    return {
        "draws": samples.num_draws,
        "components": len(parts),
        "shares": shares.tolist(),
        "rank": sum(part.rank for part in parts),
        "diagonal_kept": kept,
    }


def divided(task: Problem, samples: Samples, images: Any, components: int) -> list[np.ndarray]:
    """The draws of each component, by k-means in the leading directions of the outputs.

    There are fewer components than asked for if one would have hardly any draws.
    """
    if components == 1:
        return [np.arange(samples.num_draws)]
    outputs = jax.jit(lambda draws: jax.lax.map(lambda p: task.apply(p, images), draws))
    values = np.asarray(outputs(samples.draws)).reshape(samples.num_draws, -1)
    left, lengths, _ = np.linalg.svd(values - values.mean(0), full_matrices=False)
    places = (left * lengths)[:, :DIRECTIONS]
    for count in range(components, 1, -1):
        means: Any = KMeans(count, n_init="auto", random_state=0)
        labels = means.fit_predict(places)
        groups = [np.flatnonzero(labels == label) for label in range(count)]
        if min(map(len, groups)) >= FEWEST:
            return groups
    return [np.arange(samples.num_draws)]


def outputs_and_noise(
    task: Problem, sym: Symmetry, draws: Samples, images: Any, rank: int
) -> tuple[LowRank, float]:
    """Factors along the outputs, noise of the weights as far as it does not blur predictions."""
    options: Any = {"symmetry": sym, "rank": rank, "rebase": "none", "progress": "silent"}
    weights = compact(draws, **options).posterior
    outputs = compact(draws, **options, fit="outputs", network=task, x=images).posterior
    assert isinstance(outputs, LowRank)
    joined = LowRank(outputs.mean, weights.std, outputs.factors, outputs.state)
    found = calibrate(joined, to=draws, network=task, x=images, key=jax.random.key(0))
    assert isinstance(found.posterior, LowRank)
    return found.posterior, found.diagonal


def fitted_to(draws: File, config: CalibratedGaussians) -> Stage:
    return Stage(calibrated_gaussians, config, {"draws": draws})
