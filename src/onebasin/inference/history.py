"""The history of a fit: one row per chunk of steps, as text and as a file.

In the file each row has a digest of its numbers, its place and whether it is the last one, so that
rows that are changed, lost, doubled or cut off are noticed. Earlier versions wrote none.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.atomic import naming_failures
from onebasin.digests import DIGEST, digest_of
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


def write_rows(
    path: Path | None, rows: list[dict[str, Any]], *, first: int = 0, ended: bool = False
) -> None:
    """Write rows as JSON lines to a new file, or append them, if `first` is not the first row.

    Times are not written: a fit gives the same file whenever it is repeated.

    Args:
      path: the file; nothing is written without one.
      rows: all rows so far.
      first: the first one that is not in the file yet.
      ended: whether the last one is the last of the fit.
    """
    if path is None:
        return
    with naming_failures(path), open(path, "a" if first else "w", encoding="utf-8") as file:
        for place, row in enumerate(rows[first:], first):
            untimed = {name: value for name, value in row.items() if name != "seconds"}
            digest = _digest(untimed, place, last=ended and place == len(rows) - 1)
            file.write(json.dumps({**untimed, DIGEST: digest}) + "\n")


def _digest(row: dict[str, Any], place: int, *, last: bool) -> str:
    return digest_of({"row": row, "place": place, "last": last})


@dataclass(frozen=True)
class Rows:
    """The rows in a file."""

    rows: list[dict[str, Any]]
    checked: bool
    """Whether they had digests, which are right."""
    ended: bool
    """Whether the last row of the fit is among them; always, where there are no digests."""


def read_history(path: Path) -> Rows:
    """The rows of a file; what is no history, or a damaged one, is refused."""
    remedy = "delete it, or name another"
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not rows or not all(map(_is_row, rows)):
            raise ValueError
        digests = [row.pop(DIGEST, None) for row in rows]
        pairs = list(enumerate(zip(rows, digests, strict=True)))
        whole = [digest == _digest(row, place, last=False) for place, (row, digest) in pairs]
        ended = digests[-1] == _digest(rows[-1], len(rows) - 1, last=True)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not the history of a fit; {remedy}") from None
    if all(digest is None for digest in digests):
        if any(isinstance(value, str) for row in rows for value in row.values()):
            raise ValueError(f"{path} is not the history of a fit; {remedy}")
        return Rows(rows, checked=False, ended=True)
    if not all([*whole[:-1], whole[-1] or ended]):
        raise ValueError(f"{path} does not have the rows that its digests belong to; {remedy}")
    return Rows(rows, checked=True, ended=ended)


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and bool(row.keys() - {DIGEST})


def read_rows(path: Path | None, runs: int) -> list[list[dict[str, Any]]]:
    """The rows of each run of a finished fit; none if there is no file of them."""
    if path is None or not check_regular(path).exists():
        return [[] for _ in range(runs)]
    found = read_history(path)
    if not found.ended:
        raise ValueError(
            f"{path} is cut short: the last rows of the fit are missing; delete it, or name another"
        )
    return [[row_of_run(row, run, runs) for row in found.rows] for run in range(runs)]


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
