"""A real browser without a window, where there is one: what a page does, and how it looks."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
needed = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")

MARK = "data-script-ran"
SCRIPT = f"document.documentElement.setAttribute('{MARK}','1')"
"""JavaScript that leaves a mark on the page if it runs."""


def _run(page: Path, *flags: str) -> str:
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                *(PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--disable-dev-shm-usage", f"--user-data-dir={profile}", *flags, page.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def script_ran(page: Path, width: int = 900) -> bool:
    """Whether `SCRIPT` ran while the page was loaded, or in the second after."""
    size = f"--window-size={width},800"
    return f'{MARK}="1"' in _run(page, size, "--virtual-time-budget=1000", "--dump-dom")


def picture(page: Path, width: int = 900, height: int = 500) -> np.ndarray:
    """The page as an array of pixels."""
    target = page.with_suffix(".png")
    _run(page, f"--window-size={width},{height}", f"--screenshot={target}")
    return matplotlib.image.imread(target)
