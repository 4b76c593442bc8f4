"""How the units of the groups are arranged along one axis of an array.

An axis is a sequence of positions. Its layout says which of them belong to which unit. `Units` are
one group's units in order, and `Fixed` are positions that must stay. `Product` is the row-major
product of its parts: a flattened H×W×C is `Product((Fixed(49), Units("conv", 16)))`. `Concat` is
the concatenation of its parts, as in fused gates or dense connections. Layouts nest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Generic, Protocol, TypeAlias, TypeVar, Union

import numpy as np

MOST_PARTS = 6  # of a concatenation, shown by `describe`


class HasSize(Protocol):
    @property
    def size(self) -> int: ...


Part = TypeVar("Part", bound=HasSize, covariant=True)


@dataclass(frozen=True)
class Fixed:
    """Positions that no permutation moves."""

    size: int


@dataclass(frozen=True)
class Units:
    """The units of one group, in order."""

    group: str
    size: int


@dataclass(frozen=True)
class Product(Generic[Part]):
    """Row-major product: the last part varies fastest."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return prod(part.size for part in self.parts)


@dataclass(frozen=True)
class Concat(Generic[Part]):
    """Parts one after another."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


Layout: TypeAlias = Union[Fixed, Units, "Product[Layout]", "Concat[Layout]"]
Layouts: TypeAlias = Mapping[str, tuple[Layout, ...]]  # key path of a leaf → layout of each axis


def gather_index(layout: Layout, permutations: Mapping[str, np.ndarray]) -> np.ndarray:
    """The index that permutes an axis by the groups' permutations: new = old[index].

    Stacked permutations [draws, n] give a stacked index.
    """
    match layout:
        case Fixed(size):
            return np.arange(size)
        case Units(group, _):
            return permutations[group]
        case Product(parts):
            index = np.zeros(1, np.int64)
            for part in parts:
                inner = gather_index(part, permutations)
                index = index[..., :, None] * part.size + inner[..., None, :]
                index = index.reshape(*index.shape[:-2], -1)
            return index
        case Concat(parts):
            pieces, start = [], 0
            for part in parts:
                pieces.append(gather_index(part, permutations) + start)
                start += part.size
            lead = np.broadcast_shapes(*(piece.shape[:-1] for piece in pieces))
            pieces = [np.broadcast_to(p, (*lead, p.shape[-1])) for p in pieces]
            return np.concatenate(pieces, axis=-1)


def occurrences(layout: Layout) -> Iterator[tuple[str, np.ndarray]]:
    """Every place of a group along the axis: the group's name and its positions [size, m].

    Row u holds the m positions that move with unit u at this place.
    """
    match layout:
        case Fixed(_):
            return
        case Units(group, size):
            yield group, np.arange(size)[:, None]
        case Product(parts):
            for i, part in enumerate(parts):
                before = prod(p.size for p in parts[:i])
                after = prod(p.size for p in parts[i + 1 :])
                for group, inner in occurrences(part):
                    outer = np.arange(before)[None, :, None, None] * part.size
                    positions = (outer + inner[:, None, :, None]) * after + np.arange(after)
                    yield group, positions.reshape(len(inner), -1)
        case Concat(parts):
            start = 0
            for part in parts:
                for group, inner in occurrences(part):
                    yield group, inner + start
                start += part.size


def without(layout: Layout, occurrence: int) -> Layout:
    """The layout with one of its places (counted as `occurrences` does) fixed."""
    counter = iter(range(occurrence + 1))

    def visit(node: Layout) -> Layout:
        match node:
            case Units(_, size):
                return Fixed(size) if next(counter, None) == occurrence else node
            case Product(parts):
                return Product(tuple(visit(part) for part in parts))
            case Concat(parts):
                return Concat(tuple(visit(part) for part in parts))
            case _:
                return node

    return visit(layout)


def moves(layout: Layout) -> bool:
    """Whether any group has a place along the axis."""
    return any(True for _ in occurrences(layout))


def describe(layout: Layout) -> str:
    """The layout in a few characters, e.g. `49×conv` or `conv+dense`.

    >>> describe(Product((Fixed(49), Units("conv", 16))))
    '49×conv'
    """
    match layout:
        case Fixed(size):
            return str(size)
        case Units(group, _):
            return group
        case Product(parts):
            return "×".join(
                f"({describe(p)})" if isinstance(p, Concat) else describe(p) for p in parts
            )
        case Concat(parts):
            shown = [describe(p) for p in parts[:MOST_PARTS]]
            return "+".join(shown) + ("+…" if len(parts) > MOST_PARTS else "")
