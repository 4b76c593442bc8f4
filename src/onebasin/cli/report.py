"""`onebasin report`: one HTML page of reproduced results."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from onebasin.cli.shared import OverwriteOption, check_folder, check_new, writing


@dataclass(frozen=True)
class Report(OverwriteOption):
    """Write one self-contained HTML page: figures, tables and a verdict for each claim.

    Example: onebasin report runs/cpu --out page.html
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs, or single records (JSON files)."""
    out: Path = Path("report.html")
    """Page to write."""
    title: str = "What was reproduced"
    """Heading of the page."""


COMMAND = Report


def run(config: Report) -> None:
    if not config.runs:
        raise ValueError("name a run folder or a record file to report on")
    check_new(config.out, overwrite=config.overwrite)
    check_folder(config.out)

    from onebasin.atomic import write_atomically
    from onebasin.report.page import find_records, render

    with writing(config.out):
        page = render(find_records(config.runs), config.title)
        write_atomically(config.out, lambda part: Path(part).write_text(page, encoding="utf-8"))
    sys.stdout.write(f"{config.out.resolve()}\n")
