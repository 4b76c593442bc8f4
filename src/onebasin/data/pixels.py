"""Pixels from files into arrays: blocks of bytes become fractions of 255 where they will stay.

Reading takes the memory of the result and of one block: as numbers of four bytes, pixels take four
times their file, and a copy of the file besides would be a fifth.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from onebasin.data.dataset import DataFileError

BLOCK = 1 << 18  # bytes that are read at once


class Stream(Protocol):
    """A file that is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes: ...


def blocks_of(stream: Stream, count: int, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """`count` items of `size` bytes as blocks [n, size], each with the number of its first item.

    They end sooner where the stream does.
    """
    at_once, first = max(1, BLOCK // size), 0
    while first < count:
        data = stream.read(min(at_once, count - first) * size)
        block = np.frombuffer(data, np.uint8, len(data) // size * size).reshape(-1, size)
        if not len(block):
            return
        yield first, block
        first += len(block)


def room_for(count: int, shape: tuple[int, ...], path: Path) -> np.ndarray:
    """An array for `count` images of this shape, which takes memory only where it is filled."""
    try:
        return np.empty((count, *shape), np.float32)
    except MemoryError:
        raise DataFileError(
            f"{path} promises {count:,} images, too many for the memory; download it again, or "
            "keep fewer with limit="
        ) from None


def put_scaled(block: np.ndarray, images: np.ndarray) -> None:
    """Write bytes as fractions of 255 over the first images, as far as these reach."""
    kept = images[: len(block)]
    np.divide(block[: len(kept)], np.float32(255), out=kept)
