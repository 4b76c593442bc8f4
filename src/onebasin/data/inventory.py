"""What data is on this machine, and where: the `onebasin data` command."""

import os
from dataclasses import dataclass
from pathlib import Path

from onebasin.data import digits
from onebasin.data.cache import ENVIRONMENT, Located, as_folder, default_cache, look_in
from onebasin.data.cifar import PIXELS
from onebasin.data.dataset import DataFileError, compare_counts
from onebasin.data.idx import read_idx_header
from onebasin.data.sources import SOURCES, Source


@dataclass(frozen=True)
class Found:
    """One data set: the place it was found in, its folder, and how many examples it has.

    `place` is "embedded", "root", "ONEBASIN_DATA", "cache", or "nowhere" (it would be downloaded).
    `counts` is (train, test) by headers and file sizes alone, or None where that does not tell.
    """

    name: str
    place: str
    folder: str
    counts: tuple[int, int] | None
    published: tuple[int, int] | None
    note: str


def describe(
    root: str | os.PathLike[str] | None = None, *, cache: str | os.PathLike[str] | None = None
) -> list[Found]:
    """Where `load_dataset(name, root)` would read each data set from, without reading it."""
    found = [Found("digits", "embedded", "scikit-learn", digits.COUNTS, None, "")]
    places: list[tuple[str, Path]] = []
    if root is not None:
        places.append(("root", as_folder(root, "root")))
    else:
        if named := os.environ.get(ENVIRONMENT):
            places.append((ENVIRONMENT, as_folder(named, ENVIRONMENT)))
        places.append(("cache", Path(cache).expanduser() if cache else default_cache()))
    return found + [_search(source, places, final=root is not None) for source in SOURCES.values()]


def _search(source: Source, places: list[tuple[str, Path]], *, final: bool) -> Found:
    for place, folder in places:
        try:
            located = look_in(source, folder)
            if located is None:
                continue
            counts = None if located.missing else _count(source, located)
        except DataFileError as error:
            return Found(source.name, place, str(folder), None, source.published, str(error))
        if located.missing:
            note = f"lacks {', '.join(located.missing)}"
        elif located.archive:
            note = f"in {located.archive.name}"
        else:
            note = compare_counts(counts, source.published)
        return Found(source.name, place, str(located.folder), counts, source.published, note)
    note = "not in this folder" if final else "would be downloaded on first use"
    return Found(source.name, "nowhere", "", None, source.published, note)


def _count(source: Source, located: Located) -> tuple[int, int] | None:
    if located.archive:
        return None  # counting would mean decompressing all of it
    train, test = (
        _count_idx(names, located)
        if source.format == "idx"
        else _count_records(names, located, source.label_bytes + PIXELS)
        for names in (source.train, source.test)
    )
    return train, test


def _count_idx(names: tuple[str, ...], located: Located) -> int:
    images, labels = (located.paths[name] for name in names)
    numbers = []
    for path in (images, labels):
        _, shape = read_idx_header(path)
        if not shape:
            raise DataFileError(f"{path} has no dimensions")
        numbers.append(shape[0])
    if numbers[0] != numbers[1]:
        raise DataFileError(
            f"{images} and {labels} do not pair up: {numbers[0]} images and {numbers[1]} labels"
        )
    return numbers[0]


def _count_records(names: tuple[str, ...], located: Located, size: int) -> int:
    total = 0
    for name in names:
        path = located.paths[name]
        records, rest = divmod(path.stat().st_size, size)
        if rest:
            raise DataFileError(f"{path} is no whole number of records of {size} bytes")
        total += records
    return total


def render(found: list[Found]) -> str:
    """The findings as a plain table."""
    rows = [("data set", "found in", "train", "test", "folder", "note")]
    for one in found:
        train, test = ("?", "?") if one.counts is None else map(str, one.counts)
        if one.place == "nowhere":
            train = test = "–"
        rows.append((one.name, one.place, train, test, one.folder or "–", one.note))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = {2, 3}
    lines = [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
