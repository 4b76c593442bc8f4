"""Runs stages in a folder: finished stages are skipped, interrupted ones resume.

    OUT/run.json            preset and versions; a folder never mixes two
    OUT/plan.json           the stages of the last command
    OUT/facts.json          times and machines
    OUT/stages/<key>/       a finished stage: its files, result.json, stage.json
    OUT/stages/<key>.part/  a stage that is running or was interrupted

A stage appears under its key by one rename, so a folder of that name is always complete. Several
processes may work in one folder: a process waits for a stage that another one is running.

Everything except `facts.json` follows from the command, the data and the versions.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from onebasin.atomic import lock, sweep_folder, write_atomically
from onebasin.digests import plain, sealed_text
from onebasin.experiments.common_stages import POSTERIOR, Fit
from onebasin.experiments.facts import add_facts
from onebasin.experiments.record import Outcome, check_same, versions
from onebasin.experiments.schema import read_object, read_sealed
from onebasin.experiments.stage import RESULT, Stage, Work
from onebasin.experiments.store import RUN, store_at
from onebasin.inference.methods import to_config
from onebasin.posterior import read_header

DESCRIPTION = "stage.json"


@dataclass
class Run:
    """A folder of stages, all made with one preset and one version."""

    out: Path
    preset: str
    quiet: bool = False
    adopt: Sequence[Path] = ()
    checkpoint_interval: float = 60.0
    store: str | None = None
    """URL of a store that keeps the finished stages; the folder is then a copy of a part of it."""

    def open(self) -> None:
        """Make the folder, or refuse one of another preset or version.

        What killed processes left is removed; stages that they did not finish stay.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        for folder in (self.out, self.out / "stages"):
            sweep_folder(folder)
        path, now = self.out / RUN, {"preset": self.preset, **versions()}
        if path.exists():
            made = read_sealed(path, "give another folder with --out, or delete this one")
            check_same(self.out, made, now)
        else:
            write_json(path, now)
        if self.store is not None:
            kept = store_at(self.store)
            made = kept.made_with()
            if made is None:
                kept.begin(now)
            else:
                check_same(self.store, made, now)

    def folder(self, stage: Stage) -> Path:
        return self.out / "stages" / stage.key

    def is_done(self, stage: Stage) -> bool:
        """Whether a stage is finished, here or in the store."""
        return stage.data_is_here and (
            self._is_here(stage) or (self.store is not None and store_at(self.store).has(stage.key))
        )

    def _is_here(self, stage: Stage) -> bool:
        return (self.folder(stage) / RESULT).exists()

    def outcome(self, stage: Stage) -> Outcome:
        """The outcome of a finished stage."""
        folder = self.folder(stage)
        if self.store is not None and not self._is_here(stage):
            store_at(self.store).fetch(stage.key, folder)
        return Outcome(read_result(folder), folder)

    def perform(self, stage: Stage) -> Outcome:
        """The outcome of a stage; runs it and the stages it needs unless they are finished."""
        for needed in stage.lineage():
            if not self.is_done(needed):
                with self._locked(needed):
                    if not self.is_done(needed):
                        self._execute(needed)
            elif self.store is not None and not store_at(self.store).has(needed.key):
                store_at(self.store).send(needed.key, self.folder(needed))
        return self.outcome(stage)

    def _execute(self, stage: Stage) -> None:
        self.say(f"  {stage.title} (about {clock(stage.seconds)})")
        part = self.folder(stage).with_name(stage.key + ".part")
        if part.exists() and not stage.function.resumes:
            shutil.rmtree(part)
        part.mkdir(parents=True, exist_ok=True)
        if stage.function.resumes:
            self._adopt(stage, part)
        inputs = {n: self.outcome(f.stage).folder / f.name for n, f in stage.inputs.items()}
        began = time.perf_counter()
        result = stage.function(
            stage.config, inputs, Work(part, self.quiet, self.checkpoint_interval)
        )
        seconds = time.perf_counter() - began
        write_result(part, result, {**stage.description(), **versions()})
        add_facts(self.out, "stages", {stage.key: {"seconds": seconds, "machine": machine()}})
        os.rename(part, self.folder(stage))
        if self.store is not None:
            store_at(self.store).send(stage.key, self.folder(stage))
        self.say(f"    done in {clock(seconds)}")

    def _adopt(self, stage: Stage, part: Path) -> None:
        """Copy a finished posterior file of the same fit to where the fit looks for one.

        Only the method and the key are compared here: the fit itself refuses a file of another
        problem and names the difference.
        """
        target, config = part / POSTERIOR, stage.config
        if not isinstance(config, Fit) or target.exists() or config.runs is not None:
            return
        wanted = to_config(config.method)
        for path in self.adopt:
            made = read_header(path).provenance.get("fit", {})
            if made.get("method") == wanted and made.get("key", [None])[-1] == config.seed:
                self.say(f"    adopting {path}")
                shutil.copyfile(path, target)
                return

    @contextmanager
    def _locked(self, stage: Stage) -> Iterator[None]:
        stages = self.out / "stages"
        stages.mkdir(exist_ok=True)
        waiting = f"  {stage.title}: waiting for another process that is running it"
        with lock(stages / stage.key, lambda: self.say(waiting)):
            yield

    def say(self, text: str) -> None:
        if not self.quiet:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def machine() -> dict[str, Any]:
    """The hardware and software that produced the numbers, without the machine's name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": len(jax.devices()),
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object with its digest."""
    text = sealed_text(content)
    write_atomically(path, lambda part: Path(part).write_text(text))


def write_result(folder: Path, result: Any, description: Mapping[str, Any]) -> None:
    """Write what a stage returned, and beside it what the stage is, with a digest of the result."""
    text = json.dumps(result, indent=1, allow_nan=False, default=plain) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_json(folder / DESCRIPTION, {**description, "result": digest})
    write_atomically(folder / RESULT, lambda part: Path(part).write_text(text))


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished stage returned; a damaged result is refused.

    Stages of earlier versions have no digest.
    """
    remedy = f"delete the folder {folder}, and the stage is run again"
    description = read_sealed(folder / DESCRIPTION, remedy)
    result = read_object(folder / RESULT, remedy)
    digest = hashlib.sha256((folder / RESULT).read_bytes()).hexdigest()
    if description.get("result", digest) != digest:
        raise ValueError(f"{folder / RESULT} does not have its digest in {DESCRIPTION}; {remedy}")
    return result


def clock(seconds: float) -> str:
    """A duration as text.

    >>> clock(2), clock(600), clock(9000)
    ('2.0 s', '10 min', '2.5 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
