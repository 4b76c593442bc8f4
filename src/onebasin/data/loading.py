"""`load_dataset`: a name to arrays."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from onebasin.data.cache import Located, default_cache, find
from onebasin.data.cifar import parse_records, read_members
from onebasin.data.dataset import Dataset, Split
from onebasin.data.digits import load_digits
from onebasin.data.idx import read_images_and_labels
from onebasin.data.sources import NAMES, SOURCES, Source

Limit = int | tuple[int | None, int | None] | None


def load_dataset(
    name: str | Source,
    root: str | os.PathLike[str] | None = None,
    limit: Limit = None,
    *,
    cache: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Read a data set: images as float32 in [0, 1], [n, height, width, channels], labels as int32.

    Args:
      name: "digits" (embedded), "mnist", "fashion-mnist", "cifar10" or "cifar100"; or a `Source`
        that describes other files of the same formats.
      root: folder with the published files. Without it: the folder named by ONEBASIN_DATA, then
        the cache folder, then a download into the cache folder, checked against the published
        checksum.
      limit: keep the first so many training examples; a pair limits (train, test).
      cache: another cache folder than the platform's.
    """
    train_limit, test_limit = _limits(limit)
    if name == "digits":
        whole = load_digits()
        return replace(
            whole,
            train=_limited(whole.train, train_limit, "digits"),
            test=_limited(whole.test, test_limit, "digits"),
        )
    if isinstance(name, Source):
        source = name
    elif name in SOURCES:
        source = SOURCES[name]
    else:
        raise ValueError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")
    located = find(source, root, Path(cache).expanduser() if cache else default_cache())
    train, test = _read(source, located)
    available = (len(train), len(test))
    return Dataset(
        source.name,
        _scaled(_limited(train, train_limit, source.name)),
        _scaled(_limited(test, test_limit, source.name)),
        source.num_classes,
        str(located.folder),
        available,
        source.published,
    )


def _read(source: Source, located: Located) -> tuple[Split, Split]:
    """Both splits as the bytes in the files."""
    if source.format == "idx":
        pairs = [
            read_images_and_labels(
                located.paths[images],
                located.paths[labels],
                image_shape=(28, 28),
                num_classes=source.num_classes,
            )
            for images, labels in (source.train, source.test)
        ]
        return Split(*pairs[0]), Split(*pairs[1])
    members = read_members(located.archive, source.files) if located.archive else None
    splits = []
    for names in (source.train, source.test):
        parts = [
            parse_records(
                members[name] if members is not None else located.paths[name].read_bytes(),
                f"{located.archive}:{name}" if members is not None else str(located.paths[name]),
                label_bytes=source.label_bytes,
                num_classes=source.num_classes,
            )
            for name in names
        ]
        splits.append(Split(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))))
    return splits[0], splits[1]


def _scaled(split: Split) -> Split:
    x = split.x.astype(np.float32, order="C")
    x /= np.float32(255)
    return Split(x, split.y)


def _limits(limit: Limit) -> tuple[int | None, int | None]:
    pair = limit if isinstance(limit, tuple) else (limit, None)
    valid = len(pair) == 2 and all(
        n is None or (isinstance(n, int) and not isinstance(n, bool) and n > 0) for n in pair
    )
    if not valid:
        raise ValueError(
            f"limit must be a positive number of training examples or a pair (train, test), "
            f"got {limit!r}"
        )
    return pair


def _limited(split: Split, count: int | None, name: str) -> Split:
    if count is not None and count > len(split):
        raise ValueError(
            f"limit asks for {count} examples, but that split of {name} has {len(split)}"
        )
    return split.first(count)
