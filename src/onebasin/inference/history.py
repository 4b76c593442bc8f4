"""The history of a fit: one row for each chunk of steps, as text and as a file."""

import json
from pathlib import Path
from typing import Any, TextIO

import numpy as np


def figures_of(row: dict[str, Any]) -> str:
    """The figures of a history row as text; several lanes as their mean.

    Trajectories can be longer than a chunk: a row in which none ended says nothing of them.
    """
    words = []
    unsaid = {"step", "seconds"}
    if not np.any(row.get("transitions", 1)):
        unsaid |= {"transitions", "acceptance", "divergences"}
    for name, value in row.items():
        if name in unsaid:
            continue
        mean = float(np.mean(value))
        if name == "accuracy":
            words.append(f"accuracy {100 * mean:.2f}%")
        else:
            words.append(f"{name} {mean:.4g}")
    return "  ".join(words)


class HistoryFile:
    """History rows as JSON lines, each flushed as it comes."""

    def __init__(self, path: Path | None, rows: list[dict[str, Any]]) -> None:
        self.file: TextIO | None = None
        if path is not None:
            # On resume the rows after the checkpoint are dropped: they will come again.
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
