"""The loop that runs every method: chunks of steps, checkpoints, draws, history, files."""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    Any,
    NoReturn,
)

import jax
import jax.numpy as jnp
import numpy as np

from onebasin import processes
from onebasin.atomic import WriteError
from onebasin.inference.checkpoint import (
    check_same_fit,
    read_checkpoint,
    write_checkpoint,
    write_index,
    write_part,
)
from onebasin.inference.diagnostics import (
    chain_statistics,
    loss_after_measuring,
)
from onebasin.inference.draws import attach_stores, open_stores, record_types
from onebasin.inference.files import Files
from onebasin.inference.fit_result import (
    FitResult,
    lasting_stats,
    result_from,
)
from onebasin.inference.history import (
    figures_of,
    row_of_run,
    scalar_or_list,
    write_rows,
)
from onebasin.inference.loop import ChunkReport, CompiledLoop, compile_loop, default_chunk
from onebasin.inference.methods import (
    FullBatchMethod,
    Method,
)
from onebasin.inference.program import Program
from onebasin.inference.refreshing import refresh_state
from onebasin.inference.replicas import Replicas, change_of_layout
from onebasin.inference.room import bytes_needed, check_room
from onebasin.inference.signals import FitInterrupted, StopRequest
from onebasin.posterior import (
    PosteriorT,
    save,
)
from onebasin.problem import Problem
from onebasin.progress import Reporter
from onebasin.trees import PyTree, take_entry

ROWS = 25  # of the history, at least: enough to see the course of a short fit


class NonFiniteLossError(ValueError):
    """The loss is not finite; the message names the step, the likely cause and what is saved."""


@dataclass(eq=False)
class RunningFit:
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
        found = result_from(path, self.problem, self.method, self._rows(run))
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
