"""Run `onebasin` and kill the process before a certain file operation: `killed_command.py ARGS…`.

The environment says how:

    KILL_FOLDER   only operations in this folder count; by default the working one
    KILL_AT       the number of the operation before which the process is killed; 0 for none
    KILL_COUNT    a file to which the number of operations is written at the end
    KILL_CHUNK    steps per chunk of a fit, so that a short one has several checkpoints
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = os.path.realpath(os.environ.get("KILL_FOLDER", os.curdir))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
count = 0


def operate(path: str) -> None:
    """Count an operation, or die."""
    global count
    if not os.path.abspath(path).startswith(FOLDER):
        return
    count += 1
    if count == int(os.environ.get("KILL_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)


def path_of(target: Any, folder: int = -1) -> str:
    """The path of an open file, or of a name in an open folder."""
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")
    name = os.fsdecode(target)
    return name if folder < 0 else os.path.join(path_of(folder), name)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    match event, arguments:
        case "open", (str() | bytes() as path, _, int(flags)) if flags & WRITING:
            operate(path_of(path))
        case "os.rename", (_, target, _, folder):
            operate(path_of(target, folder))
        case "os.remove" | "os.rmdir", (path, folder):
            operate(path_of(path, folder))
        case "os.mkdir", (path, _, folder):
            operate(path_of(path, folder))
        case "os.chmod", (path, _, folder):
            operate(path_of(path, folder))
        case "fcntl.flock", (descriptor, _):
            operate(path_of(descriptor))
        case _:
            pass


def watched(function: Callable[..., Any], where: Callable[[Any], str]) -> Callable[..., Any]:
    """A function that counts as an operation, although Python raises no event for it."""

    def call(first: Any, *rest: Any) -> Any:
        operate(where(first))
        return function(first, *rest)

    return call


def main() -> None:
    import numpy as np

    os.fsync = watched(os.fsync, path_of)
    os.posix_fallocate = watched(os.posix_fallocate, path_of)
    np.memmap.flush = watched(np.memmap.flush, lambda array: str(array.filename))
    if "KILL_CHUNK" in os.environ:
        from onebasin.inference import running_fit

        steps = int(os.environ["KILL_CHUNK"])
        running_fit.default_chunk = lambda *_: steps  # pyright: ignore[reportPrivateImportUsage]
    if "KILL_COUNT" in os.environ:
        path = Path(os.environ["KILL_COUNT"])
        atexit.register(lambda: path.write_text(str(count)))
    from onebasin.cli.main import main as onebasin

    sys.addaudithook(watch)
    onebasin()


if __name__ == "__main__":
    main()
