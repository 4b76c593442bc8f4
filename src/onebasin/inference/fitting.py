"""`fit`: one loop that runs every method."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    Required,
    TypedDict,
    Unpack,
    overload,
)

import jax
import jax.numpy as jnp
import numpy as np

from onebasin import processes
from onebasin.atomic import WriteError
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
from onebasin.inference.checkpoint import (
    check_same_fit,
    read_checkpoint,
    settings_of,
    write_checkpoint,
    write_index,
    write_part,
)
from onebasin.inference.closing import advice, closing_words
from onebasin.inference.diagnostics import (
    chain_statistics,
    loss_after_measuring,
    record_statistics,
)
from onebasin.inference.draws import attach_stores, open_stores, read_statistics, record_types
from onebasin.inference.files import Files
from onebasin.inference.history import (
    figures_of,
    read_rows,
    row_of_run,
    scalar_or_list,
    write_rows,
)
from onebasin.inference.loop import ChunkReport, CompiledLoop, compile_loop, default_chunk
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
from onebasin.inference.refreshing import refresh_state
from onebasin.inference.replicas import Replicas, change_of_layout
from onebasin.inference.room import bytes_needed, check_room
from onebasin.inference.shards import Shards
from onebasin.inference.signals import FitInterrupted, StopRequest
from onebasin.inference.vi_defaults import settled
from onebasin.keys import check_key
from onebasin.posterior import (
    Kronecker,
    LowRank,
    LowRankPrecision,
    MeanField,
    PosteriorT,
    Samples,
    load,
    read_header,
    save,
)
from onebasin.problem import Problem
from onebasin.progress import Progress, Reporter, check_progress, reporting
from onebasin.tensor_files import Pathlike, finite
from onebasin.trees import PyTree, take_entry

ROWS = 25  # of the history, at least: enough to see the course of a short fit

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike

# Statistics of one execution, which are returned and not written to files.
OF_THIS_TIME = (
    *("seconds", "compile_seconds", "memory", "devices", "chunk_steps"),
    *("steps_this_time", "resumed_from"),
)
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


class NonFiniteLossError(ValueError):
    """The loss is not finite; the message names the step, the likely cause and what is saved."""


@dataclass(frozen=True, repr=False)
class FitResult(Generic[PosteriorT]):
    """The result of `fit`.

    Attributes:
      posterior: a `MeanField` (`VI`, `IVON`, diagonal `Laplace`), a `LowRank` (`SWAG`), a
        `LowRankPrecision` or `Kronecker` (`Laplace`) or `Samples` (the others).
      history: one row per chunk of steps.
      stats: durations, memory and, for chains, acceptance, divergences, energy, R-hat and ESS; for
        `Laplace` the estimate of the log evidence.
      problem: what was fitted.
      method: how.
      path: the file of the posterior, if one was written.

    >>> import jax, onebasin as ob
    >>> data = ob.load_dataset("digits", limit=100)
    >>> problem = ob.Problem.from_network(ob.networks.MLP(widths=(8,)), data)
    >>> result = ob.fit(problem, ob.MAP(epochs=2), key=jax.random.key(0), progress="silent")
    >>> result
    FitResult(MAP, Samples(610 parameters, 1 draws))
    >>> result.stats["steps"]
    2
    """

    posterior: PosteriorT
    history: list[dict[str, Any]]
    stats: dict[str, Any]
    problem: Problem
    method: Method
    path: Path | None = None

    def __repr__(self) -> str:
        where = "" if self.path is None else f", {str(self.path)!r}"
        words = self.summary
        return f"FitResult({type(self.method).__name__}, {self.posterior!r}{where})" + (
            f"\n{words}" if words else ""
        )

    @property
    def summary(self) -> str:
        """R-hat, ESS, acceptance and divergences of chains on one line; empty for other fits."""
        return closing_words(self.stats, self._draws)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the fit should not have ended with, each in a sentence with its remedy."""
        return advice(self.stats, self._draws)

    def plot(self, *, ax: "AxesLike | None" = None) -> "Figure":
        """The history of the fit: loss, accuracy, acceptance and what else it recorded.

        Args:
          ax: axes to draw in, instead of a new figure: of the loss, or of the first few panels.
        """
        from onebasin.figures.searches import history_figure

        return history_figure(self.history, ax=ax)

    @property
    def _draws(self) -> int:
        return getattr(self.posterior, "num_draws", 0)


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
    results = _finished_results(files, config, problem, method) if resume else None
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
            work = _Fit(
                problem, method, program, key, files, config, resume, chunk_steps, data_shards
            )
            with reporting(progress if processes.is_first() else "silent") as report:
                results = work.run(report, checkpoint_interval)
                for note in dict.fromkeys(note for result in results for note in result.notes):
                    report.note(note)
    return results if runs is not None else results[0]


@dataclass(eq=False)
class _Fit:
    """A fit in progress."""

    problem: Problem
    method: Method
    program: Program
    key: jax.Array
    files: Files
    config: dict[str, Any]
    resume: bool
    chunk_steps: int | None
    data_shards: int = 1

    def __post_init__(self) -> None:
        program, shapes = self.program, self.problem.shapes
        self.runs = self.files.runs or 1
        self.replicas = Replicas.of(program, self.runs * program.replicas, self.data_shards)
        self.keys = self.replicas.place(self._replica_keys())
        self.data = self.replicas.place_data(program.data)
        self.step, self.saved_step = 0, None
        self.history: list[dict[str, Any]] = []
        saved, path = None, self.files.checkpoint
        self.like = like = self.replicas.state_shapes(program, self.keys, self.data)
        if self.resume and path is not None and path.exists():
            saved = read_checkpoint(path)
            check_same_fit(saved.config, self.config, str(path), longer=True)
        records = record_types(program, like)
        running = self.problem.state
        known = [self.problem.network, self.config["problem"]]
        self.bytes_needed, self.stores = 0, []

        def allocate() -> None:
            if processes.is_first():
                needed = bytes_needed(self.files, program, shapes, like, records, running)
                check_room(needed)
                self.bytes_needed = sum(needed.values())
                given = (self.files, shapes, program, records, known, saved, running)
                self.stores = open_stores(*given)

        processes.together("allocate its files", allocate)
        if not processes.is_first():
            self.stores = attach_stores(self.files, shapes, program, records, known, running)
        self.change = "" if saved is None else change_of_layout(saved.layout, self.replicas)
        if saved is None:
            processes.meet()
            self.states = self.replicas.initial_states(program, self.keys, self.data)
        else:
            self.states = self.replicas.place(saved.states(like))
            self.step, self.history, self.saved_step = saved.step, saved.history, saved.step
        fewest = -(-program.steps // ROWS)
        default = min(default_chunk(program, self.replicas, shapes), fewest)
        self.chunk_length = min(self.chunk_steps or default, program.steps)

    def _replica_keys(self) -> jax.Array:
        runs, fold_in = self.files.runs, jax.random.fold_in
        keys = [self.key] if runs is None else [fold_in(self.key, run) for run in range(runs)]
        if not self.program.uses_run_key:
            keys = [fold_in(key, i) for key in keys for i in range(self.program.replicas)]
        return jnp.stack(keys)

    def run(self, report: Reporter, interval: float) -> list[FitResult[Any]]:
        """Run to the end and write the files."""
        try:
            stats = self._run_steps(report, interval)
            self._save_before_writing()
            return self._finish(stats, report)
        except jax.errors.JaxRuntimeError as error:
            if not processes.several() or "RESOURCE_EXHAUSTED" in str(error):
                raise
            raise processes.OtherProcessError(
                f"another process of this fit has ended or cannot be reached; "
                f"{self._saved_where()}; start all of them again with resume=True"
            ) from error
        except WriteError as error:
            advice = (
                "start again" if self.saved_step is None else "resume=True continues from there"
            )
            raise WriteError(
                f"{error}; {self._saved_where()}; once the fit can write its files, for which it "
                f"needs {self.bytes_needed:,} bytes, {advice}"
            ) from error

    def _run_steps(self, report: Reporter, interval: float) -> dict[str, Any]:
        first_step, began, steps = self.step, time.perf_counter(), self.program.steps
        what = f"{type(self.method).__name__}, step"
        if self.change:
            report.note(self.change)
        report(what, self.step, steps, "compiling")
        loop = compile_loop(
            self.program, self.replicas, self.states, self.keys, self.data, self.chunk_length
        )
        # The rows after the checkpoint are dropped from the file: they will be written again.
        self._write_rows(first=0)
        saved_at = time.monotonic()
        with StopRequest() as stop:
            while self.step < steps:
                row = self._run_chunk(loop)
                self.history.append(row)
                self._write_rows(first=len(self.history) - 1)
                report(what, self.step, steps, figures_of(row))
                if self.step == steps:
                    break
                # A signal to any process stops all; the first one's clock is that of all.
                if signal := max(processes.values(stop.signal or 0)):
                    self._stop(signal)
                if processes.values(int(time.monotonic() - saved_at >= interval))[0]:
                    self._save()
                    saved_at = time.monotonic()
        return {
            "seconds": time.perf_counter() - began,
            "compile_seconds": loop.compile_seconds,
            "steps": steps,
            "steps_this_time": steps - first_step,
            "resumed_from": first_step or None,
            "chunk_steps": self.chunk_length,
            "devices": self.replicas.mesh.size,
            **({"data_shards": self.data_shards} if self.data_shards > 1 else {}),
            "lanes": self.replicas.count,  # the name of replicas in existing files
            "memory": loop.memory,
        }

    def _run_chunk(self, loop: CompiledLoop) -> dict[str, Any]:
        """Run one chunk and return its row of the history."""
        start, length = self.step, self.chunk_length
        # Chunks end at multiples of their length, so a resumed fit has the same rows.
        stop = min((start // length + 1) * length, self.program.steps)
        began = time.perf_counter()
        processes.meet()
        self.states, report = loop.run(
            self.states, self.keys, self.data, np.int32(start), np.int32(stop)
        )
        sums, first_bad = self.replicas.to_all_hosts((report.sums, report.first_bad))
        report = ChunkReport(sums, first_bad, self.replicas.to_host(report.draws))
        self._check_finite(report)
        self._keep_draws(report, start, stop)
        self.step = stop
        figures = self.program.summarise(sums, stop - start)
        epoch = self.program.steps_per_epoch
        return {
            "step": stop,
            **({} if epoch is None else {"epoch": stop / epoch}),
            **{name: scalar_or_list(value.tolist()) for name, value in figures.items()},
            "seconds": time.perf_counter() - began,
        }

    def _check_finite(self, report: ChunkReport) -> None:
        bad = np.asarray(report.first_bad)
        if (bad < 0).all():
            return
        replica = int(np.where(bad >= 0, bad, np.iinfo(np.int32).max).argmin())
        which = f" (run or chain {replica})" if self.replicas.count > 1 else ""
        cause = self.program.likely_cause
        if bad[replica] == 0:
            cause = f"inputs or starting weights on which the network overflows, or {cause}"
        raise NonFiniteLossError(
            f"the loss is not finite after step {int(bad[replica])}{which}; "
            f"most likely {cause}; {self._saved_where()}"
        )

    def _saved_where(self) -> str:
        if self.saved_step is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.files.checkpoint} (step {self.saved_step})"

    def _keep_draws(self, report: ChunkReport, start: int, stop: int) -> None:
        plan = self.program.draws
        if plan is None or report.draws is None:
            return
        first, last = plan.kept_before(start), plan.kept_before(stop)
        if first == last:
            return
        for place, replica in enumerate(self.replicas.own):
            run, chain = divmod(replica, self.program.replicas)
            own = take_entry(take_entry(report.draws, place), slice(last - first))
            self.stores[run].put(chain, first, own["params"], own["records"])

    def _save(self) -> None:
        if self.files.checkpoint is None:
            return
        path, layout = self.files.checkpoint, self.replicas.layout()
        body = {"step": self.step, "config": self.config, "history": self.history, "layout": layout}
        states, own = self.replicas.to_host(self.states), self.replicas.own

        def write() -> None:
            for store in self.stores:
                store.flush()
            if not processes.several():
                write_checkpoint(path, body, states)
            elif own:
                write_part(path, self.step, own[0], states)

        processes.together("write its part of the checkpoint", write)
        if processes.several():
            firsts = self.replicas.firsts()
            commit = lambda: write_index(path, body, firsts) if processes.is_first() else None
            processes.together("write the checkpoint", commit)
        self.saved_step = self.step

    def _save_before_writing(self) -> None:
        """Save the last step: if the posterior cannot be written, nothing is computed again."""
        if processes.several():
            self._save()  # from which each run is put together
        elif self.files.out is not None and self.saved_step != self.step:
            # Without room for a checkpoint there may still be enough for the posterior.
            with suppress(WriteError):
                self._save()

    def _stop(self, signal: int) -> NoReturn:
        self._save()
        path = self.files.checkpoint
        advice = (
            f"checkpoint written to {path}; the same call with resume=True (--resume) continues"
            if path is not None
            else "nothing was saved; give out= or checkpoint= to be able to resume"
        )
        message = f"stopped at step {self.step} of {self.program.steps}: {advice}"
        raise FitInterrupted(message, exit_code=128 + signal)

    def _finish(self, stats: dict[str, Any], report: Reporter) -> list[FitResult[Any]]:
        runs, per_run = range(self.runs), self.program.replicas
        own = [r for r in runs if self.replicas.keeper(r * per_run) == jax.process_index()]
        states = self._last_states()
        made = processes.together(
            "write its posteriors",
            lambda: {run: self._finished(run, states, stats, report) for run in own},
        )
        if not processes.several() or processes.is_first():
            self.files.remove_checkpoint()
        if not self.files.outs():
            for store in self.stores:
                store.delete_file()
        return [made.get(run) or self._read(run, stats) for run in runs]

    def _last_states(self) -> PyTree:
        """The states of all replicas after the last step."""
        if not processes.several():
            return self.replicas.to_host(self.states)
        assert self.files.checkpoint is not None
        return read_checkpoint(self.files.checkpoint).states(self.like)

    def _finished(
        self, run: int, states: PyTree, stats: dict[str, Any], report: Reporter
    ) -> FitResult[Any]:
        """Make the posterior of a run, and write it."""
        own = slice(run * self.program.replicas, (run + 1) * self.program.replicas)
        run_stats = dict(stats)
        if self.program.finish is not None:
            posterior = self._with_state(self.program.finish(take_entry(states, own)), report)
            if self.program.statistics is not None:
                run_stats |= self.program.statistics(take_entry(states, own))
        else:
            posterior = self._with_state(self.stores[run].samples(), report)
            self.stores[run].put_state(posterior.state)
            records = self.stores[run].statistics()
            run_stats |= chain_statistics(self.problem, posterior, records)
            if self.problem.running is not None and isinstance(self.method, FullBatchMethod):
                rise = loss_after_measuring(self.problem, posterior, run_stats)
                run_stats["loss_change_of_state"] = rise
        path = self._out(run)
        if path is not None:
            network = self.problem.network
            provenance = {"fit": self.config, "run": run, "stats": lasting_stats(run_stats)}
            if record := getattr(self.problem.data, "record", None):
                provenance["data"] = record  # how to read them again
            if self.stores:
                self.stores[run].become(path, network, provenance)
            else:
                save(path, posterior, network=network, overwrite=True, **provenance)
        return FitResult(posterior, self._rows(run), run_stats, self.problem, self.method, path)

    def _read(self, run: int, stats: dict[str, Any]) -> FitResult[Any]:
        """The result of a run that another process has written."""
        path = self._out(run)
        assert path is not None
        found = _result_from(path, self.problem, self.method, self._rows(run))
        return replace(found, stats=stats | found.stats)

    def _out(self, run: int) -> Path | None:
        outs = self.files.outs()
        return outs[run] if outs else None

    def _rows(self, run: int) -> list[dict[str, Any]]:
        return [row_of_run(row, run, self.runs) for row in self.history]

    def _write_rows(self, first: int) -> None:
        def write() -> None:
            if processes.is_first():
                ended = self.step == self.program.steps
                write_rows(self.files.history, self.history, first=first, ended=ended)

        if self.files.history is not None:
            processes.together("write its history", write)

    def _with_state(self, posterior: PosteriorT, report: Reporter) -> PosteriorT:
        """The posterior with the running statistics that its params have on the training data."""
        if self.problem.running is None or not self.program.measures_state:
            return posterior
        return refresh_state(posterior, self.problem, self.problem.x, progress=report)


def _finished_results(
    files: Files, config: dict[str, Any], problem: Problem, method: Method
) -> list[FitResult[Any]] | None:
    """The results of a fit that had ended before it was resumed."""
    assert files.checkpoint is not None
    outs = files.outs()
    if files.checkpoint.exists() or not outs or not all(path.exists() for path in outs):
        return None
    files.sweep()
    results = []
    for path, rows in zip(outs, read_rows(files.history, len(outs)), strict=True):
        check_same_fit(settings_of(path), config, str(path))
        results.append(_result_from(path, problem, method, rows))
    return results


def _result_from(
    path: Path, problem: Problem, method: Method, rows: list[dict[str, Any]]
) -> FitResult[Any]:
    """The result of a finished fit, from its file."""
    posterior, records = load(path, like=problem.shapes), read_statistics(path)
    stats = read_header(path).provenance["stats"]
    stats |= record_statistics(records) if records else {}
    return FitResult(posterior, rows, stats, problem, method, path)


def lasting_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and short lists among the statistics; NaN and infinity become None in JSON.

    What differs when a fit is repeated, interrupted or moved to another machine is left out.
    """
    short = {k: v for k, v in stats.items() if k not in OF_THIS_TIME and np.size(v) <= 64}
    return finite({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in short.items()})
