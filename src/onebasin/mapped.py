"""Memory maps that are read once from end to end, without staying in memory.

The system keeps every page of a map that was read in the memory of the process as long as there is
room. A pass over a file much larger than memory then looks as if it needed all of it, and on a
machine with a limit for each process it ends there. `release` gives the pages back; the system may
still hold them for the next reader.
"""

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np


def map_of(array: Any) -> mmap.mmap | None:
    """The map of a file that an array is a view of, if it is one.

    Maps with changes of their own (mode "c") do not count: these would be lost with their pages.

    >>> map_of(np.zeros(3)) is None
    True
    """
    shared = False
    while isinstance(array, np.ndarray):
        shared |= isinstance(array, np.memmap) and array.mode in ("r", "r+")
        array = array.base
    return array if shared and isinstance(array, mmap.mmap) else None


def release(array: Any) -> None:
    """Give back the pages of the map behind an array that were read; nothing for other arrays."""
    found = map_of(array)
    if found is not None and hasattr(mmap, "MADV_DONTNEED"):
        found.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class InFile:
    """Where the values of a mapped array are: what another process needs to map them itself."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    def opened(self) -> np.ndarray:
        """The array, mapped here."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def by_reference(array: Any) -> Any:
    """An array as its place in a file if it is mapped from one end of that place to the other."""
    if map_of(array) is None or not array.flags.c_contiguous:
        return array
    whole: Any = array
    while not (isinstance(whole, np.memmap) and isinstance(whole.base, mmap.mmap)):
        whole = whole.base
    if whole.filename is None:
        return array
    skipped = array.ctypes.data - whole.ctypes.data
    path = str(whole.filename)
    return InFile(path, array.dtype, array.shape, int(whole.offset) + skipped)
