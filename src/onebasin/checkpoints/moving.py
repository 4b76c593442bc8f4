"""A checkpoint as the params and running statistics of a symmetry, and moved by a permutation.

The entries of a file are those of the symmetry and others: counters, positions, masks. An entry
that holds the same numbers as a param is that param under a second name (tied weights) and moves
with it. The rest stays as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onebasin.checkpoints.checkpoint import Checkpoint
from onebasin.symmetry import Permutation, Symmetry
from onebasin.symmetry.action import move_tree
from onebasin.trees import first_difference, first_non_finite


@dataclass(frozen=True)
class Entries:
    """What the entries of a checkpoint are to a symmetry."""

    checkpoint: Checkpoint
    symmetry: Symmetry

    def __post_init__(self) -> None:
        layouts = (self.symmetry.layouts, self.symmetry.state_layouts)
        every = [name for known in layouts for name in known]
        object.__setattr__(self, "checkpoint", self.checkpoint.unwrapped(every))
        for known in layouts:
            wanted = {name: tuple(a.size for a in axes) for name, axes in known.items()}
            own = {n: a.shape for n, a in self.checkpoint.tensors.items() if n in known}
            difference = first_difference(wanted, own)
            if difference:
                raise ValueError(
                    f"{self.checkpoint.path} is not of the network of this symmetry: {difference}"
                )
        state = {name: self.checkpoint.tensors[name] for name in self.symmetry.state_layouts}
        bad = first_non_finite(self.params) or first_non_finite(state)
        if bad:
            raise ValueError(
                f"{self.checkpoint.path} holds NaN or infinity in '{bad}'; take another checkpoint"
            )

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The params, as they are in the file."""
        return {name: self.checkpoint.tensors[name] for name in self.symmetry.layouts}

    @cached_property
    def tied(self) -> Mapping[str, str]:
        """The param that each second name stands for."""
        known = {*self.symmetry.layouts, *self.symmetry.state_layouts}
        found: dict[str, str] = {}
        for name, array in self.checkpoint.tensors.items():
            if name not in known and array.ndim > 0:
                same = [p for p, own in self.params.items() if _same(own, array)]
                if same:
                    found[name] = same[0]
        return found

    @property
    def kept(self) -> list[str]:
        """The entries that no permutation moves because the symmetry does not know them."""
        known = {*self.symmetry.layouts, *self.symmetry.state_layouts, *self.tied}
        return [name for name in self.checkpoint.tensors if name not in known]

    def moved(self, name: str, permutation: Permutation) -> np.ndarray:
        """One entry, its units permuted."""
        leaf = self.tied.get(name, name)
        layouts = {**self.symmetry.state_layouts, **self.symmetry.layouts}
        indices = self.symmetry.check_permutation(permutation).indices
        one = {leaf: np.asarray(self.checkpoint.tensors[name])}
        return np.asarray(move_tree(one, 0, layouts, indices)[leaf])


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b)
