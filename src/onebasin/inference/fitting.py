"""`fit`: the one loop that runs every method."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference import hmc, map_estimate, nuts, vi
from onebasin.inference.artefacts import Files
from onebasin.inference.checkpoint import (
    Checkpoint,
    check_same_fit,
    read_checkpoint,
    settings_of,
    write_checkpoint,
)
from onebasin.inference.diagnostics import chain_statistics
from onebasin.inference.draws import open_stores
from onebasin.inference.history import HistoryFile, figures_of
from onebasin.inference.lanes import Lanes
from onebasin.inference.loop import ChunkReport, CompiledLoop, compile_loop, default_chunk
from onebasin.inference.methods import HMC, MAP, NUTS, VI, Ensemble, Method, to_config
from onebasin.inference.program import Program
from onebasin.inference.signals import FitInterrupted, StopRequest
from onebasin.keys import check_key
from onebasin.posterior import load, read_header, save
from onebasin.problem import Problem
from onebasin.progress import Progress, Reporter, check_progress, reporting
from onebasin.tensor_files import Pathlike, finite
from onebasin.trees import PyTree, num_parameters

BUILDERS: dict[type, Any] = {
    VI: vi.build,
    MAP: map_estimate.build,
    Ensemble: map_estimate.build,
    HMC: hmc.build,
    NUTS: nuts.build,
}


class NonFiniteLossError(ValueError):
    """A fit that left the numbers; the message has the step, the likely cause, what is saved."""


@dataclass(frozen=True)
class FitResult:
    """A fitted posterior and how it came about.

    `history` has a row per chunk; `stats` has durations, memory and, for chains, acceptance,
    divergences, energy, R-hat and ESS.
    """

    posterior: Any
    history: list[dict[str, Any]] = field(repr=False)
    stats: dict[str, Any] = field(repr=False)
    problem: Problem = field(repr=False)
    method: Method
    path: Path | None = None


class FitOptions(TypedDict, total=False):
    """The options of `fit` that do not change the type of its result."""

    out: Pathlike | None
    checkpoint: Pathlike | None
    checkpoint_interval: float
    resume: bool
    overwrite: bool
    progress: Progress
    history: Pathlike | None
    chunk_steps: int | None


@overload
def fit(
    problem: Problem,
    method: Method,
    *,
    key: jax.Array,
    runs: None = None,
    **options: Unpack[FitOptions],
) -> FitResult: ...
@overload
def fit(
    problem: Problem,
    method: Method,
    *,
    key: jax.Array,
    runs: int,
    **options: Unpack[FitOptions],
) -> list[FitResult]: ...
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
) -> FitResult | list[FitResult]:
    """Fit a posterior: a `FitResult`, or a list of them with `runs`.

    Args:
      problem: what to fit.
      method: how: `VI`, `MAP`, `Ensemble`, `HMC` or `NUTS`.
      key: all randomness of the fit follows from it.
      runs: so many independent fits in one program; a list of results. Run r is what
        `key=jax.random.fold_in(key, r)` gives alone.
      out: write the posterior here (`name-0`, `name-1`, … with `runs`).
      checkpoint: where checkpoints go; by default `out` with `.checkpoint` added, or nowhere.
      checkpoint_interval: seconds between checkpoints.
      resume: continue from the checkpoint, or start if there is none; the result is exactly
        that of a fit that was never interrupted. Chains under way may be asked for more draws.
      overwrite: replace files that exist.
      progress: "auto" (a bar on a terminal or in a notebook, else plain lines), "bar", "plain",
        "silent", or a function of (what, done, total).
      history: write the history here, one JSON object per line.
      chunk_steps: steps between two looks at progress and signals; by default about a second's.
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
    check_progress(progress)
    key = check_key(key)
    files = Files.of(out, checkpoint, history, runs)
    if resume and files.checkpoint is None:
        raise ValueError("resume=True needs to know the checkpoint; give out= or checkpoint=")
    config = {
        "method": to_config(method),
        "problem": problem.fingerprint(),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "runs": runs,
    }
    finished = _already_finished(files, config, problem, method) if resume else None
    if finished is not None:
        return finished if runs is not None else finished[0]
    program = BUILDERS[type(method)](problem, method)  # refuses what does not fit the network
    if not resume:
        if not overwrite:
            files.refuse_existing()
        files.clear()
    files.sweep()
    work = _Fit(problem, method, program, key, files, config, resume, chunk_steps)
    with reporting(progress) as report:
        results = work.run(report, checkpoint_interval)
    return results if runs is not None else results[0]


class _Fit:
    """One call of `fit` under way."""

    def __init__(
        self,
        problem: Problem,
        method: Method,
        program: Program,
        key: jax.Array,
        files: Files,
        config: dict[str, Any],
        resume: bool,
        chunk_steps: int | None,
    ) -> None:
        self.problem, self.method, self.files, self.config = problem, method, files, config
        self.program = program
        self.runs = files.runs or 1
        heavy = jax.default_backend() == "cpu" and self.program.seconds_per_step > 2e-3
        self.lanes = Lanes(self.runs * self.program.lanes, in_turn=heavy)
        self.keys = self.lanes.place_keys(self._lane_keys(key))
        self.data = self.lanes.replicate(self.program.data)
        self.step, self.history = 0, []
        self.saved_step: int | None = None
        self.records: dict[str, np.ndarray] = {}
        saved = self._checkpoint() if resume else None
        plan, shapes = self.program.draws, problem.shapes
        self.stores = (
            [] if plan is None else open_stores(files, shapes, self.program.lanes, plan, saved)
        )
        init = self.lanes.on_devices(
            self.lanes.each(self.program.init, (0, None)), split=(True, False)
        )
        if saved is not None:
            self._restore(saved, jax.eval_shape(init, self.keys, self.data))
        else:
            self.states = jax.jit(init)(self.keys, self.data)
        default = default_chunk(
            self.program, self.lanes, 4 * num_parameters(problem.shapes) * self.lanes.per_device
        )
        self.chunk_steps = min(chunk_steps or default, self.program.steps)

    def _lane_keys(self, key: jax.Array) -> jax.Array:
        runs = self.files.runs
        run_keys = [key] if runs is None else [jax.random.fold_in(key, r) for r in range(runs)]
        if not self.program.own_key:
            run_keys = [
                jax.random.fold_in(k, lane) for k in run_keys for lane in range(self.program.lanes)
            ]
        return jnp.stack(run_keys)

    def _checkpoint(self) -> Checkpoint | None:
        """The checkpoint of this fit, if there is one; chains may have become longer since."""
        path = self.files.checkpoint
        if path is None or not path.exists():
            return None
        saved = read_checkpoint(path)
        check_same_fit(saved.config, self.config, str(path), longer=True)
        return saved

    def _restore(self, saved: Checkpoint, like: PyTree) -> None:
        real = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.lanes.count, *leaf.shape[1:]), leaf.dtype), like
        )
        states = saved.states(real)
        picks = np.minimum(np.arange(self.lanes.padded), self.lanes.count - 1)
        self.states = self.lanes.place(jax.tree.map(lambda leaf: leaf[picks], states))
        self.step, self.history, self.records = saved.step, saved.history, saved.records()
        self.saved_step = saved.step

    def run(self, report: Reporter, interval: float) -> list[FitResult]:
        began_at, began = self.step, time.perf_counter()
        label = type(self.method).__name__
        report(f"{label}, step", self.step, self.program.steps, "compiling")
        loop = compile_loop(
            self.program, self.lanes, self.states, self.keys, self.data, self.chunk_steps
        )
        history = HistoryFile(self.files.history, self.history)
        saved_at = time.monotonic()
        try:
            with StopRequest() as stop:
                while self.step < self.program.steps:
                    row = self._chunk(loop)
                    self.history.append(row)
                    history.write(row)
                    report(f"{label}, step", self.step, self.program.steps, figures_of(row))
                    if self.step == self.program.steps:
                        break
                    if stop.signal is not None:
                        self._interrupted(stop.signal)
                    if time.monotonic() - saved_at >= interval:
                        self._save()
                        saved_at = time.monotonic()
        finally:
            history.close()
        seconds = time.perf_counter() - began
        stats = {
            "seconds": seconds,
            "compile_seconds": loop.compile_seconds,
            "steps": self.program.steps,
            "steps_this_time": self.program.steps - began_at,
            "resumed_from": began_at or None,
            "chunk_steps": self.chunk_steps,
            "devices": self.lanes.mesh.size,
            "lanes": self.lanes.count,
            "memory": loop.memory,
        }
        return self._finish(stats)

    def _chunk(self, loop: CompiledLoop) -> dict[str, Any]:
        """Run one chunk; the row of history that says how it went."""
        start = self.step
        # Boundaries are multiples of the chunk length, so a resumed fit has the same rows.
        stop = min((start // self.chunk_steps + 1) * self.chunk_steps, self.program.steps)
        began = time.perf_counter()
        self.states, report = loop.run(
            self.states, self.keys, self.data, np.int32(start), np.int32(stop)
        )
        report = self.lanes.real(report)
        self._refuse_non_finite(report)
        self._keep_draws(report, start, stop)
        self.step = stop
        summarise = self.program.summarise or _means
        figures = summarise(report.sums, stop - start)
        epoch = self.program.steps_per_epoch
        return {
            "step": stop,
            **({} if epoch is None else {"epoch": stop / epoch}),
            **{name: _plain(value) for name, value in figures.items()},
            "seconds": time.perf_counter() - began,
        }

    def _refuse_non_finite(self, report: ChunkReport) -> None:
        bad = np.asarray(report.first_bad)
        if (bad < 0).all():
            return
        lane = int(np.where(bad >= 0, bad, np.iinfo(np.int32).max).argmin())
        who = f" (run or chain {lane})" if self.lanes.count > 1 else ""
        cause = self.program.likely_cause
        if bad[lane] == 0:
            cause = f"inputs or starting weights on which the network overflows, or {cause}"
        saved = (
            f"the last good checkpoint is {self.files.checkpoint} (step {self.saved_step})"
            if self.saved_step is not None
            else "there is no checkpoint yet"
        )
        raise NonFiniteLossError(
            f"the loss is not finite after step {int(bad[lane])}{who}; most likely {cause}; {saved}"
        )

    def _keep_draws(self, report: ChunkReport, start: int, stop: int) -> None:
        plan = self.program.draws
        if plan is None:
            return
        first, last = plan.kept_before(start), plan.kept_before(stop)
        if first == last:
            return
        for lane in range(self.lanes.count):
            run, chain = divmod(lane, self.program.lanes)
            own = jax.tree.map(lambda leaf, lane=lane: leaf[lane, : last - first], report.draws)
            self.stores[run].put(chain, first, own["params"])
        for name, values in report.draws["records"].items():
            before = self.records.get(name)
            new = values[:, : last - first]
            self.records[name] = new if before is None else np.concatenate([before, new], axis=1)

    def _save(self) -> None:
        if self.files.checkpoint is None:
            return
        for store in self.stores:
            store.flush()
        write_checkpoint(
            self.files.checkpoint,
            step=self.step,
            config=self.config,
            history=self.history,
            states=self.lanes.real(self.states),
            records=self.records,
        )
        self.saved_step = self.step

    def _interrupted(self, number: int) -> None:
        self._save()
        where = self.files.checkpoint
        advice = (
            f"checkpoint written to {where}; the same call with resume=True (--resume) goes on"
            if where is not None
            else "nothing was saved; give out= or checkpoint= to be able to resume"
        )
        message = f"stopped at step {self.step} of {self.program.steps}: {advice}"
        raise FitInterrupted(message, exit_code=128 + number)

    def _finish(self, stats: dict[str, Any]) -> list[FitResult]:
        states = self.lanes.real(self.states)
        results = []
        outs = self.files.outs()
        for run in range(self.runs):
            own = slice(run * self.program.lanes, (run + 1) * self.program.lanes)
            draws = self.stores[run].samples() if self.stores else None
            posterior = self.program.finish(_slice(states, own), draws)
            history = [_of_lanes(row, own) for row in self.history]
            mine = dict(stats)
            if draws is not None:
                records = {name: values[own] for name, values in self.records.items()}
                mine |= chain_statistics(self.problem, draws, records)
            path = outs[run] if outs else None
            if path is not None:
                self._write(run, path, posterior, mine)
            results.append(FitResult(posterior, history, mine, self.problem, self.method, path))
        if self.files.checkpoint is not None:
            self.files.checkpoint.unlink(missing_ok=True)
        for store in self.stores if not outs else ():
            store.forget()
        return results

    def _write(self, run: int, path: Path, posterior: Any, stats: dict[str, Any]) -> None:
        provenance = {"fit": self.config, "run": run, "stats": _json_able(stats)}
        if self.stores:
            self.stores[run].become(path, self.problem.network, provenance)
        else:
            save(path, posterior, network=self.problem.network, overwrite=True, **provenance)


def _already_finished(
    files: Files, config: dict[str, Any], problem: Problem, method: Method
) -> list[FitResult] | None:
    """The results of a fit that had ended before it was resumed."""
    assert files.checkpoint is not None
    outs = files.outs()
    if files.checkpoint.exists() or not outs or not all(path.exists() for path in outs):
        return None
    results = []
    for path in outs:
        provenance = read_header(path).provenance
        check_same_fit(settings_of(path), config, str(path))
        posterior = load(path, like=problem.shapes)
        results.append(FitResult(posterior, [], provenance["stats"], problem, method, path))
    return results


def _slice(tree: PyTree, own: slice) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[own], tree)


def _means(sums: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    return {name: total / steps for name, total in sums.items()}


def _plain(value: np.ndarray) -> float | list[float]:
    """One number for one lane, a list for several."""
    numbers = [float(v) for v in np.asarray(value)]
    return numbers[0] if len(numbers) == 1 else numbers


def _of_lanes(row: dict[str, Any], own: slice) -> dict[str, Any]:
    """A history row as the lanes of one run see it."""
    mine = {k: v[own] if isinstance(v, list) else v for k, v in row.items()}
    return {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in mine.items()}


def _json_able(stats: dict[str, Any]) -> dict[str, Any]:
    """What of the statistics goes into a file's header: numbers, short lists, no long arrays.

    JSON has neither NaN nor infinity; they become None.
    """
    short = {k: v for k, v in stats.items() if np.size(v) <= 64}
    return finite({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in short.items()})
