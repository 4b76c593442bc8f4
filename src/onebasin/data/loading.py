"""`load_dataset`: from a name to arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from onebasin.choices import DataName, check_choice
from onebasin.data.cache import Folder, Located, find
from onebasin.data.cifar import SIDE, count_records, member_sizes, opened_members, read_records
from onebasin.data.dataset import Dataset, Split
from onebasin.data.digits import load_digits
from onebasin.data.idx import read_images_and_labels
from onebasin.data.pixels import Stream, room_for
from onebasin.data.pydoc import load_pydoc, version
from onebasin.data.sources import SOURCES, Source

Limit: TypeAlias = int | tuple[int | None, int | None] | None


def load_dataset(
    name: DataName | Source,
    root: Folder | None = None,
    limit: Limit = None,
    *,
    cache: Folder | None = None,
) -> Dataset:
    """Read a data set: images as float32 in [0, 1], [n, height, width, channels], labels as int32.

    Args:
      name: "digits" (embedded), "pydoc" (characters of Python's language reference), "mnist",
        "fashion-mnist", "cifar10" or "cifar100"; or a `Source` that describes other files of the
        same formats.
      root: the folder of the published files. By default: the folder named by ONEBASIN_DATA, then
        the cache folder, then a download into the cache folder, verified by its checksum.
      limit: the number of training examples to keep, or a pair (train, test); the first ones are
        kept.
      cache: a cache folder other than the default of the platform.

    >>> import onebasin as ob
    >>> data = ob.load_dataset("digits", limit=(100, 50))
    >>> data.train, data.test
    (Split(100 examples of shape (8, 8, 1)), Split(50 examples of shape (8, 8, 1)))
    """
    limits = _limits(limit)
    if isinstance(name, Source):
        found = _read(name, find(name, root, cache), limits)
    elif name == "digits":
        found = _limited(load_digits(), limits)
    elif name == "pydoc":
        found = _limited(load_pydoc(), limits)
    else:
        check_choice(name, DataName, "data set")
        found = _read(SOURCES[name], find(SOURCES[name], root, cache), limits)
    record = {"name": found.name, **({"version": version()} if name == "pydoc" else {})}
    return replace(found, record=record)


def _limited(whole: Dataset, limits: tuple[int | None, int | None]) -> Dataset:
    train, test = (
        split.first(_kept(len(split), limit, whole.name))
        for split, limit in zip((whole.train, whole.test), limits, strict=True)
    )
    return replace(whole, train=train, test=test)


def _read(source: Source, located: Located, limits: tuple[int | None, int | None]) -> Dataset:
    read = _read_idx if source.format == "idx" else _read_records
    keeps = [lambda count, limit=limit: _kept(count, limit, source.name) for limit in limits]
    (x, y), (test_x, test_y) = read(source, located, keeps)
    train, test = Split(x, y[: len(x)]), Split(test_x, test_y[: len(test_x)])
    available = (len(y), len(test_y))
    folder = str(located.folder)
    return Dataset(
        source.name, train, test, source.num_classes, folder, available, source.published
    )


Keep: TypeAlias = Callable[[int], int]
"""How many examples are kept, of so many."""
Arrays: TypeAlias = tuple[np.ndarray, np.ndarray]
"""The images that are kept, and all labels."""


def _read_idx(source: Source, located: Located, keeps: Sequence[Keep]) -> list[Arrays]:
    """Training and test examples."""
    return [
        read_images_and_labels(
            *(located.paths[name] for name in names),
            image_shape=(28, 28),
            num_classes=source.num_classes,
            keep=keep,
        )
        for names, keep in zip((source.train, source.test), keeps, strict=True)
    ]


def _read_records(source: Source, located: Located, keeps: Sequence[Keep]) -> list[Arrays]:
    """Training and test examples, from files that an archive has in an order of its own."""
    archive, files = located.archive, source.files
    if archive is None:
        sizes = {name: located.paths[name].stat().st_size for name in files}
        wheres = {name: str(located.paths[name]) for name in files}
    else:
        sizes, wheres = member_sizes(archive, files), {n: f"{archive}:{n}" for n in files}
    counts = {
        name: count_records(sizes[name], wheres[name], label_bytes=source.label_bytes)
        for name in files
    }
    found: list[Arrays] = []
    own: dict[str, Arrays] = {}
    for names, keep in zip((source.train, source.test), keeps, strict=True):
        total, first = sum(counts[name] for name in names), 0
        kept = keep(total)
        x = room_for(kept, (SIDE, SIDE, 3), archive or located.folder)
        y = np.empty(total, np.int32)
        found.append((x, y))
        for name in names:
            own[name] = x[first:], y[first : first + counts[name]]
            first += counts[name]
    opened = opened_members(archive, files) if archive else nullcontext(_opened(located, files))
    with opened as members:
        for name, stream in members:
            images, labels = own[name]
            labels[:] = read_records(
                *(stream, counts[name], wheres[name], images),
                label_bytes=source.label_bytes,
                num_classes=source.num_classes,
            )
    return found


def _opened(located: Located, names: tuple[str, ...]) -> Iterator[tuple[str, Stream]]:
    for name in names:
        with located.paths[name].open("rb") as stream:
            yield name, stream


def _limits(limit: Limit) -> tuple[int | None, int | None]:
    pair = limit if isinstance(limit, tuple) else (limit, None)
    valid = len(pair) == 2 and all(
        n is None or (isinstance(n, int) and not isinstance(n, bool) and n > 0) for n in pair
    )
    if not valid:
        raise ValueError(
            f"limit is {limit!r}; give a positive number of training examples, or a pair "
            "(train, test)"
        )
    return pair


def _kept(count: int, limit: int | None, name: str) -> int:
    """How many of `count` examples are kept."""
    if limit is not None and limit > count:
        raise ValueError(
            f"limit is {limit}, but that split of {name} has {count} examples; give at most {count}"
        )
    return count if limit is None else limit
