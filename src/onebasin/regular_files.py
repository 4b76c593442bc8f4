"""Regular files only: reading a pipe or a device could wait, or go on, for ever."""

from pathlib import Path


def check_regular(
    path: Path, error: type[ValueError] = ValueError, *, or_folder: bool = False
) -> Path:
    """The path of a regular file, or of none; anything else is refused.

    >>> check_regular(Path("/dev/null"))
    Traceback (most recent call last):
        ...
    ValueError: /dev/null is not a regular file; name a file on disk
    """
    if path.exists() and not path.is_file() and not (or_folder and path.is_dir()):
        raise error(f"{path} is not a regular file; name a file on disk")
    return path
