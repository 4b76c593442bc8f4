"""Stage functions that need no network, for tests of runners; workers import them from here."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebasin.experiments.stage import Work, step


@dataclass(frozen=True)
class Count:
    to: int
    pause: float = 0.0

    @property
    def title(self) -> str:
        return f"to {self.to}"


@step(version=1, seconds=lambda config: config.to * config.pause, resumes=True)
def count_up(config: Count, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """Adds 1 + 2 + … with a checkpoint after every number; notes each start in a journal."""
    del inputs
    checkpoint = work.folder / "checkpoint.json"
    done, total = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, 0)
    with (work.folder / "starts").open("a") as journal:
        journal.write(f"{done}\n")
    for number in range(done + 1, config.to + 1):
        time.sleep(config.pause)
        total += number
        part = work.folder / "checkpoint.part"
        part.write_text(json.dumps([number, total]))
        part.rename(checkpoint)
    (work.folder / "total").write_text(str(total))
    return {"total": total}


@step(version=1, seconds=lambda config: 0.0)
def add_up(config: Count, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del config, work
    return {"total": sum(int(path.read_text()) for path in inputs.values())}


@step(version=1, seconds=lambda config: 0.0)
def refuse(config: Count, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    del inputs, work
    raise ValueError(f"{config.to} is too many")
