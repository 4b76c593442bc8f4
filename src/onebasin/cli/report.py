"""`onebasin report`: one HTML page of what was reproduced."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page of runs: figures, tables, a verdict for each claim.

    Example: onebasin report runs/cpu --out page.html
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run folders, or single records (JSON files)."""
    out: Path = Path("report.html")
    """Page to write."""
    title: str = "What was reproduced"
    """Heading of the page."""
    overwrite: bool = False
    """Replace a page that exists."""


COMMAND = Report


def run(config: Report) -> None:
    if not config.runs:
        raise ValueError("name a run folder or a record file to report on")
    if config.out.exists() and not config.overwrite:
        raise ValueError(f"{config.out} exists; give --overwrite to replace it, or another --out")
    if not config.out.parent.is_dir():
        raise FileNotFoundError(f"the folder of {config.out} does not exist; make it first")

    from onebasin.report.page import find_records, render

    page = render(find_records(config.runs), config.title)
    config.out.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{config.out.resolve()}\n")
