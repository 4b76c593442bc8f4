"""The history of a fit: one row per chunk of steps, as text and as a file."""

import json
from pathlib import Path
from typing import Any, TextIO

import numpy as np


def figures_of(row: dict[str, Any]) -> str:
    """The figures of a row as text, averaged over replicas.

    A row in which no transition ended (trajectories can be longer than a chunk) says nothing of
    transitions.
    """
    words = []
    omitted = {"step", "seconds"}
    if not np.any(row.get("transitions", 1)):
        omitted |= {"transitions", "acceptance", "divergences"}
    for name, value in row.items():
        if name in omitted:
            continue
        mean = float(np.mean(value))
        words.append(f"accuracy {100 * mean:.2f}%" if name == "accuracy" else f"{name} {mean:.4g}")
    return "  ".join(words)


class HistoryFile:
    """Rows as JSON lines, flushed one at a time; `rows` are those up to the checkpoint."""

    def __init__(self, path: Path | None, rows: list[dict[str, Any]]) -> None:
        self.file: TextIO | None = None
        if path is not None:
            # Later rows of an interrupted fit are dropped: they will be written again.
            self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115
            for row in rows:
                self.write(row)

    def write(self, row: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
