"""What is known of one array while a network is traced."""

from collections.abc import Sequence
from dataclasses import dataclass

from onebasin.symmetry.axes import Atom, Axis, atoms_in
from onebasin.symmetry.joints import views


@dataclass(frozen=True)
class Pointer:
    """The axis whose positions the entries of an array are; `offset` if a number was added."""

    axis: Axis
    offset: bool = False


@dataclass(frozen=True)
class Value:
    """What is known of one array: its axes, and the parameter leaf that it rearranges, if any.

    `sources` gives, for each axis, the axes of that leaf from which it comes. `site` is where the
    array is computed: the indices of the nested equations, then −1 − the index of the result. It is
    None inside loops. `layer` is the number of the contraction that the array depends on through
    sums and products alone. `statistic` is that number for an array computed from a reduction of
    such a value (the mean and variance of a normalisation). `noise` marks numbers drawn at random
    in the forward pass. What comes after it is explained in `symmetry/pointers.py`.
    """

    axes: tuple[Axis, ...]
    leaf: str | None = None
    sources: tuple[frozenset[int], ...] = ()
    site: tuple[int, ...] | None = None
    layer: int | None = None
    statistic: int | None = None
    noise: bool = False
    pointer: Pointer | None = None  # whose positions the entries are
    number: float | None = None  # which all entries equal
    counts: int | None = None  # the axis along which the entries are 0, 1, 2, …
    distinct: bool = False  # the entries along permuted axes differ almost surely

    def relaid(self, axes: Sequence[Axis], sources: Sequence[frozenset[int]]) -> "Value":
        """The same entries, rearranged."""
        if self.leaf is None:
            return Value(tuple(axes))
        return Value(tuple(axes), self.leaf, tuple(sources))

    def source(self, axis: int) -> frozenset[int]:
        return self.sources[axis] if self.sources else frozenset()

    def free_atoms(self) -> list[Atom]:
        """The free atoms of all axes; nothing is divided to find them."""
        return [atom for _, axis in views(self.axes) for atom in atoms_in(axis)]
