"""The data sets on this machine and their folders, for `onebasin data`."""

from dataclasses import dataclass
from pathlib import Path

from onebasin.data import digits, pydoc
from onebasin.data.cache import Folder, Located, look_in, places
from onebasin.data.cifar import PIXELS
from onebasin.data.dataset import DataFileError, compare_counts
from onebasin.data.idx import check_pair, read_idx_header
from onebasin.data.sources import SOURCES, Source


@dataclass(frozen=True)
class Found:
    """A data set, the place where it was found, its folder and its numbers of examples.

    `place` is "embedded", "root", "ONEBASIN_DATA", "cache", or "nowhere" (it would be downloaded).
    `counts` is (train, test) from headers and file sizes, or None where these do not suffice.
    """

    name: str
    place: str
    folder: str
    counts: tuple[int, int] | None
    published: tuple[int, int] | None
    note: str


def describe(root: Folder | None = None, *, cache: Folder | None = None) -> list[Found]:
    """Where `load_dataset(name, root)` finds each data set, without reading it."""
    embedded = Found("digits", "embedded", "scikit-learn", digits.COUNTS, None, "")
    library = "the standard library"
    text = Found("pydoc", "embedded", library, pydoc.counts(), None, pydoc.version())
    folders = places(root, cache)
    return [embedded, text, *(_search(source, folders) for source in SOURCES.values())]


def _search(source: Source, folders: list[tuple[str, Path]]) -> Found:
    for place, folder in folders:
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
    here = [place for place, _ in folders] == ["root"]
    note = "not in this folder" if here else "would be downloaded on first use"
    return Found(source.name, "nowhere", "", None, source.published, note)


def _count(source: Source, located: Located) -> tuple[int, int] | None:
    if located.archive:
        return None  # counting would decompress the whole archive
    train, test = (
        _count_idx(names, located)
        if source.format == "idx"
        else _count_records(names, located, source.label_bytes + PIXELS)
        for names in (source.train, source.test)
    )
    return train, test


def _count_idx(names: tuple[str, ...], located: Located) -> int:
    images, labels = (located.paths[name] for name in names)
    num_images, num_labels = (read_idx_header(path)[1][:1] for path in (images, labels))
    if not num_images or not num_labels:
        path = labels if num_images else images
        raise DataFileError(f"{path} holds a single number, not a data set; download it again")
    check_pair(images, labels, *num_images, *num_labels)
    return num_images[0]


def _count_records(names: tuple[str, ...], located: Located, size: int) -> int:
    total = 0
    for name in names:
        path = located.paths[name]
        records, rest = divmod(path.stat().st_size, size)
        if rest:
            raise DataFileError(
                f"{path} is not a whole number of records of {size} bytes; download it again"
            )
        total += records
    return total


def render(found: list[Found]) -> str:
    """A plain-text table of data sets."""
    rows = [("data set", "found in", "train", "test", "folder", "note")]
    for one in found:
        train, test = ("?", "?") if one.counts is None else map(str, one.counts)
        if one.place == "nowhere":
            train = test = "–"
        rows.append((one.name, one.place, train, test, one.folder or "–", one.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{side}{width}" for side, width in zip("<<>><<", widths, strict=True)]
    lines = ["  ".join(map(format, row, formats)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
