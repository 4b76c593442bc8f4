"""The tutorials run as written, print what they show, and make their figures."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tutorials import BLOCK, figures_of, needs_torch

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
RUNNER = Path(__file__).parent / "tutorials.py"


def without_numbers(text: str) -> list[list[str]]:
    """The words of every line, with all numbers alike: their digits differ between machines."""
    return [re.sub(r"[-+]?\d[\d,.]*(e[-+]?\d+)?", "#", line).split() for line in text.splitlines()]


def check_tutorial(page: Path, folder: Path) -> None:
    """Run a page in a folder, and compare what it prints and draws with what it shows."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(page)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)
    assert outputs, "a tutorial shows at least one output"
    for shown, printed in outputs:
        assert without_numbers(shown) == without_numbers(printed)
    names = figures_of(page)
    assert names, "a tutorial shows at least one figure"
    assert sorted(names) == sorted(made.name for made in folder.glob("*.svg"))
    for name in names:
        assert (FOLDER / "figures" / name).stat().st_size > 0


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem) for page in PAGES if not needs_torch(page)]
)
def test_tutorial(page: Path, tmp_path: Path) -> None:
    check_tutorial(page, tmp_path)


def test_there_are_tutorials() -> None:
    assert len(PAGES) >= 4


def test_the_whole_way_is_short() -> None:
    """From a table to plots: 40 lines of Python, or six commands."""
    blocks = list(BLOCK.finditer((FOLDER / "your-data.md").read_text()))
    lines = {
        language: [
            line
            for block in blocks
            if block["language"] == language
            for line in block["code"].replace("\\\n", "").splitlines()
            if line.strip()
        ]
        for language in ("python", "sh")
    }
    assert len(lines["python"]) <= 40
    assert len(lines["sh"]) <= 6
    assert all(line.startswith("onebasin ") for line in lines["sh"])
