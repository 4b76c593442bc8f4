"""Files that appear whole or not at all, and what a killed process leaves of them."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[str], object]) -> None:
    """Let `write` fill a file beside `path`, flush it to disk, then rename it into place.

    The file is filled in a folder of its own, `.<name>.<random>.part`: writers such as safetensors
    put further temporary files beside the one they were given, under names of their own, and a
    process killed at that moment would leave them where nobody could tell whose they are.
    """
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        part = folder / path.name
        write(str(part))
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        # Some writers make private files; the result gets the permissions any new file would have.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        os.replace(part, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_parts(path: Path) -> None:
    """Remove what killed processes left beside `path` when they were writing it.

    For whoever knows that nobody else is writing it now, as a fit does.
    """
    ours = re.compile(re.escape(f".{path.name}.") + r"[^.]+\.part")
    for part in path.parent.iterdir():
        if ours.fullmatch(part.name) and part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        elif ours.fullmatch(part.name):
            part.unlink(missing_ok=True)
