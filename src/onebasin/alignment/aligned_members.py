"""Members in the common frame, read a block of coordinates at a time.

Only the block is copied: every member's part of it is gathered by that member's own permutation
(and scaled), so a pass over all draws costs one read of them, in memory or in a file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onebasin.alignment.members import Members, nth_draw
from onebasin.alignment.scores import Indices
from onebasin.symmetry import Symmetry
from onebasin.symmetry.layout import gather_index, moves

BLOCK_BYTES = 1 << 25  # of one block of all members: large products, little memory


@dataclass(frozen=True)
class Block:
    """Some coordinates of one leaf, of all members."""

    leaf: str
    columns: slice  # into the flattened leaf
    values: np.ndarray  # [members, coordinates]
    variance: np.ndarray | float  # the mean of the members' own variances, [coordinates]


@dataclass
class AlignedMembers:
    """Members with a permutation each."""

    members: Members
    symmetry: Symmetry
    indices: list[Indices]
    precision: np.dtype | None = None
    """The precision of the blocks; that of the members if None."""

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

    def blocks(self) -> Iterator[Block]:
        """All coordinates, leaf by leaf, in slices of the first axis."""
        stacked = {
            name: np.stack([indices[name] for indices in self.indices]) for name in self.indices[0]
        }
        for leaf, shape in self.shapes.items():
            gathers = {
                axis: gather_index(layout, stacked).astype(np.intp)
                for axis, layout in enumerate(self.symmetry.layouts.get(leaf, ()))
                if moves(layout)
            }
            own = int(np.prod(shape[1:])) * self.dtype.itemsize * len(self.members)
            step = max(1, BLOCK_BYTES // max(own, 1))
            for start in range(0, shape[0] if shape else 1, step):
                yield self._block(leaf, slice(start, start + step), gathers)

    def _block(self, leaf: str, rows: slice, gathers: Mapping[int, np.ndarray]) -> Block:
        members, width = self.members, int(np.prod(self.shapes[leaf][1:]))
        columns = slice(rows.start * width, rows.stop * width)
        if members.draws is not None:
            sources = [nth_draw(members.draws[leaf], i) for i in range(len(members))]
        else:
            sources = [q.mean[leaf] for q in members.moments or ()]
        values = self._gathered(leaf, sources, rows, gathers)
        if members.moments is None or members.has_points:
            return Block(leaf, columns, values, 0.0)
        sources = [q.std_or_zeros()[leaf] for q in members.moments]
        stds = self._gathered(leaf, sources, rows, gathers).astype(np.float64)
        return Block(leaf, columns, values, np.mean(stds**2, axis=0))

    def _gathered(
        self,
        leaf: str,
        sources: Sequence[np.ndarray],
        rows: slice,
        gathers: Mapping[int, np.ndarray],
    ) -> np.ndarray:
        """These rows of every member, moved and scaled: [members, coordinates]."""
        shape = self.shapes[leaf]
        count = 1 if not shape else len(range(shape[0])[rows])
        out = np.empty((len(sources), count, *shape[1:]), self.dtype)
        scales = self.members.scales.get(leaf, ())
        for i, source in enumerate(sources):
            part = source.reshape(1) if not shape else source
            part = part[gathers[0][i][rows] if 0 in gathers else rows]
            for axis, index in gathers.items():
                if axis > 0:
                    part = part.take(index[i], axis=axis)
            out[i] = part
            for axis, factors in scales:
                factor = factors[i].astype(self.dtype)
                if axis in gathers:
                    factor = factor[gathers[axis][i]]
                broadcast = [1] * part.ndim
                broadcast[axis] = -1
                out[i] *= (factor[rows] if axis == 0 else factor).reshape(broadcast)
        return out.reshape(len(sources), -1)
