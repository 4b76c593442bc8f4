"""`onebasin fit vi|swag|hmc|…`: fit a posterior and write it to a file."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onebasin.cli import shared
from onebasin.cli.usage import in_flags, option_names
from onebasin.inference.methods import (
    HMC,
    IVON,
    MAP,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    SWAG,
    VI,
    AdjustedMCLMC,
    Ensemble,
    Laplace,
)
from onebasin.progress import ProgressStyle, Reporter, reporting

if TYPE_CHECKING:
    from onebasin.inference.fit_result import FitResult


@dataclass(frozen=True)
class Setting(shared.SeededOptions, shared.OverwriteOption):
    """What is fitted, and where the result goes."""

    out: Path
    """Posterior file to write (--runs adds -0, -1, ...)."""
    data: str = "digits"
    """Data set, or file of your own, to fit."""
    limit: int | None = None
    """Use only the first LIMIT training examples."""
    network: str = "mlp"
    """mlp, lenet, resnet20, vit, gpt, or ./file.py:function."""
    width: int | None = None
    """Base width; by default mlp 512, convolutions 16, vit 192, gpt 128."""
    depth: int | None = None
    """Hidden layers or blocks; by default mlp 3, vit 6, gpt 4."""
    prior_variance: float = 0.01
    """Variance of the Gaussian prior on every weight."""
    temperature: float = 1.0
    """Divisor of the log likelihood; 1 for the posterior itself."""
    augmentation: float = 1.0
    """Factor on the number of examples, for augmented data."""
    runs: int | None = None
    """Number of independent fits in one program."""
    data_shards: int = 1
    """Devices that share the data of each run, member or chain."""
    resume: bool = False
    """Continue from the checkpoint, or start if there is none."""
    checkpoint: Path | None = None
    """Checkpoint file; by default --out with .checkpoint added."""
    checkpoint_interval: float = 60.0
    """Seconds between checkpoints."""
    history: Path | None = None
    """Write the history here, one JSON object per line."""
    progress: ProgressStyle = "auto"
    """How to show progress (on standard error)."""


Flat = tyro.conf.arg(name="")


@dataclass(frozen=True)
class FitVI:
    """Fit a mean-field Gaussian by variational inference.

    Example: onebasin fit vi --data mnist --epochs 30 --seed 1 --out q1.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[VI, Flat] = field(default_factory=VI)


@dataclass(frozen=True)
class FitIVON:
    """Fit a mean-field Gaussian by natural gradients (IVON).

    Example: onebasin fit ivon --data mnist --epochs 30 --out q.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[IVON, Flat] = field(default_factory=IVON)


@dataclass(frozen=True)
class FitSWAG:
    """Fit a Gaussian to an SGD trajectory (SWAG).

    Example: onebasin fit swag --data mnist --epochs 60 --rank 20 --out swag.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[SWAG, Flat] = field(default_factory=SWAG)


@dataclass(frozen=True)
class FitLaplace:
    """Fit a Gaussian at a mode, with the curvature there (Laplace).

    Example: onebasin fit laplace --data mnist --mode-epochs 30 --rank 50 --out laplace.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[Laplace, Flat] = field(default_factory=Laplace)


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


@dataclass(frozen=True)
class FitMCLMC:
    """Draw by microcanonical Langevin dynamics, uncorrected.

    Example: onebasin fit mclmc --limit 500 --width 50 --depth 1 --chains 8 --mode-epochs 20
    --out mclmc.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[MCLMC, Flat] = field(default_factory=MCLMC)


@dataclass(frozen=True)
class FitAdjustedMCLMC:
    """Draw by microcanonical trajectories, accepted or rejected.

    Example: onebasin fit adjusted-mclmc --limit 500 --width 50 --depth 1 --out draws.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[AdjustedMCLMC, Flat] = field(default_factory=AdjustedMCLMC)


@dataclass(frozen=True)
class FitSGLD:
    """Draw by stochastic-gradient Langevin dynamics (small bias).

    Example: onebasin fit sgld --data mnist --warmup-epochs 40 --cycle-epochs 50
    --out draws.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[SGLD, Flat] = field(default_factory=SGLD)


@dataclass(frozen=True)
class FitSGHMC:
    """Draw by stochastic-gradient Hamiltonian Monte Carlo.

    Example: onebasin fit sghmc --data mnist --warmup-epochs 40 --cycle-epochs 50
    --out draws.safetensors
    """

    setting: Annotated[Setting, Flat]
    method: Annotated[SGHMC, Flat] = field(default_factory=SGHMC)


COMMAND = {
    "vi": FitVI,
    "map": FitMAP,
    "ensemble": FitEnsemble,
    "hmc": FitHMC,
    "nuts": FitNUTS,
    "mclmc": FitMCLMC,
    "adjusted-mclmc": FitAdjustedMCLMC,
    "ivon": FitIVON,
    "swag": FitSWAG,
    "laplace": FitLaplace,
    "sgld": FitSGLD,
    "sghmc": FitSGHMC,
}
FitConfig = (
    FitVI
    | FitMAP
    | FitEnsemble
    | FitHMC
    | FitNUTS
    | FitMCLMC
    | FitAdjustedMCLMC
    | FitIVON
    | FitSWAG
    | FitLaplace
    | FitSGLD
    | FitSGHMC
)


def run(config: FitConfig) -> None:
    """Fit, write the posteriors and report each on one line."""
    setting = config.setting
    shared.check_size(setting.network, setting.width, setting.depth)
    import jax

    from onebasin import processes
    from onebasin.cli.opening import likelihood_for, network_for, problem_of
    from onebasin.inference.fitting import fit

    data = shared.read_data(setting, setting.data, setting.root, limit=setting.limit)
    likelihood = likelihood_for(setting, data)
    network = network_for(
        setting.network, data, likelihood.name, width=setting.width, depth=setting.depth
    )
    problem = problem_of(
        network,
        data,
        likelihood,
        prior_variance=setting.prior_variance,
        temperature=setting.temperature,
        augmentation=setting.augmentation,
    )
    with reporting(setting.progress) as report:
        fitted = fit(
            problem,
            config.method,
            key=jax.random.key(setting.seed),
            runs=setting.runs,
            out=setting.out,
            checkpoint=setting.checkpoint,
            checkpoint_interval=setting.checkpoint_interval,
            data_shards=setting.data_shards,
            resume=setting.resume,
            overwrite=setting.overwrite,
            progress=_InFlags(report, type(config)),
            history=setting.history,
        )
    if processes.is_first():
        for result in fitted if isinstance(fitted, list) else [fitted]:
            _report(config, result)


class _InFlags(Reporter):
    """A reporter whose notes speak of flags, and are never silent."""

    def __init__(self, inner: Reporter, command: type) -> None:
        super().__init__()
        self.inner, self.names = inner, option_names(command)

    def __call__(self, what: str, done: int, total: int, figures: str = "") -> None:
        self.inner(what, done, total, figures)

    def note(self, text: str) -> None:
        self.inner.close()
        sys.stderr.write(f"note: {in_flags(text, self.names)}\n")


def _report(config: FitConfig, result: "FitResult") -> None:
    from onebasin.inference.history import figures_of

    method = type(config.method).__name__
    last = result.history[-1] if result.history else {}
    stats: dict[str, Any] = {
        name: value for name, value in result.stats.items() if isinstance(value, int | float | str)
    }
    summary = {"method": method, "out": str(result.path), **stats, "last": last}
    names = option_names(type(config))
    summary |= {"notes": [in_flags(note, names) for note in result.notes]}
    words = [f"{method} → {result.path}"]
    if closing := result.summary or figures_of(last):
        words.append(closing)
    if "seconds" in stats:  # not if the fit had ended before
        words.append(f"{stats['seconds']:.1f} s")
    shared.print_result(summary, words, as_json=config.setting.json)
