"""Files that appear whole or not at all, locks on them, and removal of what killed processes leave.

Everything temporary is locked by the process that uses it for as long as that process lives. A
temporary file that nobody locks was left by a killed process, and any other process may remove it.
"""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

try:
    import fcntl
except ImportError as missing:  # pragma: no cover
    raise ImportError(
        "OneBasin needs the file locks of POSIX systems, which Windows lacks; use Linux, macOS or "
        "the Windows Subsystem for Linux"
    ) from missing

# Of the folder in which a file is written, beside its target.
TEMPORARY = ".{target}.unfinished-{random}.deletable"
LOCK = ".{target}.lock"
IN_USE = ".in-use"  # in a temporary folder: the file that its writer locks

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # file systems without them
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FAILURES = (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM)


class WriteError(OSError):
    """A file cannot be written; the message names it and the reason."""


class BusyError(WriteError):
    """Another process is writing the file."""


def write_atomically(path: Path, write: Callable[[str], object], size: int | None = None) -> None:
    """Let `write` fill a temporary file, flush it to disk, and rename it to `path`.

    `size` is the number of bytes that the file takes, for the message of a write that fails.
    """
    with naming_failures(path, size), temporary_file(path) as part:
        write(str(part))
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        # Some writers create private files; give the result the permissions of any new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        os.replace(part, path)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """A path to write to, on the file system of `path`; removed at the end unless it was renamed.

    It is in a folder of its own, because writers such as safetensors create temporary files beside
    theirs, under arbitrary names. What killed writers of `path` left is removed first.
    """
    sweep(path)
    folder, descriptor = _locked_folder(path)
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(path: Path) -> tuple[Path, int]:
    prefix, suffix = TEMPORARY.format(target=path.name, random="/").split("/")
    while True:
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=suffix))
        with suppress(FileNotFoundError):  # a sweeper can be faster than our lock
            descriptor = _open(folder / IN_USE)
            if _flock(descriptor, wait=True) is None or _is_at(descriptor, folder / IN_USE):
                return folder, descriptor
            os.close(descriptor)


@contextmanager
def naming_failures(path: Path, size: int | None = None) -> Iterator[None]:
    """Turn the failures of a full, read-only or forbidden disk into a `WriteError`."""
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        number = _error_number(error)
        if number not in _FAILURES:
            raise
        text = f"{path} cannot be written: {os.strerror(number)}"
        if number not in _FULL:
            raise WriteError(f"{text}; give another path") from error
        needs = "" if size is None else f"it needs {size:,} bytes and "
        raise WriteError(f"{text}; {needs}{free_bytes(path):,} bytes are free") from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))  # as safetensors reports it
    return int(found[1]) if found else None


def free_bytes(path: Path) -> int:
    """The free space of the file system that holds the folder of `path`."""
    return shutil.disk_usage(path.parent).free


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """Lock files that this process is going to write; refused if another process writes one.

    A folder without write permission is noticed here, too. The locks end with the process, however
    it ends. Temporary files of killed writers are removed.
    """
    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            with naming_failures(path):
                stack.enter_context(lock(path, lambda path=path: _refuse(path)))
                sweep(path)
        yield


def _refuse(path: Path) -> NoReturn:
    raise BusyError(f"another process is writing {path}; wait for it, or give another path")


@contextmanager
def lock(path: Path, busy: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of `path`; if another process has it, call `busy`, then wait."""
    name = _lock_of(path)
    while True:
        with _opened(name) as descriptor:
            held = _flock(descriptor)
            if held is False:
                busy()
                held = _flock(descriptor, wait=True)
            if held is None or _is_at(descriptor, name):  # else its holder has removed it
                try:
                    yield
                finally:
                    name.unlink(missing_ok=True)
                return


def sweep(path: Path, more: str = "") -> None:
    """Remove the temporary files of `path` that killed processes left.

    With `more`, a regular expression, those of the files whose names continue so.
    """
    if not path.parent.is_dir():
        return
    ours = _pattern(re.escape(path.name) + more)
    for name in os.listdir(path.parent):
        if ours.fullmatch(name):
            _remove_unused(path.parent / name)


def sweep_folder(folder: Path) -> None:
    """Remove all temporary files and locks in a folder that killed processes left."""
    ours = _pattern(".+"), re.compile(re.escape(LOCK).replace(r"\{target\}", ".+"))
    for name in os.listdir(folder) if folder.is_dir() else ():
        if any(pattern.fullmatch(name) for pattern in ours):
            _remove_unused(folder / name)


def sweep_all(*paths: Path) -> None:
    """Remove the temporary files and the locks of `paths` that killed processes left."""
    for path in paths:
        sweep(path)
        if _lock_of(path).exists():
            _remove_unused(_lock_of(path))


def _remove_unused(path: Path) -> None:
    """Remove a temporary folder, or a lock, that no living process holds."""
    is_folder = path.is_dir()
    with suppress(OSError), _opened(path / IN_USE if is_folder else path) as descriptor:
        if not _flock(descriptor):
            return
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        elif _is_at(descriptor, path):
            path.unlink()


def _lock_of(path: Path) -> Path:
    return path.with_name(LOCK.format(target=path.name))


def _pattern(target: str) -> re.Pattern[str]:
    name = re.escape(TEMPORARY).replace(r"\{random\}", "[^.]+")
    return re.compile(name.replace(r"\{target\}", target))


def _open(path: Path) -> int:
    """A descriptor of a file that is created if it does not exist."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _flock(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock an open file; False if another has the lock, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
