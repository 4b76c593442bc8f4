"""Committed records, and tables in Markdown made of them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class Records:
    """The committed records; `results[name]` is the file `name`.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Any:
        path = self.folder / f"{name}.json"
        if not path.exists():
            raise FileNotFoundError(f"there is no record {path}; run what writes it first")
        return json.loads(path.read_text())

    def experiments(self) -> list[dict[str, Any]]:
        """The records of all experiments, by name."""
        files = sorted((self.folder / "reproduction").glob("*.json"))
        return [json.loads(file.read_text()) for file in files]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown.

    >>> print(markdown(["a", "b"], [["x < y", 1]]))
    | a | b |
    |---|---|
    | x &lt; y | 1 |
    """
    lines = ["|".join(["", *("---" for _ in heads), ""])]
    for cells in [heads, *rows]:
        text = (str(cell).replace("|", "\\|").replace("<", "&lt;") for cell in cells)
        lines.append(f"| {' | '.join(text)} |")
    return "\n".join([lines[1], lines[0], *lines[2:]])


def named_rows(table: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The rows of a table of a record, by their first cell; cells by their columns."""
    return {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
