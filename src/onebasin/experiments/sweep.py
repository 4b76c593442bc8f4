"""Runs a sweep in a folder and writes its tables and figures.

    OUT/sweep.json     the grid
    OUT/table.csv      one row for each combination and repeat; table.parquet holds the same
    OUT/summary.csv    one row for each combination: means and standard errors over the repeats
    OUT/sweep-<axis>.svg

The tables follow from the grid, the data and the versions; times are in facts.json. A stage whose
result is there is not run again, so a grid that has grown costs only its new rows.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebasin.atomic import write_atomically
from onebasin.experiments.grid import Cell, Grid, Value
from onebasin.experiments.runner import Run, write_json
from onebasin.experiments.stage import Stage

if TYPE_CHECKING:
    from distributed import Client

GRID = "sweep.json"
Row = dict[str, Value]
MEASURES = ("barrier_as_fitted", "barrier_aligned", "loss", "accuracy")


def run_sweep(grid: Grid, run: Run, client: "Client | None" = None) -> list[Row]:
    """Run what is missing, on a cluster if there is a client, and write tables and figures."""
    run.open()
    write_json(run.out / GRID, describe(grid))
    cells = list(grid.cells())
    if client is not None:
        from onebasin.experiments.cluster import perform_all

        perform_all(client, run, list(dict.fromkeys(stages_of(cells))))
    rows = [row_of(cell, run) for cell in cells]
    write_tables(grid, rows, run.out)
    return rows


def stages_of(cells: Sequence[Cell]) -> list[Stage]:
    """The last stages of all cells; their lineage leads to the fits."""
    return [stage for cell in cells for stage in cell.stages.values()]


def describe(grid: Grid) -> dict[str, Any]:
    """The grid as JSON."""
    sections = {"fit": grid.fit, "align": grid.align, "barrier": grid.barrier}
    values = {
        section: {name: list(each) for name, each in options.items()}
        for section, options in sections.items()
    }
    return {**values, "repeats": grid.repeats, "seed": grid.seed}


def row_of(cell: Cell, run: Run) -> Row:
    """The numbers of a cell, each as its stage computed it."""
    align, before, after = (run.perform(cell.stages[n]) for n in ("align", "before", "after"))
    score = before.result["accuracy"]
    return {
        **cell.axes,
        "repeat": cell.repeat,
        "barrier_as_fitted": before.result["barrier"],
        "barrier_as_fitted_stderr": before.result["barrier_stderr"],
        "barrier_aligned": after.result["barrier"],
        "barrier_aligned_stderr": after.result["barrier_stderr"],
        "loss": (before.result["nll"][0] + before.result["nll"][-1]) / 2,
        "accuracy": (score[0] + score[-1]) / 2,
        "distance_before": align.result["distance_before"],
        "distance_after": align.result["distance_after"],
        "transpositions": align.result["transpositions"],
        "units": align.result["units"],
    }


def summarise(rows: Sequence[Row], axes: Sequence[str]) -> list[Row]:
    """Means over the repeats, and their standard errors (empty with one repeat)."""
    places: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        places.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    summary: list[Row] = []
    for place, group in places.items():
        found: Row = {**dict(zip(axes, place, strict=True)), "repeats": len(group)}
        for name in MEASURES:
            found[name], found[f"{name}_stderr"] = mean_and_error([row[name] for row in group])
        summary.append(found)
    return summary


def mean_and_error(values: Sequence[Any]) -> tuple[float, float | None]:
    """The mean, and the standard error of the mean.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def write_tables(grid: Grid, rows: Sequence[Row], out: Path) -> None:
    """Write the tables of a sweep, and a figure for every axis with numbers."""
    from onebasin.figures.style import save_figure
    from onebasin.figures.sweeps import axis_figure

    axes = tuple(grid.axes)
    summary = summarise(rows, axes)
    write_csv(out / "table.csv", rows)
    write_csv(out / "summary.csv", summary)
    if find_spec("pyarrow") is not None:
        write_parquet(out / "table.parquet", rows)
    for axis in axes:
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in grid.axes[axis]):
            others = [name for name in axes if name != axis]
            save_figure(axis_figure(summary, axis, others), out / f"sweep-{axis}.svg")


def write_csv(path: Path, rows: Sequence[Mapping[str, Value]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda part: Path(part).write_text(text.getvalue(), encoding="utf-8"))


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    table = arrow.Table.from_pylist(list(rows))
    write_atomically(path, lambda part: parquet.write_table(table, str(part)))
