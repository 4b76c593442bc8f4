"""`onebasin fit vi|map|ensemble|hmc|nuts`: typed options, and the function that runs them.

Nothing heavy is imported until `run` is called, so help and errors in flags are instant.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import DataName, NetworkName
from onebasin.inference.methods import HMC, MAP, NUTS, VI, Ensemble, Method
from onebasin.progress import ProgressStyle


@dataclass(frozen=True)
class Setting:
    """What is fitted, and where it goes."""

    out: Path
    """Posterior file to write (--runs adds -0, -1, ...)."""
    data: DataName = "digits"
    """Data set to fit."""
    root: Path | None = None
    """Folder of the data sets; by default ONEBASIN_DATA, then the cache."""
    limit: int | None = None
    """Use only the first so many training examples."""
    network: NetworkName = "mlp"
    """Network to fit."""
    width: int | None = None
    """Base width; by default 512 (mlp) or 16 (lenet, resnet20)."""
    depth: int = 3
    """Hidden layers of the mlp."""
    prior_variance: float = 0.01
    """Variance of the Gaussian prior on every weight."""
    temperature: float = 1.0
    """Divides the log likelihood; 1 is the Bayesian posterior."""
    augmentation: float = 1.0
    """Factor on the number of examples, for augmented data."""
    seed: int = 0
    """All randomness follows from it."""
    runs: int | None = None
    """So many independent fits in one program."""
    resume: bool = False
    """Continue from the checkpoint, or start if there is none."""
    overwrite: bool = False
    """Replace files that exist."""
    checkpoint: Path | None = None
    """Checkpoint file; by default --out with .checkpoint added."""
    checkpoint_interval: float = 60.0
    """Seconds between checkpoints."""
    history: Path | None = None
    """Write the history here, one JSON object per line."""
    progress: ProgressStyle = "auto"
    """How to show progress (on standard error)."""
    json: bool = False
    """Print the summary as one JSON object on standard output."""


Flat = tyro.conf.arg(name="")


@dataclass(frozen=True)
class FitVI:
    """Fit a mean-field Gaussian by variational inference.

    Example: onebasin fit vi --data mnist --epochs 30 --seed 1 --out q1.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[VI, Flat] = field(default_factory=VI)


@dataclass(frozen=True)
class FitMAP:
    """Find the mode of the posterior.

    Example: onebasin fit map --data mnist --epochs 30 --out mode.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[MAP, Flat] = field(default_factory=MAP)


@dataclass(frozen=True)
class FitEnsemble:
    """Fit a deep ensemble.

    Example: onebasin fit ensemble --data mnist --members 5 --out ensemble.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[Ensemble, Flat] = field(default_factory=Ensemble)


@dataclass(frozen=True)
class FitHMC:
    """Draw from the posterior by Hamiltonian Monte Carlo.

    Example: onebasin fit hmc --limit 500 --width 50 --depth 1 --out hmc.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[HMC, Flat] = field(default_factory=HMC)


@dataclass(frozen=True)
class FitNUTS:
    """Draw from the posterior with the no-U-turn sampler.

    Example: onebasin fit nuts --limit 500 --width 50 --depth 1 --out nuts.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[NUTS, Flat] = field(default_factory=NUTS)


COMMAND = {
    "vi": FitVI,
    "map": FitMAP,
    "ensemble": FitEnsemble,
    "hmc": FitHMC,
    "nuts": FitNUTS,
}
FitConfig = FitVI | FitMAP | FitEnsemble | FitHMC | FitNUTS


def run(config: FitConfig) -> None:
    """Fit, write the posterior and say in one line (or as JSON) what came out.

    Ctrl-C says how to resume and exits with code 130.
    """
    from onebasin.inference.signals import FitInterrupted

    try:
        results = _fit(config)
    except FitInterrupted as stopped:
        sys.stderr.write(f"onebasin: {stopped}\n")
        sys.exit(stopped.exit_code)
    for result in results:
        summary = _summary(config.method, result)
        as_json = config.setting.json
        sys.stdout.write(json.dumps(summary) + "\n" if as_json else _sentence(summary))


def _fit(config: FitConfig) -> list[Any]:
    setting = config.setting
    import jax

    from onebasin.data import load_dataset
    from onebasin.inference.fitting import fit
    from onebasin.networks import network_named
    from onebasin.problem import Problem

    data = load_dataset(setting.data, root=setting.root, limit=setting.limit)
    problem = Problem.from_network(
        network_named(
            setting.network,
            width=setting.width,
            depth=setting.depth,
            num_classes=data.num_classes,
        ),
        data,
        prior_variance=setting.prior_variance,
        temperature=setting.temperature,
        augmentation=setting.augmentation,
    )
    fitted = fit(
        problem,
        config.method,
        key=jax.random.key(setting.seed),
        runs=setting.runs,
        out=setting.out,
        checkpoint=setting.checkpoint,
        checkpoint_interval=setting.checkpoint_interval,
        resume=setting.resume,
        overwrite=setting.overwrite,
        progress=setting.progress,
        history=setting.history,
    )
    return fitted if isinstance(fitted, list) else [fitted]


def _summary(method: Method, result: Any) -> dict[str, Any]:
    last = result.history[-1] if result.history else {}
    stats = {k: v for k, v in result.stats.items() if isinstance(v, int | float | str)}
    return {"method": type(method).__name__, "out": str(result.path), **stats, "last": last}


def _sentence(summary: dict[str, Any]) -> str:
    from onebasin.inference.history import figures_of

    figures = figures_of(summary["last"])
    words = f"{summary['method']} → {summary['out']}"
    return f"{words}  {figures}  {summary['seconds']:.1f} s\n" if figures else f"{words}\n"
