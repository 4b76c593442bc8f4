"""Kills commands at file operations and at random moments, and runs them again.

A command that was killed, once or several times, and then run again must leave what an
undisturbed one leaves: the same files with the same content, except for times, and nothing else.
"""

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

import onebasin as ob

SCRIPT = Path(__file__).with_name("killed_command.py")
CACHE = "KILLER_COMPILED"  # names a folder for compiled programs that several killers share
LIMIT = 1800  # seconds for a command: a busy machine slows it down a hundredfold
WORKERS = int(os.environ.get("KILLER_WORKERS", min(2, os.cpu_count() or 1)))
MOST_KILLS = 3  # before a command is left alone
TIMED = 0.25  # the share of kills at random moments instead of operations
FIT = "--limit 50 --width 4 --depth 1 --progress silent --checkpoint-interval 0 --history h.jsonl"
OF_THE_RUN = ("seconds", "integrity")  # times, and what is a digest of them


@dataclass(frozen=True)
class Command:
    """A command, the words that are added after a kill, and the commands whose files it reads."""

    words: str
    again: str = ""
    needs: tuple[str, ...] = ()
    chunk: int | None = None
    prepare: Callable[[Path], None] | None = None
    """Writes further files that the command reads."""


def _write_state_dicts(folder: Path) -> None:
    """Two state_dicts as they come from PyTorch, as files and as folders of Hugging Face."""
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (6, 4), "fc1.bias": (6,), "fc2.weight": (3, 6), "steps": ()}
    groups = {"hidden": [("fc1.weight", 0), ("fc1.bias", 0), ("fc2.weight", 1)]}
    params = {name: np.ones(shape) for name, shape in shapes.items() if shape}
    ob.Symmetry.by_hand(params, groups).save(folder / "net.json")
    for name in ("a", "b"):
        arrays = {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
        save_file(arrays, folder / f"{name}.safetensors")
        hub = folder / name
        hub.mkdir()
        (hub / "config.json").write_text('{"kind": "mlp"}')
        shards = {f"model-{i}.safetensors": dict(list(arrays.items())[i::2]) for i in range(2)}
        for file, own in shards.items():
            save_file(own, hub / file)
        index = {"weight_map": {n: file for file, own in shards.items() for n in own}}
        (hub / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_grid(folder: Path) -> None:
    grid = "fit: {method: map, width: [4, 5], depth: 1, epochs: 1, limit: 50}\n"
    barrier = "barrier: {points: 3, num-samples: 1, examples: 20}\n"
    (folder / "grid.yaml").write_text(grid + barrier)


COMMANDS = {
    "fit vi": Command(
        f"fit vi {FIT} --epochs 3 --batch-size 10 --runs 2 --out vi.safetensors",
        "--resume",
        chunk=4,
    ),
    "fit hmc": Command(
        f"fit hmc {FIT} --draws 12 --warmup 4 --leapfrog-steps 2 --chains 2 --out hmc.safetensors",
        "--resume",
        chunk=5,
    ),
    "align": Command(
        "align vi-1.safetensors --to vi-0.safetensors --out moved.safetensors",
        "--overwrite",
        ("fit vi",),
    ),
    "compact": Command(
        "compact hmc.safetensors --rank 2 --out compact.safetensors", "--overwrite", ("fit hmc",)
    ),
    "reproduce": Command("reproduce width --parts width-8 --preset toy --out run --quiet"),
    "report": Command("report run --out page.html", "--overwrite", ("reproduce",)),
    "fit laplace": Command(
        f"fit laplace {FIT} --mode-epochs 1 --rank 2 --out laplace.safetensors", "--resume", chunk=2
    ),
    "fit swag": Command(
        f"fit swag {FIT} --epochs 3 --batch-size 10 --rank 2 --start 0.3 --out swag.safetensors",
        "--resume",
        chunk=4,
    ),
    "fit ivon": Command(
        f"fit ivon {FIT} --epochs 3 --batch-size 10 --out ivon.safetensors", "--resume", chunk=4
    ),
    "fit mclmc": Command(
        f"fit mclmc {FIT} --draws 6 --warmup 8 --thin 2 --chains 2 --out mclmc.safetensors",
        "--resume",
        chunk=5,
    ),
    "fit sgld": Command(
        f"fit sgld {FIT} --draws 4 --warmup-epochs 1 --chains 2 --batch-size 10 "
        "--out sgld.safetensors",
        "--resume",
        chunk=5,
    ),
    "prune": Command("prune vi-0.safetensors --out pruned.safetensors", "--overwrite", ("fit vi",)),
    "merge": Command(
        "merge a.safetensors b.safetensors --symmetry net.json --out merged.safetensors",
        "--overwrite",
        prepare=_write_state_dicts,
    ),
    "merge folders": Command(
        "merge a b --symmetry net.json --out merged", "--overwrite", prepare=_write_state_dicts
    ),
    "align folders": Command(
        "align b --to a --symmetry net.json --out moved", "--overwrite", prepare=_write_state_dicts
    ),
    "symmetry": Command("symmetry mlp --out symmetry.json", "--overwrite"),
    "sweep": Command("sweep grid.yaml --out run --quiet", prepare=_write_grid),
}


@dataclass
class Killer:
    """Runs commands in folders of their own."""

    folder: Path

    def __post_init__(self) -> None:
        self.operations: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def prepare(self, names: Iterable[str]) -> None:
        """Run commands undisturbed, and before them those whose files they read, each once."""
        wanted = dict.fromkeys(names)
        needed = dict.fromkeys(need for name in wanted for need in COMMANDS[name].needs)
        for group in (needed, wanted):
            missing = [name for name in group if name not in self.operations]
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(self._run_undisturbed, missing))

    def _run_undisturbed(self, name: str) -> None:
        folder, count = self._prepared(name, "whole"), self.folder / f"{name} count"
        began = time.monotonic()
        done = self.run(name, folder, KILL_COUNT=str(count))
        if done.returncode:
            raise RuntimeError(f"{name} fails undisturbed: {done.stderr[-500:]}")
        self.seconds[name] = time.monotonic() - began
        self.operations[name] = int(count.read_text())

    def _prepared(self, name: str, trial: str) -> Path:
        """A folder with the files that a command reads."""
        folder = self.folder / f"{name} {trial}"
        folder.mkdir()
        for need in COMMANDS[name].needs:
            shutil.copytree(self.folder / f"{need} whole", folder, dirs_exist_ok=True)
        prepare = COMMANDS[name].prepare
        if prepare is not None:
            prepare(folder)
        return folder

    def run(
        self, name: str, folder: Path, again: str = "", after: float | None = None, **kill: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command; kill it `after` so many seconds, or as the variables say."""
        command = COMMANDS[name]
        if command.chunk is not None:
            kill["KILL_CHUNK"] = str(command.chunk)
        words = [sys.executable, str(SCRIPT), *command.words.split(), *again.split()]
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=self._environment(folder, kill),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, said = process.communicate(timeout=after or LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
            if after is None:
                said = f"still running after {LIMIT} s"
        return subprocess.CompletedProcess(words, process.returncode, "", said)

    def _environment(self, folder: Path, kill: Mapping[str, str]) -> dict[str, str]:
        flags = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
        return {
            **os.environ,
            **kill,
            "KILL_FOLDER": str(folder),
            "XLA_FLAGS": flags.strip(),
            # At this size compiling takes longer than running.
            "JAX_COMPILATION_CACHE_DIR": os.environ.get(CACHE, str(self.folder / "compiled")),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def trial(self, name: str, number: int, kills: int, seed: int) -> tuple[int, list[str]]:
        """Kill a command up to `kills` times, finish it, and compare; the kills and the defects."""
        chance = random.Random(f"{name} {seed} {number}")
        whole, folder = self.folder / f"{name} whole", self._prepared(name, str(number))
        killed: list[str] = []
        again = ""
        for _ in range(kills):
            if chance.random() < TIMED:
                moment = chance.uniform(0.2, 0.8) * self.seconds[name]
                where, done = f"{moment:.2f} s", self.run(name, folder, again, after=moment)
            else:
                at = chance.randint(1, self.operations[name])
                where, done = f"operation {at}", self.run(name, folder, again, KILL_AT=str(at))
            again = COMMANDS[name].again
            if done.returncode != -9:
                if done.returncode:
                    return len(killed), [_defect(name, killed, f"fails: {done.stderr[-500:]}")]
                break
            killed.append(where)
            half = _incomplete(folder, whole)
            if half:
                return len(killed), [_defect(name, killed, f"leaves an incomplete {half}")]
        done = self.run(name, folder, again)
        if done.returncode:
            return len(killed), [_defect(name, killed, f"fails: {done.stderr[-500:]}")]
        found = [_defect(name, killed, text) for text in differences(folder, whole)]
        if not found:
            shutil.rmtree(folder)
        return len(killed), found


def _defect(name: str, killed: list[str], text: str) -> str:
    return f"{name}, killed at {', '.join(killed) or 'nothing'}: {text}"


def _incomplete(folder: Path, whole: Path) -> str | None:
    """A result that a killed command left unfinished under its final name."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        is_result = path.suffix in (".safetensors", ".html") and (whole / name).exists()
        if is_result and not _same(path, whole / name):
            return str(name)
    return None


def differences(folder: Path, whole: Path) -> list[str]:
    """What distinguishes two folders, except for times."""
    ours, theirs = (
        {path.relative_to(base) for path in base.rglob("*")} for base in (folder, whole)
    )
    found = [f"leaves {name}" for name in sorted(ours - theirs)]
    found += [f"lacks {name}" for name in sorted(theirs - ours)]
    return found + [
        f"another {name}"
        for name in sorted(ours & theirs)
        if (whole / name).is_file() and not _same(folder / name, whole / name)
    ]


def _same(one: Path, other: Path) -> bool:
    try:
        return _content(one) == _content(other)
    except Exception:
        return False


def _content(path: Path) -> Any:
    """The content of a file without times."""
    if path.name == "facts.json":
        return sorted(json.loads(path.read_text()))
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".safetensors":
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = {k: v for k, v in (file.metadata() or {}).items() if k not in OF_THE_RUN}
        header = {k: _timeless(json.loads(v)) if v[:1] in "{[" else v for k, v in header.items()}
        return header, {k: (v.dtype, v.shape, np.asarray(v).tobytes()) for k, v in tensors.items()}
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in OF_THE_RUN}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def attack(folder: Path, kills: int, seed: int, names: Sequence[str] = ()) -> dict[str, Any]:
    """Kill commands `kills` times; how many kills were tried and left nothing, and the defects.

    Every command has its turn, and is killed one to `MOST_KILLS` times before it may end. With
    `names`, only these commands and those that they need are run.
    """
    wanted = [name for name in COMMANDS if not names or name in names]
    killer = Killer(folder)
    chance = random.Random(seed)
    chance.shuffle(wanted)  # a short attack begins with other commands than the last one
    turns = itertools.cycle(wanted)
    tried = clean = number = 0
    defects: list[str] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        while tried < kills:
            trials = []
            for _ in range(WORKERS):
                number += 1
                trials.append((next(turns), number, chance.randint(1, MOST_KILLS), seed))
            killer.prepare(trial[0] for trial in trials)
            for done, found in pool.map(lambda trial: killer.trial(*trial), trials):
                tried += done
                clean += 0 if found else done
                defects += found
    operations = sum(killer.operations.values())
    return {"tried": tried, "clean": clean, "operations": operations, "defects": defects}
