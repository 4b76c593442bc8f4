"""What besides permutations may be done to the units of a group: signs, scales, matrices.

The units of a group lie along one axis (a *place*) of each of several leaves. An element of the
group's symmetry multiplies every place by a matrix that is a power of one matrix: with A for the
units, a place of exponent 1 (what computes the units) is multiplied by A, one of exponent −1 (what
reads them) by A⁻ᵀ, and one of exponent 0 by nothing. Which matrices the network allows is the
*kind* of the group:

| kind          | matrices                                                   |
|---------------|------------------------------------------------------------|
| `permutation` | permutations                                               |
| `signed`      | permutations and signs (odd units, such as tanh)           |
| `scaled`      | permutations and positive factors (homogeneous, as ReLU)   |
| `monomial`    | permutations, positive factors and signs                   |
| `orthogonal`  | all orthogonal matrices (streams read through an RMS norm) |
| `invertible`  | all invertible matrices (linear units; queries with keys)  |

Matrices of a group whose units come in blocks (heads) act inside the blocks. `centred` matrices
keep the vector of ones, as those of a stream that a layer normalisation reads have to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, get_args

from onebasin.symmetry.groups import Kind, Place

KINDS: tuple[Kind, ...] = get_args(Kind)
Key: TypeAlias = tuple[str, int, int]
"""A place of the params: leaf, axis, and its number among the places along that axis."""


def key_of(place: Place) -> Key:
    return place.leaf, place.axis, place.occurrence


@dataclass(frozen=True)
class Pattern:
    """The exponent of every place of a group with which an element acts there; 0 if not named.

    >>> pattern = Pattern.of({("w1", 1, 0): 1, ("w2", 0, 0): -1, ("b", 0, 0): 0})
    >>> pattern[("w2", 0, 0)], pattern[("b", 0, 0)]
    (-1, 0)
    """

    entries: tuple[tuple[Key, int], ...]

    @classmethod
    def of(cls, exponents: Mapping[Key, int]) -> "Pattern":
        return cls(tuple(sorted((key, int(e)) for key, e in exponents.items() if e)))

    @cached_property
    def _by_key(self) -> dict[Key, int]:
        return dict(self.entries)

    def __getitem__(self, key: Key) -> int:
        return self._by_key.get(key, 0)

    @property
    def linear(self) -> bool:
        """Whether a matrix can act so: no exponent but 1, 0 and −1."""
        return all(abs(e) == 1 for _, e in self.entries)


@dataclass(frozen=True)
class Mixing:
    """How the units of one group may be mixed, besides being permuted.

    At most one of `signs` and `matrices` is given: a matrix can change signs as well. `folded` are
    scales that `Symmetry.canonical` fixes, because the matrices exist only there: each makes one
    gain (named with it) equal to one.
    """

    signs: Pattern | None = None
    scales: tuple[Pattern, ...] = ()
    matrices: Pattern | None = None
    orthogonal: bool = False
    centred: bool = False
    folded: tuple[tuple[Key, Pattern], ...] = ()

    @property
    def kind(self) -> Kind:
        if self.matrices is not None:
            return "orthogonal" if self.orthogonal else "invertible"
        if self.scales:
            return "monomial" if self.signs is not None else "scaled"
        return "permutation" if self.signs is None else "signed"


Mixings: TypeAlias = Mapping[str, Mixing]
