"""`onebasin sweep`: fits, alignments and barriers over a grid of options."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from onebasin.cli import shared


@dataclass(frozen=True)
class Sweep(shared.JsonOption):
    """Fit, align and measure over a grid of options, and write one tidy table.

    The file is YAML, or Python with a variable or function `grid`; every list is an axis:

        fit: {method: vi, data: digits, depth: 1, epochs: 30, width: [16, 32, 64]}
        align: {objective: [w2, correlations]}
        barrier: {points: 9, num-samples: 32}
        repeats: 3

    Finished stages are kept: the same command continues after an interruption, and a larger grid
    adds rows.

    Example: onebasin sweep grid.yaml --out runs/widths --cluster local:2
    """

    grid: Annotated[Path, tyro.conf.Positional]
    """YAML or Python file of the grid."""
    out: Path | None = None
    """Folder for tables, figures and stages; by default runs/ and the name of the file."""
    cluster: str | None = None
    """Run on a Dask cluster: local:N, the address of a scheduler, or a YAML file."""
    store: str | None = None
    """Keep finished stages at this URL too, such as s3://bucket/run (fsspec)."""
    dry_run: bool = False
    """Count the rows and stages and estimate their time; run nothing."""
    quiet: bool = False
    """Show no progress."""


COMMAND = Sweep


def run(config: Sweep) -> None:
    from onebasin.experiments.grid import read_grid
    from onebasin.experiments.runner import Run, clock
    from onebasin.experiments.sweep import run_sweep, stages_of, summarise

    grid = read_grid(config.grid)
    out = config.out or Path("runs") / config.grid.stem
    work = Run(out, "sweep", config.quiet, store=config.store)
    cells = list(grid.cells())
    needed = list(dict.fromkeys(s for last in stages_of(cells) for s in last.lineage()))
    left = [stage for stage in needed if not work.is_done(stage)]
    estimate = clock(sum(stage.seconds for stage in left))
    work.say(
        f"{len(cells)} rows, {len(needed)} stages, {len(needed) - len(left)} done; "
        f"about {estimate} left, one after the other on this machine"
    )
    if config.dry_run:
        return
    try:
        with shared.cluster(config.cluster if left else None, left) as client:
            rows = run_sweep(grid, work, client)
    except KeyboardInterrupt as stop:
        stop.args = ("stopped; run the same command again to continue",)
        raise
    if config.json:
        sys.stdout.write(json.dumps({"out": str(out), "rows": rows}) + "\n")
        return
    axes = tuple(grid.axes)
    for row in summarise(rows, axes):
        place = ", ".join(f"{axis} {row[axis]}" for axis in axes) or "all"
        before, after, accuracy = (
            row[n] for n in ("barrier_as_fitted", "barrier_aligned", "accuracy")
        )
        sys.stdout.write(
            f"{place}: barrier {before:.4f} as fitted, {after:.4f} aligned, "
            f"accuracy {accuracy:.2%}\n"
        )
    tables = "table.csv, table.parquet" if (out / "table.parquet").exists() else "table.csv"
    sys.stdout.write(f"{tables}, summary.csv and figures are in {out}\n")
    if tables == "table.csv":
        sys.stderr.write("no Parquet table: pip install 'onebasin[cluster]'\n")
