"""The documentation of PyTorch modules runs as written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import test_tutorials
from tutorials import needs_torch

TUTORIALS = [page for page in test_tutorials.PAGES if needs_torch(page)]
PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) > 1
    program = "\n".join(["import transformers", *blocks])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in TUTORIALS])
def test_tutorial(page: Path, tmp_path: Path) -> None:
    test_tutorials.check_tutorial(page, tmp_path)


def test_there_is_a_tutorial() -> None:
    assert TUTORIALS
