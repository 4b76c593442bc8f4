"""The experiments at toy size, each group run once for all tests that read its records.

They run in a process of their own, as a user would run them, without compiler optimisation: at
this size compiling takes longer than running.
"""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROSSI = (
    "barriers",
    "width",
    "prior-temperature",
    "kl-vs-w2",
    "timings",
    "cifar100",
    "landscape",
    "many",
)
XIAO = ("dynamics", "transpositions", "table1", "sigma-pruning", "unimodality")


def toy_folder(names: tuple[str, ...], factory: Any) -> Path:
    """The folder of the group's run, which the first test process makes."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # which all workers share
    out = base / f"toy-{names[0]}"
    with open(base / f"{out.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "finished").exists():
            flags = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
            command = [sys.executable, "-W", "error", "-m", "onebasin", "reproduce", *names]
            done = subprocess.run(
                [*command, "--preset", "toy", "--out", str(out)],
                capture_output=True,
                text=True,
                env={**os.environ, "XLA_FLAGS": flags.strip()},
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (out / "finished").write_text(done.stdout)
    return out


def claims(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """The claims of a record by their texts."""
    record = json.loads((folder / f"{name}.json").read_text())
    return {claim["text"]: claim for claim in record["claims"]}


def numbers(folder: Path, name: str, part: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())["numbers"][part]
