"""Finds the files of a data set on this machine, or downloads them.

The order is: the folder given as `root=`; the folder named by the environment variable
ONEBASIN_DATA; the cache folder; a download into the cache folder. A folder given as `root=` that
lacks files is an error and starts no download.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from onebasin.data.dataset import DataFileError
from onebasin.data.sources import SOURCES, Download, Source

Folder: TypeAlias = str | os.PathLike[str]
ENVIRONMENT = "ONEBASIN_DATA"


@dataclass(frozen=True)
class Located:
    """The files of a data set: separate in a folder, or all in one archive."""

    folder: Path
    paths: dict[str, Path] = field(default_factory=dict)
    archive: Path | None = None
    missing: tuple[str, ...] = ()


def default_cache() -> Path:
    """The cache folder of OneBasin on this platform."""
    import pooch

    return Path(pooch.os_cache("onebasin"))


def places(root: Folder | None, cache: Folder | None) -> list[tuple[str, Path]]:
    """The folders to search, in order, each with the setting that names it."""
    if root is not None:
        return [("root", as_folder(root, "root"))]
    named = os.environ.get(ENVIRONMENT)
    first = [(ENVIRONMENT, as_folder(named, ENVIRONMENT))] if named else []
    return [*first, ("cache", Path(cache).expanduser() if cache else default_cache())]


def find(source: Source, root: Folder | None, cache: Folder | None) -> Located:
    """The files of `source`, downloaded into the cache folder if no folder has them."""
    folder = Path()
    for setting, folder in places(root, cache):
        located = look_in(source, folder)
        if located is not None and not located.missing:
            return located
        if setting == "root" or (setting == ENVIRONMENT and located is not None):
            raise FileNotFoundError(_what_is_missing(source, folder, located, setting))
    for download in source.downloads:
        fetch(source, download, folder)
    located = look_in(source, folder)
    assert located is not None, "the downloads of a source are the files it reads"
    return located


def as_folder(root: Folder, setting: str) -> Path:
    """`root` as the path of a folder that exists; `setting` names it in the error."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{setting} names {folder}, which is not a folder; give the folder with the data files"
        )
    return folder


def look_in(source: Source, root: Path) -> Located | None:
    """The files of `source` in one of its usual places under `root`, or None.

    The first place that has all files is taken, else the place that has the most.
    """
    best: Located | None = None
    for place in source.folders:
        folder = root / place if place else root
        if source.archive and (folder / source.archive).is_file():
            located = Located(folder, archive=folder / source.archive)
        else:
            located = _separate_files(source, folder)
        if located is None or (best is not None and len(located.missing) >= len(best.missing)):
            continue
        best = located
        if not best.missing:
            break
    if best is not None:
        _refuse_namesake(source, best)
    return best


def _separate_files(source: Source, folder: Path) -> Located | None:
    endings = ("", ".gz") if source.format == "idx" else ("",)
    paths: dict[str, Path] = {}
    for name in source.files:
        candidates = [folder / (name + ending) for ending in endings]
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            paths[name] = path
    if not paths:
        return None
    return Located(folder, paths, missing=tuple(n for n in source.files if n not in paths))


def _refuse_namesake(source: Source, located: Located) -> None:
    """MNIST and Fashion-MNIST share their file names; the checksums of the labels differ."""
    for path in located.paths.values():
        if "labels" not in path.name or path.suffix != ".gz":
            continue
        digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        for other in SOURCES.values():
            if other.name != source.name and any(d.md5 == digest for d in other.downloads):
                raise DataFileError(
                    f"{path} belongs to {other.name}, not to {source.name}; put each data set "
                    f"into a folder of its own, such as {other.folders[0]} and {source.folders[0]}"
                )


def fetch(source: Source, download: Download, cache: Path) -> Path:
    """Download one file into the cache from the first mirror that works, and check its MD5.

    Pooch writes to a temporary file and renames it once the checksum is right, so an interrupted or
    wrong download leaves nothing behind.
    """
    import pooch

    folder = cache / source.folders[0]
    problems: list[str] = []
    mismatch = False
    for url in download.urls:
        try:
            return Path(
                pooch.retrieve(
                    url,
                    known_hash=f"md5:{download.md5}",
                    fname=download.name,
                    path=folder,
                    # The parameter names of this downloader differ from those of the protocol.
                    downloader=pooch.HTTPDownloader(  # pyright: ignore[reportArgumentType]
                        timeout=30, chunk_size=1 << 16
                    ),
                )
            )
        except OSError as error:  # among them all errors of requests
            problems.append(f"{url}: {error}")
        except ValueError:
            mismatch = True
            problems.append(f"{url}: the file does not have MD5 {download.md5}")
    tried = f"({'; '.join(problems)}). {where_to_put(source, cache)}"
    if mismatch:
        raise DataFileError(
            f"{download.name} of {source.name} could not be downloaded: a checksum is wrong, so "
            f"the file was discarded {tried}"
        )
    raise FileNotFoundError(
        f"{source.name} is not on this machine and {download.name} could not be downloaded {tried}"
    )


def where_to_put(source: Source, cache: Path | None = None) -> str:
    """A sentence that says which files belong where."""
    names = ", ".join(download.name for download in source.downloads)
    kind = "" if source.archive is None else f" (or {', '.join(source.files)} from it)"
    into = f" or into {cache / source.folders[0]}" if cache is not None else ""
    return (
        f"Put {names}{kind} into {source.folders[0]} under a folder named by root= or "
        f"{ENVIRONMENT}{into}."
    )


def _what_is_missing(source: Source, folder: Path, located: Located | None, setting: str) -> str:
    if located is None:
        return f"{folder} (from {setting}) has no files of {source.name}. {where_to_put(source)}"
    return (
        f"{located.folder} (from {setting}) lacks {', '.join(located.missing)} of {source.name}"
        f"{' (or its .gz)' if source.format == 'idx' else ''}."
    )
