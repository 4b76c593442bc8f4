"""A folder of compiled programs, which the commands of one machine share.

JAX compiles a program anew in every process unless it is given a folder; compiling takes most of
the time of a small fit. `settings` gives JAX one, in the user's cache folder, unless the user has
chosen a folder or none. It is left alone where it would not be safe:

* JAX trusts what it finds: a folder that others can write to is not used.
* Programs are compiled for one processor: every kind of processor and version has its own folder.
* JAX does not write atomically and never replaces an entry: one that a killed process left half
  written is removed before it is read, as are the oldest ones beyond a total size.
"""

import hashlib
import os
import platform
import shutil
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = "ONEBASIN_COMPILATION_CACHE"
OFF = ("off", "none", "0", "")
LARGEST = 1 << 30  # bytes of all entries
LEAST_SECONDS = "0.05"  # of compiling, for a program that is worth a file
CHECKED = ".checked"  # entries older than this file are whole
ENTRIES = "*-cache"


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment before JAX is imported, for programs to be kept."""
    chosen = environment.get(ENVIRONMENT)
    is_off = chosen is not None and chosen.lower() in OFF
    if "JAX_COMPILATION_CACHE_DIR" in environment or is_off:
        return {}
    base = Path(chosen).expanduser() if chosen else user_cache(environment) / "compiled"
    folder = base / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(base) or not _is_ours(folder):
            return {}
        if shutil.disk_usage(folder).free < 2 * LARGEST:
            return {}
        clean(folder)
    except OSError:  # no home, a read-only or a full disk: compile as without a folder
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": LEAST_SECONDS,
    }


def user_cache(environment: Mapping[str, str]) -> Path:
    """The folder for what can be computed again, of this user and program."""
    if platform.system() == "Darwin":
        return Path.home() / "Library" / "Caches" / "onebasin"
    named = environment.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "onebasin"


def clean(folder: Path) -> None:
    """Remove entries that are not whole, and the oldest ones beyond `LARGEST` bytes."""
    checked = folder / CHECKED
    since = checked.stat().st_mtime_ns if checked.exists() else 0
    checked.touch()
    kept: list[tuple[int, int, Path]] = []
    for path in folder.glob(ENTRIES):
        with suppress(OSError):  # another process may remove it at the same time
            known = path.stat()
            if known.st_mtime_ns >= since and not is_whole(path.read_bytes()):
                path.unlink()
            else:
                kept.append((known.st_mtime_ns, known.st_size, path))
    total = 0
    for _, size, path in sorted(kept, reverse=True):
        total += size
        if total > LARGEST:
            path.unlink(missing_ok=True)


def is_whole(entry: bytes) -> bool:
    """Whether a compressed entry ends where it should."""
    if entry[:4] == b"\x28\xb5\x2f\xfd":  # Zstandard, which Python has only since 3.14
        try:
            from compression import zstd  # pyright: ignore[reportMissingImports]
        except ImportError:
            return True
        reader, errors = zstd.ZstdDecompressor(), zstd.ZstdError
    else:
        reader, errors = zlib.decompressobj(), zlib.error
    try:
        reader.decompress(entry)
    except errors:
        return False
    return reader.eof


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can write to a folder."""
    known = folder.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return known.st_uid == os.getuid() and not known.st_mode & others


def _machine() -> str:
    """A name for this kind of processor and these versions."""
    from importlib.metadata import version

    about = [platform.machine(), platform.processor(), version("jax"), version("jaxlib")]
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
        wanted = ("model name", "flags", "Features", "CPU part")
        about += [line for line in text.splitlines() if line.startswith(wanted)]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
