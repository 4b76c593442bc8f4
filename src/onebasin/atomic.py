"""Files that appear whole or not at all, and removal of what killed processes leave."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[str], object]) -> None:
    """Let `write` fill a temporary file, flush it to disk, and rename it to `path`.

    The file is written in a folder of its own, `.<name>.<random>.part`, because writers such as
    safetensors create temporary files beside it, under arbitrary names. `sweep_parts` can then
    remove everything that a killed process leaves.
    """
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        part = folder / path.name
        write(str(part))
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        # Some writers create private files; give the result the permissions of any new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        os.replace(part, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_parts(path: Path) -> None:
    """Remove what killed processes left while writing `path`.

    Call it only if no other process is writing `path`.
    """
    ours = re.compile(re.escape(f".{path.name}.") + r"[^.]+\.part")
    for part in path.parent.iterdir():
        if ours.fullmatch(part.name) and part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        elif ours.fullmatch(part.name):
            part.unlink(missing_ok=True)
