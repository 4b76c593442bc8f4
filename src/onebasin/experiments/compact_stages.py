"""The stages of the experiments of Xiao et al.: HMC draws, an ensemble, VI, their Gaussians."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from onebasin.alignment import Activations
from onebasin.choices import FitTarget, RebaseName
from onebasin.compaction import Rebase, calibrate, compact
from onebasin.experiments import presets
from onebasin.experiments.common_stages import POSTERIOR, Fit, fit_posterior, load_inputs
from onebasin.experiments.setting import Setting, problem, symmetry
from onebasin.experiments.stage import File, Stage, Work, step
from onebasin.inference.methods import HMC, VI, Ensemble
from onebasin.posterior import Samples, save
from onebasin.trees import take_entry

Half = Literal["all", "first", "second"]


@dataclass(frozen=True)
class Sources:
    """A network with one hidden layer and a N(0, 1) prior, and three posteriors of it.

    The first half of the chains is compacted and the second half is the reference, so that a
    Gaussian is never compared with the draws it was made from.
    """

    setting: Setting
    hmc: HMC
    ensemble: Ensemble
    vi: VI
    seed: int = 0

    def fits(self) -> dict[str, File]:
        methods = {"hmc": self.hmc, "ensemble": self.ensemble, "vi": self.vi}
        return {
            name: Stage(fit_posterior, Fit(self.setting, method, self.seed))[POSTERIOR]
            for name, method in methods.items()
        }

    @property
    def title(self) -> str:
        hmc = self.hmc
        return (
            f"{self.setting.title}, N(0, {self.setting.prior_variance:g}) prior; HMC: "
            f"{hmc.chains} chains × {hmc.draws} draws, {hmc.leapfrog_steps} leapfrog steps of "
            f"{hmc.step_size:g}; ensemble of {self.ensemble.members}; VI of {self.vi.epochs} epochs"
        )


def chains_of(samples: Samples, half: Half) -> Samples:
    """The draws of all chains, or of the first or second half of them."""
    chain = np.asarray(samples.chain)
    first, second = np.array_split(np.unique(chain), 2)
    wanted = {"all": np.unique(chain), "first": first, "second": second}[half]
    if not len(wanted):
        raise ValueError(f"one chain has no {half} half; draw at least two chains")
    own = np.flatnonzero(np.isin(chain, wanted))
    return Samples(take_entry(samples.draws, own), samples.chain[own])


@dataclass(frozen=True)
class CompactDraws:
    """One Gaussian for draws, rebased as published (anchor, activations) or as we do."""

    setting: Setting
    half: Half = "all"
    rebase: RebaseName = "none"
    balance: bool = False
    rank: int = 0
    fit: FitTarget = "weights"
    examples: int = 500
    """Training images on which units are compared, without labels."""

    @property
    def title(self) -> str:
        words = [f"rebase {self.rebase}"]
        if self.balance:
            words.append("balanced")
        if self.rank:
            words.append(f"rank {self.rank}")
        if self.fit == "outputs":
            words.append("factors of the outputs")
        return f"{', '.join(words)}, {self.setting.title}"


OURS: dict[str, Any] = {"rebase": "contributions", "balance": True}
"""How we rebase draws: scales balanced, units matched by their contributions to the outputs."""


def compact_seconds(config: CompactDraws) -> float:
    toy = config.setting.data == "digits"
    moving = {"none": 2.0, "anchor": 15.0}.get(config.rebase, 40.0)
    return 3.0 if toy else moving


@step(version=1, seconds=compact_seconds)
def compact_draws(config: CompactDraws, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, sym = problem(config.setting), symmetry(config.setting)
    samples = chains_of(load_inputs(config.setting, inputs)["draws"], config.half)
    images = task.x[: config.examples]
    found = compact(
        samples,
        symmetry=sym,
        rank=config.rank,
        rebase=Rebase(config.rebase, objective=Activations(task, images)),
        fit=config.fit,
        balance=config.balance,
        network=task,
        x=images,
        progress=work.progress,
    )
    save(work.folder / POSTERIOR, found.posterior, network=task.network, compact=config.title)
    sigma = all_sigmas(found.posterior)
    return {
        "draws": samples.num_draws,
        "rounds": found.rounds,
        "converged": found.converged,
        "log_likelihood": found.log_likelihood,
        "sigma_median": float(np.median(sigma)),
        "sigma_mean": float(sigma.mean()),
    }


def all_sigmas(posterior: Any) -> np.ndarray:
    """The standard deviations of all weights in one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(posterior.moments()[1])])


@dataclass(frozen=True)
class Calibrate:
    """Scale the noise of a Gaussian so that it predicts on training images as the draws do."""

    setting: Setting
    half: Half
    examples: int = 500

    @property
    def title(self) -> str:
        return f"on {self.examples} images, {self.setting.title}"


@step(version=1, seconds=lambda config: 3.0 if config.setting.data == "digits" else 20.0)
def calibrate_noise(config: Calibrate, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, loaded = problem(config.setting), load_inputs(config.setting, inputs)
    found = calibrate(
        loaded["posterior"],
        to=chains_of(loaded["draws"], config.half),
        network=task,
        x=task.x[: config.examples],
        key=jax.random.key(0),
    )
    save(work.folder / POSTERIOR, found.posterior, network=task.network, calibrated=config.title)
    return {"diagonal_kept": found.diagonal, "factors_times": found.factors}


def compacted(draws: File, config: CompactDraws) -> Stage:
    return Stage(compact_draws, config, {"draws": draws})


def as_published(sources: Sources, kind: Literal["HMC", "Ens."]) -> dict[str, Stage]:
    """q_d and q_r of HMC (of the first half of its chains) or of the ensemble, and our q_r."""
    draws = sources.fits()["hmc" if kind == "HMC" else "ensemble"]
    raw = CompactDraws(sources.setting, "first" if kind == "HMC" else "all")
    return {
        f"{kind} q_d": compacted(draws, raw),
        f"{kind} q_r": compacted(draws, replace(raw, rebase="anchor")),
        f"{kind} q_r, ours": compacted(draws, replace(raw, **OURS)),
    }


def calibrated(draws: File, posterior: Stage, config: Calibrate) -> Stage:
    files = {"draws": draws, "posterior": posterior[POSTERIOR]}
    return Stage(calibrate_noise, config, files)


ENSEMBLE = Ensemble(members=5, epochs=50, batch_size=100, learning_rate=1e-3, schedule="constant")
TOY = Sources(
    Setting("digits", width=12, depth=1, prior_variance=1.0, limit=500),
    HMC(draws=16, warmup=40, chains=8, leapfrog_steps=20, step_size=0.02),
    Ensemble(members=5, epochs=80, batch_size=125, learning_rate=1e-2),
    VI(epochs=100, batch_size=125, learning_rate=1e-2, **presets.SIGMA),
)
# 7,000 images and width 128: two fast cores draw these 640 samples in 28 minutes. The few weights
# into the outputs are the stiff ones: larger masses for them allow longer steps.
CPU = Sources(
    Setting("mnist", width=128, depth=1, prior_variance=1.0, limit=7000),
    HMC(
        draws=160,
        warmup=10,
        chains=4,
        leapfrog_steps=325,
        step_size=4.6e-3,
        adapt_step_size=False,
        masses=(("Dense_1/kernel", 2.0), ("Dense_1/bias", 2.0)),
        data_chunk=1000,
    ),
    ENSEMBLE,
    VI(epochs=300, batch_size=100, learning_rate=1e-3, **presets.SIGMA),
)
PAPER = Sources(
    Setting("mnist", width=512, depth=1, prior_variance=1.0),
    HMC(
        draws=9900,
        warmup=100,
        chains=2,  # published: one; a second is the reference here
        leapfrog_steps=500,
        step_size=1e-3,
        jitter=0.0,
        adapt_step_size=False,
    ),
    ENSEMBLE,
    VI(
        epochs=50,
        batch_size=100,
        initial_std=0.05,
        std_schedule="constant",
        learning_rate=1e-3,
        std_learning_rate=1e-3,
        antithetic=False,
        schedule="constant",
    ),
)
