"""`load_dataset`: from a name to arrays."""

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from onebasin.choices import DataName, check_choice
from onebasin.data.cache import Folder, Located, find
from onebasin.data.cifar import parse_records, read_members
from onebasin.data.dataset import Dataset, Split
from onebasin.data.digits import load_digits
from onebasin.data.idx import read_images_and_labels
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
    train_limit, test_limit = _limits(limit)
    if isinstance(name, Source):
        whole = _read(name, find(name, root, cache))
    elif name == "digits":
        whole = load_digits()
    elif name == "pydoc":
        whole = load_pydoc()
    else:
        check_choice(name, DataName, "data set")
        whole = _read(SOURCES[name], find(SOURCES[name], root, cache))
    return replace(
        whole,
        record={"name": whole.name, **({"version": version()} if name == "pydoc" else {})},
        train=_prepared(whole.train, train_limit, whole.name),
        test=_prepared(whole.test, test_limit, whole.name),
    )


def _read(source: Source, located: Located) -> Dataset:
    """Both splits, with pixels as bytes."""
    members = read_members(located.archive, source.files) if located.archive else {}

    def split(names: tuple[str, ...]) -> Split:
        if source.format == "idx":
            images, labels = (located.paths[name] for name in names)
            shape = (28, 28)
            return Split(
                *read_images_and_labels(
                    images, labels, image_shape=shape, num_classes=source.num_classes
                )
            )
        parts = [
            parse_records(
                members[name] if located.archive else located.paths[name].read_bytes(),
                f"{located.archive}:{name}" if located.archive else str(located.paths[name]),
                label_bytes=source.label_bytes,
                num_classes=source.num_classes,
            )
            for name in names
        ]
        return Split(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    train, test = split(source.train), split(source.test)
    available = (len(train), len(test))
    folder = str(located.folder)
    return Dataset(
        source.name, train, test, source.num_classes, folder, available, source.published
    )


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


def _prepared(split: Split, limit: int | None, name: str) -> Split:
    """The first `limit` examples, with bytes scaled to [0, 1]."""
    if limit is not None and limit > len(split):
        raise ValueError(
            f"limit is {limit}, but that split of {name} has {len(split)} examples; give at most "
            f"{len(split)}"
        )
    split = split.first(limit)
    if split.x.dtype != np.uint8:
        return split
    x = split.x.astype(np.float32, order="C")
    x /= np.float32(255)
    return Split(x, split.y)
