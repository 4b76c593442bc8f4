"""The stages that experiments share: fit, align, measure a path."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax

from onebasin.alignment import align
from onebasin.alignment.activations import objective_on
from onebasin.alignment.frank_wolfe import FrankWolfe
from onebasin.alignment.sites import Which
from onebasin.choices import ObjectiveName, SplitName
from onebasin.data import Split
from onebasin.evaluation.profiles import profile
from onebasin.experiments.setting import Setting, dataset, flops, gradient_flops, problem, symmetry
from onebasin.experiments.stage import File, Stage, Work, step
from onebasin.inference.fit_result import lasting_stats
from onebasin.inference.fitting import fit
from onebasin.inference.methods import HMC, MAP, MCLMC, NUTS, VI, Ensemble
from onebasin.inference.vi_defaults import EPOCHS
from onebasin.paths import geodesic, mixture_path, repair
from onebasin.posterior import load, save
from onebasin.tensor_files import finite

POSTERIOR = "posterior.safetensors"
TimedMethod: TypeAlias = VI | MAP | Ensemble | HMC | NUTS | MCLMC
"""The methods whose time `fit_seconds` estimates."""

# Floating-point operations per second on the reference machine of `speed`.
TRAINING_RATE = {"mlp": 85e9, "lenet": 30e9, "resnet20": 31e9, "vit": 60e9, "gpt": 50e9}
FULL_BATCH_RATE = 140e9
EVALUATION_RATE = {"mlp": 120e9, "lenet": 35e9, "resnet20": 35e9, "vit": 60e9, "gpt": 50e9}
OVERHEAD = 3.0  # seconds of compiling


def evaluation_seconds(setting: Setting, passes: int) -> float:
    """The time of as many forward passes of one example."""
    return OVERHEAD + passes * flops(setting) / EVALUATION_RATE[setting.network]


def load_inputs(setting: Setting, inputs: Mapping[str, Path]) -> dict[str, Any]:
    """The posteriors in the input files of a stage, in the order of its plan."""
    shapes = problem(setting).shapes
    return {name: load(path, like=shapes) for name, path in inputs.items()}


@dataclass(frozen=True)
class Fit:
    """One posterior, or `runs` independent ones fitted in one program."""

    setting: Setting
    method: TimedMethod
    seed: int = 0
    runs: int | None = None

    @property
    def title(self) -> str:
        times = "" if self.runs is None else f" × {self.runs}"
        return f"{type(self.method).__name__}{times} of {self.setting.title}, seed {self.seed}"


def fit_seconds(config: Fit) -> float:
    setting, method = config.setting, config.method
    one = gradient_flops(setting) * setting.num_train
    match method:
        case HMC() | NUTS():
            steps = method.leapfrog_steps if isinstance(method, HMC) else 2**7
            rounds = method.chains * (method.warmup + method.draws * method.thin) * steps
            seconds = rounds * one / FULL_BATCH_RATE
        case MCLMC():
            two = 2 if method.integrator == "two-stage" else 1
            rounds = method.mode_epochs + two * (method.warmup + method.draws * method.thin)
            seconds = method.chains * rounds * one / FULL_BATCH_RATE
        case Ensemble():
            seconds = method.members * method.epochs * one / TRAINING_RATE[setting.network]
        case VI() | MAP():
            epochs = method.epochs or EPOCHS  # at least
            seconds = epochs * one / TRAINING_RATE[setting.network]
    return OVERHEAD + seconds * (config.runs or 1)


def fit_replicas(config: Fit) -> int:
    """The number of chains, members or single fits that share the devices."""
    match config.method:
        case HMC() | NUTS() | MCLMC():
            each = config.method.chains
        case Ensemble():
            each = config.method.members
        case VI() | MAP():
            each = 1
    return each * (config.runs or 1)


@step(version=1, seconds=fit_seconds, resumes=True, spreads=fit_replicas)
def fit_posterior(config: Fit, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """Fit; an interrupted fit continues from its checkpoint."""
    del inputs
    found = fit(
        problem(config.setting),
        config.method,
        key=jax.random.key(config.seed),
        runs=config.runs,
        out=work.folder / POSTERIOR,
        history=work.folder / "history.jsonl",
        resume=True,
        progress=work.progress,
        checkpoint_interval=work.checkpoint_interval,
    )
    results = found if isinstance(found, list) else [found]
    runs = [
        {
            "stats": {
                name: value
                for name, value in lasting_stats(result.stats).items()
                if not isinstance(value, list | dict)
            },
            "last": {n: v for n, v in (result.history or [{}])[-1].items() if n != "seconds"},
        }
        for result in results
    ]
    return finite({"runs": runs})


def fits(
    setting: Setting, method: TimedMethod, count: int, *, seed: int = 0, together: int = 0
) -> list[File]:
    """The files of `count` independent posteriors.

    Each is a stage of its own, shared by every experiment that needs it. Otherwise `together` of
    them are fitted by one program, which is faster where compiling takes longer than fitting and
    where one fit does not keep all cores busy.
    """
    if 0 < together < count:
        raise ValueError(
            f"{count} posteriors are needed but only {together} are fitted together; "
            f"set together to at least {count}, or to 0"
        )
    if together:
        stage = Stage(fit_posterior, Fit(setting, method, seed, together))
        return [stage[f"posterior-{run}.safetensors"] for run in range(count)]
    stages = [Stage(fit_posterior, Fit(setting, method, seed + run)) for run in range(count)]
    return [stage[POSTERIOR] for stage in stages]


@dataclass(frozen=True)
class Align:
    """Align posterior `q1` to `q0`."""

    setting: Setting
    objective: ObjectiveName = "w2"
    random_starts: int = 0
    """Random starts in addition to the usual one; the best result is kept."""
    activation_start: bool = False
    """Also start from the permutation that best matches activations on data."""
    search: bool = False
    """Continue with the Frank–Wolfe method where coordinate descent is stuck."""
    examples: int = 1000
    """Training images on which activations are computed."""
    seed: int = 0

    @property
    def title(self) -> str:
        extras = [self.objective]
        if self.random_starts:
            extras.append(f"{self.random_starts} random starts")
        if self.activation_start:
            extras.append("activation start")
        if self.search:
            extras.append("Frank–Wolfe")
        return f"{', '.join(extras)}, {self.setting.title}"


@dataclass(frozen=True)
class AlignAtSites(Align):
    """The same with units compared at other sites than after the nonlinearity alone.

    A class of its own, since `Align` as it is identifies the stages of committed records.
    """

    sites: Which | None = None
    """None for those that the objective prefers."""


@step(version=1, seconds=lambda config: 2.0 + 20 * config.search + 2 * config.random_starts)
def align_posterior(config: Align, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    task, sym = problem(config.setting), symmetry(config.setting)
    q0, q1 = load_inputs(config.setting, inputs).values()
    images = task.x[: config.examples]
    sites = config.sites if isinstance(config, AlignAtSites) else "after"
    starts: list[Any] = ["auto", *["random"] * config.random_starts]
    if config.activation_start:
        starts.append(objective_on("activations", task.apply, images))
    found = align(
        q1,
        to=q0,
        symmetry=sym,
        objective=objective_on(config.objective, task.apply, images, sites=sites),
        starts=starts,
        search=FrankWolfe() if config.search else None,
        key=jax.random.key(config.seed),
    )
    save(work.folder / POSTERIOR, found.posterior, network=task.network, aligned_by=config.title)
    return {
        "objective": config.objective,
        "distance_before": found.distance_before,
        "distance_after": found.distance_after,
        "transpositions": int(found.transpositions.total),
        "units": sum(group.size for group in sym.groups),
        "converged": found.converged,
        "sweeps": found.sweeps,
        "starts": [{"name": s.name, "score": float(s.score)} for s in found.starts],
    }


def aligned(config: Align, q0: File, q1: File) -> Stage:
    return Stage(align_posterior, config, {"q0": q0, "q1": q1})


@dataclass(frozen=True)
class Measure:
    """The loss along a path from `q0` to `q1`."""

    setting: Setting
    path: Literal["geodesic", "repaired", "mixture"] = "geodesic"
    split: SplitName = "test"
    examples: int | None = None
    """Use only this many examples, the first ones; None for all."""
    points: int = 25
    num_samples: int = 128
    repair_examples: int = 1000
    seed: int = 0

    @property
    def num_examples(self) -> int:
        whole = self.setting.num_test if self.split == "test" else self.setting.num_train
        return min(self.examples or whole, whole)

    @property
    def title(self) -> str:
        return (
            f"{self.path} on {self.num_examples:,} {self.split} {self.setting.things}, "
            f"{self.points} points × {self.num_samples} draws, {self.setting.title}"
        )


def measure_seconds(config: Measure) -> float:
    draws = config.num_samples + 1
    points = {"geodesic": config.points, "repaired": 2 * config.points, "mixture": 2}[config.path]
    return evaluation_seconds(config.setting, points * draws * config.num_examples)


@step(version=1, seconds=measure_seconds)
def measure_path(config: Measure, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """The summary of a profile; that of a repaired path contains the plain one's."""
    task, data = problem(config.setting), dataset(config.setting.data)
    q0, q1 = load_inputs(config.setting, inputs).values()
    split = data.test if config.split == "test" else Split(task.x, task.y)
    path: Any = mixture_path(q0, q1) if config.path == "mixture" else geodesic(q0, q1)
    if config.path == "repaired":
        images = task.x[: config.repair_examples]
        path = repair(path, task.apply, images, symmetry=symmetry(config.setting))
    found = profile(
        path,
        task.apply,
        split.first(config.examples),
        key=jax.random.key(config.seed),
        points=config.points,
        num_samples=config.num_samples,
        progress=work.progress,
    )
    return finite(found.summary())


def measured(config: Measure, q0: File, q1: File, **changes: Any) -> Stage:
    return Stage(measure_path, replace(config, **changes), {"q0": q0, "q1": q1})
