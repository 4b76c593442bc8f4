"""`onebasin data`: which data sets are found, and where."""

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Data:
    """Show which data sets are on this machine, in which folder, and how many examples they have.

    Example: onebasin data --root ~/data
    """

    root: Path | None = None
    """Look only in this folder; by default in ONEBASIN_DATA, then in the cache."""


COMMAND = Data


def run(config: Data) -> None:
    from onebasin.data import describe, render

    sys.stdout.write(render(describe(config.root)) + "\n")
