"""The history of a fit: one row per chunk of steps, as text and as a file."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np


def figures_of(row: dict[str, Any]) -> str:
    """The figures of a row as text, averaged over replicas.

    A row in which no transition ended (trajectories can be longer than a chunk) says nothing of
    transitions.
    """
    omitted = {"step", "seconds"}
    if not np.any(row.get("transitions", 1)):
        omitted |= {"transitions", "acceptance", "divergences"}
    means = {name: float(np.mean(value)) for name, value in row.items() if name not in omitted}
    text = lambda name, mean: f"{100 * mean:.2f}%" if name == "accuracy" else f"{mean:.4g}"
    return "  ".join(f"{name} {text(name, mean)}" for name, mean in means.items())


def write_rows(path: Path | None, rows: list[dict[str, Any]], mode: Literal["w", "a"]) -> None:
    """Write rows as JSON lines to a new file, or append them; nothing without a path."""
    if path is not None:
        with open(path, mode, encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
