"""Members in the common frame, read a few at a time.

Only these few are copied: each is moved by its own permutation (and scaled), so a pass over all
draws costs one read of them from end to end, in memory or in a file, and its memory does not grow
with their number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onebasin.alignment.members import Members, moved
from onebasin.alignment.moments import Leaves
from onebasin.alignment.scores import Indices
from onebasin.symmetry import Symmetry
from onebasin.threads import pool

CHUNK_BYTES = 1 << 26  # of one chunk: large products, little memory


@dataclass(frozen=True)
class Chunk:
    """Some members, each leaf flattened: [members, coordinates]."""

    rows: slice  # which members
    values: Leaves
    stds: Leaves | None
    """The members' own standard deviations, if they have any."""


@dataclass
class AlignedMembers:
    """Members with a permutation each."""

    members: Members
    symmetry: Symmetry
    indices: list[Indices]
    precision: np.dtype | None = None
    """The precision of the chunks; that of the members if None."""

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {leaf: np.shape(array) for leaf, array in self.members[0].mean.items()}

    @cached_property
    def own_dtype(self) -> np.dtype:
        """The precision of the members themselves."""
        return np.result_type(*{array.dtype for array in self.members[0].mean.values()})

    @property
    def dtype(self) -> np.dtype:
        return self.own_dtype if self.precision is None else self.precision

    @property
    def size(self) -> int:
        """The number of coordinates of a member."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def chunks(self) -> Iterator[Chunk]:
        """All members, a few at a time."""
        count = len(self.members)
        step = max(1, CHUNK_BYTES // max(1, self.size * self.dtype.itemsize))
        for start in range(0, count, step):
            yield self._chunk(slice(start, min(start + step, count)))

    def _chunk(self, rows: slice) -> Chunk:
        which = range(rows.start, rows.stop)

        def empty() -> dict[str, np.ndarray]:
            sizes = {leaf: int(np.prod(shape)) for leaf, shape in self.shapes.items()}
            return {k: np.empty((len(which), size), self.dtype) for k, size in sizes.items()}

        values, stds = empty(), None if self.members.has_points else empty()

        def put(i: int) -> None:
            member = self.members[i]
            trees = (member.mean,) if stds is None else (member.mean, member.std_or_zeros())
            for out, tree in zip((values, stds), self._moved(trees, i), strict=False):
                assert out is not None
                for leaf, array in tree.items():
                    out[leaf][i - rows.start] = np.reshape(array, -1)

        list(pool().map(put, which))
        return Chunk(rows, values, stds)

    def _moved(self, trees: tuple[Leaves, ...], index: int) -> tuple[Leaves, ...]:
        return moved(self.symmetry, trees, self.indices[index])
