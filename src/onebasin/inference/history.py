"""The history of a fit: one row per chunk of steps, as text and as a file."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onebasin.atomic import naming_failures
from onebasin.regular_files import check_regular


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
    """Write rows as JSON lines to a new file, or append them; nothing without a path.

    Times are not written: a fit gives the same file whenever it is repeated.
    """
    if path is not None:
        untimed = [{name: v for name, v in row.items() if name != "seconds"} for row in rows]
        with naming_failures(path), open(path, mode, encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in untimed)


def read_rows(path: Path | None, runs: int) -> list[list[dict[str, Any]]]:
    """The rows of each run of a finished fit; none if there is no file of them."""
    rows: list[dict[str, Any]] = []
    if path is not None and check_regular(path).exists():
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (ValueError, RecursionError):
            rows = [{}]
        if not all(isinstance(row, dict) and row for row in rows):
            raise ValueError(f"{path} is not the history of a fit; delete it, or name another")
    return [[row_of_run(row, run, runs) for row in rows] for run in range(runs)]


def row_of_run(row: dict[str, Any], run: int, runs: int) -> dict[str, Any]:
    """A row with the replicas of one run only."""

    def own(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        count = len(value) // runs
        return scalar_or_list(value[run * count : (run + 1) * count])

    return {name: own(value) for name, value in row.items()}


def scalar_or_list(values: list[float]) -> float | list[float]:
    """One number stands for itself."""
    return values[0] if len(values) == 1 else values
