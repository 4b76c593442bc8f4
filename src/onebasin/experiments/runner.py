"""Runs stages in a folder: done ones are skipped, killed ones resume.

    OUT/run.json            preset and versions; a folder never mixes two
    OUT/plan.json           what was asked for last
    OUT/stages/<key>/       a finished stage: its files, result.json, stage.json
    OUT/stages/<key>.part/  one that is under way, or was killed

A stage appears under its key by one rename, so whatever is there is whole. Several processes may
work in one folder: one that needs a stage another is making waits for it.
"""

import fcntl
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from onebasin import __version__
from onebasin.atomic import write_atomically
from onebasin.experiments.stage import RESULT, Stage, Work
from onebasin.inference.methods import to_config
from onebasin.posterior import read_header


@dataclass(frozen=True)
class Outcome:
    """What came of a stage: the numbers it returned, its files, what it took."""

    result: dict[str, Any]
    folder: Path
    seconds: float
    key: str
    machine: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.result[name]


@dataclass
class Run:
    """A folder of stages made with one preset by one version."""

    out: Path
    preset: str
    quiet: bool = False
    adopt: Sequence[Path] = ()
    done_now: int = field(default=0, init=False)

    def open(self) -> None:
        """Make the folder, or refuse one of another preset or version."""
        self.out.mkdir(parents=True, exist_ok=True)
        path, now = self.out / "run.json", {"preset": self.preset, **versions()}
        if path.exists():
            found = json.loads(path.read_text())
            for name, value in now.items():
                if found.get(name) != value:
                    raise ValueError(
                        f"{self.out} was made with {name} {found.get(name)} and this is "
                        f"{value}; name another folder by --out"
                    )
            return
        write_json(path, now)

    def folder(self, stage: Stage) -> Path:
        return self.out / "stages" / stage.key

    def is_done(self, stage: Stage) -> bool:
        return stage.data_is_here and (self.folder(stage) / RESULT).exists()

    def outcome(self, stage: Stage) -> Outcome:
        """What a finished stage left."""
        folder = self.folder(stage)
        about = json.loads((folder / "stage.json").read_text())
        result = json.loads((folder / RESULT).read_text())
        return Outcome(result, folder, about["seconds"], stage.key, about["machine"])

    def perform(self, stage: Stage) -> Outcome:
        """The stage's outcome; it and what it needs run if they have not yet."""
        for needed in stage.lineage():
            if not self.is_done(needed):
                with self._locked(needed):
                    if not self.is_done(needed):
                        self._make(needed)
        return self.outcome(stage)

    def _make(self, stage: Stage) -> None:
        self.say(f"  {stage.title} (about {clock(stage.seconds)})")
        part = self.folder(stage).with_name(stage.key + ".part")
        if part.exists() and not stage.function.resumes:
            shutil.rmtree(part)
        part.mkdir(parents=True, exist_ok=True)
        if stage.function.resumes:
            self._adopt(stage, part)
        inputs = {name: self.folder(f.stage) / f.name for name, f in stage.inputs.items()}
        began = time.perf_counter()
        result = stage.function(stage.config, inputs, Work(part, self.quiet))
        seconds = time.perf_counter() - began
        about = {**stage.description(), "seconds": seconds, **versions(), "machine": machine()}
        write_json(part / "stage.json", about)
        write_json(part / RESULT, result)
        os.rename(part, self.folder(stage))
        self.done_now += 1
        self.say(f"    done in {clock(seconds)}")

    def _adopt(self, stage: Stage, part: Path) -> None:
        """Put a finished posterior file of the same fit where the fit will find it.

        Only the method and the key are compared here: the fit itself refuses a file of another
        problem, by name of what differs.
        """
        method, seed = getattr(stage.config, "method", None), getattr(stage.config, "seed", None)
        target = part / "posterior.safetensors"
        if method is None or target.exists() or stage.config.runs is not None:
            return
        wanted = to_config(method)
        for path in self.adopt:
            made = read_header(path).provenance.get("fit", {})
            if made.get("method") == wanted and made.get("key", [None])[-1] == seed:
                self.say(f"    taking {path}")
                shutil.copyfile(path, target)
                return

    @contextmanager
    def _locked(self, stage: Stage) -> Iterator[None]:
        stages = self.out / "stages"
        stages.mkdir(exist_ok=True)
        path = stages / f".{stage.key}.lock"
        with open(path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say(f"  {stage.title}: waiting for another process that is making it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        path.unlink(missing_ok=True)

    def say(self, text: str) -> None:
        if not self.quiet:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def versions() -> dict[str, str]:
    return {"onebasin": __version__, "jax": jax.__version__}


def machine() -> dict[str, Any]:
    """What the numbers were made on; nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
    }


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, allow_nan=False, default=_plain) + "\n"
    write_atomically(path, lambda part: Path(part).write_text(text))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")


def clock(seconds: float) -> str:
    """A duration in words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
