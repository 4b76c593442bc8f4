"""Finding the files of a data set on this machine, and fetching them when they are not there.

The places are tried in this order: the folder given as `root=`, the folder named by the
environment variable ONEBASIN_DATA, the cache folder, the network (into the cache folder).
A folder that was named explicitly is final: if it lacks files, that is an error, not a download.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from onebasin.data.dataset import DataFileError
from onebasin.data.sources import SOURCES, Download, Source

ENVIRONMENT = "ONEBASIN_DATA"


@dataclass(frozen=True)
class Located:
    """Where the files of a data set are: loose in a folder, or all in one archive."""

    folder: Path
    paths: dict[str, Path] = field(default_factory=dict)
    archive: Path | None = None
    missing: tuple[str, ...] = ()


def default_cache() -> Path:
    """The platform's cache folder for OneBasin."""
    import pooch

    return Path(pooch.os_cache("onebasin"))


def find(source: Source, root: str | os.PathLike[str] | None, cache: Path) -> Located:
    """The files of `source`, downloaded into `cache` if no folder on this machine has them."""
    if root is not None:
        folder = as_folder(root, "root")
        located = look_in(source, folder)
        if located is None or located.missing:
            raise FileNotFoundError(_what_is_missing(source, folder, located, "root"))
        return located
    if named := os.environ.get(ENVIRONMENT):
        folder = as_folder(named, ENVIRONMENT)
        located = look_in(source, folder)
        if located is not None and located.missing:
            raise FileNotFoundError(_what_is_missing(source, folder, located, ENVIRONMENT))
        if located is not None:
            return located
    located = look_in(source, cache)
    if located is not None and not located.missing:
        return located
    for download in source.downloads:
        fetch(source, download, cache)
    located = look_in(source, cache)
    assert located is not None, "the downloads of a source are what it reads"
    return located


def as_folder(root: str | os.PathLike[str], argument: str) -> Path:
    """`root` as a path, or an error that says which setting names no folder."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{argument} names {folder}, which is not a folder; give the folder with the data files"
        )
    return folder


def look_in(source: Source, root: Path) -> Located | None:
    """The files of `source` in one of its usual places under `root`; None if there are none.

    The first place that has all of them is taken, else the one that has the most.
    """
    best: Located | None = None
    for place in source.folders:
        folder = root / place if place else root
        if source.archive and (folder / source.archive).is_file():
            located = Located(folder, archive=folder / source.archive)
        else:
            located = _loose_files(source, folder)
        if located is None or (best is not None and len(located.missing) >= len(best.missing)):
            continue
        best = located
        if not best.missing:
            break
    if best is not None:
        _refuse_namesake(source, best)
    return best


def _loose_files(source: Source, folder: Path) -> Located | None:
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
    """MNIST and Fashion-MNIST use the same file names: tell them apart by the label checksums."""
    for path in located.paths.values():
        if "labels" not in path.name or path.suffix != ".gz":
            continue
        digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        for other in SOURCES.values():
            if other.name != source.name and any(d.md5 == digest for d in other.downloads):
                raise DataFileError(
                    f"{path} belongs to {other.name}, not to {source.name}; put each set into a "
                    f"folder of its own, such as {other.folders[0]} and {source.folders[0]}"
                )


def fetch(source: Source, download: Download, cache: Path) -> Path:
    """Download one file into the cache, trying its mirrors in order, and check its MD5.

    Pooch writes to a temporary file beside the target and renames it once the checksum is right,
    so an interrupted or wrong download leaves nothing behind.
    """
    import pooch
    import requests

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
                    # Pooch's own downloader has other parameter names than its protocol.
                    downloader=pooch.HTTPDownloader(  # pyright: ignore[reportArgumentType]
                        timeout=30, chunk_size=1 << 16
                    ),
                )
            )
        except ValueError as error:  # requests' own errors are ValueErrors too when a URL is bad
            if isinstance(error, requests.RequestException):
                problems.append(f"{url}: {error}")
            else:
                mismatch = True
                problems.append(f"{url}: the file served there does not have MD5 {download.md5}")
        except (requests.RequestException, OSError) as error:
            problems.append(f"{url}: {error}")
    tried = "; ".join(problems)
    if mismatch:
        raise DataFileError(
            f"{download.name} of {source.name} could not be downloaded: a checksum is wrong, so "
            f"the file was thrown away ({tried}). {where_to_put(source, cache)}"
        )
    raise FileNotFoundError(
        f"{source.name} is not on this machine and {download.name} could not be downloaded "
        f"({tried}). {where_to_put(source, cache)}"
    )


def where_to_put(source: Source, cache: Path | None = None) -> str:
    """A sentence on which files to put where."""
    names = ", ".join(download.name for download in source.downloads)
    kind = "" if source.archive is None else f" (or {', '.join(source.files)} out of it)"
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
        f"{' (.gz is fine too)' if source.format == 'idx' else ''}."
    )
