"""`fit`: checks what is asked for, builds the program of the method and runs it."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import (
    Any,
    Required,
    TypedDict,
    Unpack,
    overload,
)

import jax
import numpy as np

from onebasin import processes
from onebasin.inference import (
    adjusted_mclmc,
    hmc,
    ivon,
    laplace,
    map_estimate,
    mclmc,
    nuts,
    stochastic_gradient,
    swag,
    vi,
)
from onebasin.inference.files import Files
from onebasin.inference.fit_result import FitResult, finished_results
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
    FullBatchMethod,
    Laplace,
    LowRankMethod,
    MeanFieldMethod,
    Method,
    SampleMethod,
    to_config,
)
from onebasin.inference.program import Program
from onebasin.inference.running_fit import RunningFit
from onebasin.inference.shards import Shards
from onebasin.inference.vi_defaults import settled
from onebasin.keys import check_key
from onebasin.posterior import (
    Kronecker,
    LowRank,
    LowRankPrecision,
    MeanField,
    Samples,
)
from onebasin.problem import Problem
from onebasin.progress import Progress, check_progress, reporting
from onebasin.tensor_files import Pathlike

WITHOUT_STATISTICS = (Laplace,)
SHARING = (VI, MAP, Ensemble, HMC, NUTS, MCLMC, AdjustedMCLMC)
"""Methods whose replicas can each be spread over several devices."""
BUILDERS: dict[type[Method], Callable[..., Program]] = {
    VI: vi.build,
    IVON: ivon.build,
    SWAG: swag.build,
    Laplace: laplace.build,
    MAP: map_estimate.build,
    Ensemble: map_estimate.build,
    HMC: hmc.build,
    NUTS: nuts.build,
    MCLMC: mclmc.build,
    AdjustedMCLMC: adjusted_mclmc.build,
    SGLD: stochastic_gradient.build,
    SGHMC: stochastic_gradient.build,
}


class FitOptions(TypedDict, total=False):
    """The options of `fit` that do not change the type of its result."""

    key: Required[jax.Array]
    out: Pathlike | None
    checkpoint: Pathlike | None
    checkpoint_interval: float
    resume: bool
    overwrite: bool
    progress: Progress
    history: Pathlike | None
    chunk_steps: int | None
    data_shards: int


@overload
def fit(
    problem: Problem, method: MeanFieldMethod, *, runs: None = None, **options: Unpack[FitOptions]
) -> FitResult[MeanField]: ...
@overload
def fit(
    problem: Problem, method: MeanFieldMethod, *, runs: int, **options: Unpack[FitOptions]
) -> list[FitResult[MeanField]]: ...
@overload
def fit(
    problem: Problem, method: LowRankMethod, *, runs: None = None, **options: Unpack[FitOptions]
) -> FitResult[LowRank]: ...
@overload
def fit(
    problem: Problem, method: LowRankMethod, *, runs: int, **options: Unpack[FitOptions]
) -> list[FitResult[LowRank]]: ...
@overload
def fit(
    problem: Problem, method: Laplace, *, runs: None = None, **options: Unpack[FitOptions]
) -> FitResult[MeanField | LowRankPrecision | Kronecker]: ...
@overload
def fit(
    problem: Problem, method: Laplace, *, runs: int, **options: Unpack[FitOptions]
) -> list[FitResult[MeanField | LowRankPrecision | Kronecker]]: ...
@overload
def fit(
    problem: Problem, method: SampleMethod, *, runs: None = None, **options: Unpack[FitOptions]
) -> FitResult[Samples]: ...
@overload
def fit(
    problem: Problem, method: SampleMethod, *, runs: int, **options: Unpack[FitOptions]
) -> list[FitResult[Samples]]: ...
def fit(
    problem: Problem,
    method: Method,
    *,
    key: jax.Array,
    runs: int | None = None,
    out: Pathlike | None = None,
    checkpoint: Pathlike | None = None,
    checkpoint_interval: float = 60.0,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = "auto",
    history: Pathlike | None = None,
    chunk_steps: int | None = None,
    data_shards: int = 1,
) -> FitResult[Any] | list[FitResult[Any]]:
    """Fit a posterior: a `FitResult`, or a list of them with `runs`.

    Args:
      problem: what to fit.
      method: how: `VI`, `IVON`, `SWAG`, `Laplace`, `MAP`, `Ensemble`, `HMC`, `NUTS`,
        `MCLMC`, `AdjustedMCLMC`, `SGLD` or `SGHMC`.
      key: random key, from which all randomness of the fit follows.
      runs: number of independent fits in one program. Run r equals the fit with
        `key=jax.random.fold_in(key, r)`.
      out: file of the posterior (`name-0`, `name-1`, … with `runs`).
      checkpoint: file of the checkpoint; by default `out` with `.checkpoint` appended, or none.
      checkpoint_interval: seconds between checkpoints.
      resume: continue from the checkpoint, or start if there is none. The result is exactly that
        of an uninterrupted fit. An unfinished fit of chains may be asked for more draws.
      overwrite: replace existing files.
      progress: "auto" (a bar on a terminal or in a notebook, else plain lines), "bar", "plain",
        "silent", or a function of (what, done, total).
      history: file of the history, one JSON object per line.
      chunk_steps: steps between progress updates and checks for Ctrl-C; by default about 1 s, or
        a twenty-fifth of the fit.
      data_shards: devices that share the data, or the minibatch, of each run, member or chain. The
        sums over the data are then taken in another order, which changes the last digits.

    Returns:
      The posterior with its history and statistics; a list with `runs`.

    After `jax.distributed.initialize` all processes call `fit` with the same arguments. Runs,
    members and chains are spread over the devices of all; `out` is in a folder that all see.

    >>> import jax, onebasin as ob
    >>> data = ob.load_dataset("digits", limit=100)
    >>> problem = ob.Problem.from_network(ob.networks.MLP(widths=(8,)), data)
    >>> result = ob.fit(problem, ob.VI(epochs=5), key=jax.random.key(0), progress="silent")
    >>> result.posterior
    MeanField(610 parameters)
    >>> result.history[-1]["epoch"]
    5.0
    """
    if not isinstance(problem, Problem):
        raise ValueError(f"problem must be an onebasin.Problem, got a {type(problem).__name__}")
    if type(method) not in BUILDERS:
        names = ", ".join(kind.__name__ for kind in BUILDERS)
        raise ValueError(f"method must be one of {names}, got {method!r}")
    if runs is not None and runs < 1:
        raise ValueError(f"runs must be at least 1, got {runs}")
    if chunk_steps is not None and chunk_steps < 1:
        raise ValueError(f"chunk_steps must be at least 1, got {chunk_steps}")
    if not checkpoint_interval >= 0:
        raise ValueError(f"checkpoint_interval is {checkpoint_interval}; give seconds, 0 or more")
    check_progress(progress)
    processes.check_shards(data_shards, len(jax.devices()))
    if processes.several() and out is None:
        raise ValueError("a fit of several processes needs out=, a path that all of them see")
    if data_shards > 1 and not isinstance(method, SHARING):
        names = ", ".join(kind.__name__ for kind in SHARING)
        raise ValueError(
            f"{type(method).__name__} cannot share its data; data_shards is for {names}"
        )
    if isinstance(method, VI):
        method = settled(problem, method)
    key = check_key(key)
    files = Files.of(out, checkpoint, history, runs)
    if resume and files.checkpoint is None:
        raise ValueError("resume=True needs the path of the checkpoint; give out= or checkpoint=")
    config = {
        "method": to_config(method),
        "problem": problem.fingerprint(),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "runs": runs,
    }
    results = finished_results(files, config, problem, method) if resume else None
    if results is None:
        if problem.running is not None and isinstance(method, WITHOUT_STATISTICS):
            raise ValueError(
                f"{type(method).__name__} does not take networks with running statistics; fit them "
                "with MAP, Ensemble, VI, IVON, SWAG or chains"
            )
        minibatches = not isinstance(method, FullBatchMethod)
        if data_shards > 1 and problem.running is not None and minibatches:
            raise ValueError(
                "minibatches of a network with running statistics cannot be shared by devices, "
                "since each would have statistics of its own; leave out data_shards"
            )
        # Before any file is touched: this may raise.
        shared = (Shards(data_shards),) if data_shards > 1 else ()
        program = BUILDERS[type(method)](problem, method, *shared)
        with ExitStack() as held:

            def prepare() -> None:
                if not processes.is_first():
                    return
                held.enter_context(files.locked())
                files.sweep()
                if not resume:
                    if not overwrite:
                        files.check_new()
                    files.remove_progress()

            processes.together("prepare its files", prepare)
            work = RunningFit(
                problem, method, program, key, files, config, resume, chunk_steps, data_shards
            )
            with reporting(progress if processes.is_first() else "silent") as report:
                results = work.run(report, checkpoint_interval)
                for note in dict.fromkeys(note for result in results for note in result.notes):
                    report.note(note)
    return results if runs is not None else results[0]
