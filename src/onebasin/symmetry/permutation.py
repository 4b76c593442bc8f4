"""Permutations of the hidden units of a network: one index array for each group.

A permutation p acts by gathering, new[i] = old[p[i]]. With (p ∘ q)[i] = q[p[i]], acting by
`compose(p, q)` is acting by q first and then by p.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False, init=False)
class Permutation:
    """One permutation of the hidden units of every group.

    It acts by gathering, new[i] = old[p[i]]. `Symmetry.random` draws one, and `align` finds one.
    It is immutable, compares by value and iterates over the names of its groups.

    Args:
      indices: by group name, indices [n], or [draws, n] for one permutation per draw.

    >>> p = Permutation({"hidden": [1, 2, 0]})
    >>> p
    Permutation(hidden: 3)
    >>> p["hidden"].tolist(), inverse(p)["hidden"].tolist()
    ([1, 2, 0], [2, 0, 1])
    """

    indices: Mapping[str, np.ndarray]

    def __init__(self, indices: Mapping[str, ArrayLike]) -> None:
        validated = {name: _validated(name, p) for name, p in indices.items()}
        if len({p.shape[:-1] for p in validated.values()}) > 1:
            shapes = {name: p.shape for name, p in validated.items()}
            raise ValueError(f"the groups disagree on the number of draws: {shapes}; give all one")
        object.__setattr__(self, "indices", MappingProxyType(validated))

    def __reduce__(self) -> tuple[Any, ...]:
        return Permutation, (dict(self.indices),)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.indices:
            raise KeyError(f"no group '{name}' in this permutation; it has {list(self.indices)}")
        return self.indices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.indices)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Permutation)
            and self.indices.keys() == other.indices.keys()
            and all(np.array_equal(p, other.indices[name]) for name, p in self.indices.items())
        )

    def __hash__(self) -> int:
        return hash(tuple((name, self.indices[name].tobytes()) for name in sorted(self.indices)))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {p.shape[-1]}" for name, p in self.indices.items())
        stacked = f"{self.draws} draws; " if self.draws is not None else ""
        return f"Permutation({stacked}{sizes})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.indices)

    @property
    def draws(self) -> int | None:
        """The number of draws of a stacked permutation, or None."""
        first = next(iter(self.indices.values()), None)
        return None if first is None or first.ndim == 1 else first.shape[0]

    def draw(self, index: int) -> "Permutation":
        """The permutation of one draw of a stack."""
        if self.draws is None:
            raise ValueError("this permutation is not stacked; use it without .draw(index)")
        return Permutation({name: p[index] for name, p in self.indices.items()})


def _validated(name: str, values: ArrayLike) -> np.ndarray:
    given = np.asarray(values)
    if given.ndim not in (1, 2) or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            f"group '{name}' needs integer indices of shape [n] or [draws, n], "
            f"not {given.dtype} of shape {given.shape}; give whole numbers"
        )
    if not (np.sort(given, axis=-1) == np.arange(given.shape[-1])).all():
        raise ValueError(
            f"group '{name}' does not hold every index from 0 to {given.shape[-1] - 1} once; "
            "give a permutation of them"
        )
    indices = np.array(given, np.int32)
    indices.setflags(write=False)
    return indices


def stack(permutations: Sequence[Permutation]) -> Permutation:
    """One stacked permutation from one for each draw."""
    if not permutations:
        raise ValueError("there are no permutations to stack; pass at least one")
    names = permutations[0].names
    return Permutation({name: np.stack([p[name] for p in permutations]) for name in names})


def compose(p: Permutation, q: Permutation) -> Permutation:
    """The permutation that acts by q first and then by p: (p ∘ q)[i] = q[p[i]]."""
    if set(p.names) != set(q.names):
        raise ValueError(
            f"permutations of different groups cannot be composed: "
            f"{sorted(set(p.names) ^ set(q.names))} in only one of "
            "them; take both from one symmetry"
        )
    composed = {}
    for name in p.names:
        a, b = p[name], q[name]
        if a.shape[-1] != b.shape[-1] or (a.ndim == b.ndim == 2 and len(a) != len(b)):
            raise ValueError(
                f"group '{name}' has shapes {a.shape} and {b.shape}; compose permutations of one "
                "symmetry and number of draws"
            )
        then, first = np.broadcast_arrays(a, b)
        composed[name] = np.take_along_axis(first, then, axis=-1)
    return Permutation(composed)


def inverse(p: Permutation) -> Permutation:
    """The permutation that undoes p."""
    return Permutation({name: np.argsort(p[name], axis=-1) for name in p.names})


def with_transpositions(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """A random permutation whose least number of transpositions is exactly `count`.

    Swapping elements of two different cycles joins them, which raises the number by one. Each step
    therefore swaps two positions in different cycles; labels say which cycle a position is in.
    Every permutation with that number has positive probability, but they are not equally likely.
    """
    if not 0 <= count < max(size, 1):
        raise ValueError(
            f"a permutation of {size} units takes 0 to {max(size - 1, 0)} transpositions, "
            f"not {count}; give a number in this range"
        )
    indices = np.arange(size)
    cycle = np.arange(size)
    for _ in range(count):
        i = rng.integers(size)
        j = rng.choice(np.flatnonzero(cycle != cycle[i]))
        indices[[i, j]] = indices[[j, i]]
        cycle[cycle == cycle[j]] = cycle[i]
    return indices


@dataclass(frozen=True)
class Transpositions:
    """The least number of transpositions that make up a permutation (NoT), one per draw."""

    total: int | np.ndarray
    by_group: dict[str, int | np.ndarray]

    def __repr__(self) -> str:
        stacked = isinstance(self.total, np.ndarray)
        total = f"{np.mean(self.total):.1f} per draw" if stacked else str(self.total)
        return f"Transpositions({total}, groups: {len(self.by_group)})"

    def __int__(self) -> int:
        return int(self.total)


def transpositions(p: Permutation) -> Transpositions:
    """The least number of transpositions (pairwise swaps) that make up a permutation, NoT.

    It is the number of units minus the number of cycles, NoT(p) = Σ_g (n_g − c(p_g)): a measure
    of how far p is from the identity. A stacked permutation gives one number per draw.

    Args:
      p: a permutation, for example the one that `align` finds.

    Returns:
      The total and the number of each group.

    >>> found = transpositions(Permutation({"a": [1, 0, 2], "b": [1, 2, 0]}))
    >>> found.total, found.by_group
    (3, {'a': 1, 'b': 2})
    """
    by_group: dict[str, int | np.ndarray] = {}
    for name in p.names:
        rows = np.atleast_2d(p[name])
        counts = np.array([len(row) - _count_cycles(row) for row in rows])
        by_group[name] = counts if p.draws is not None else int(counts[0])
    total = sum(by_group.values()) if by_group else 0
    return Transpositions(total, by_group)


def _count_cycles(indices: np.ndarray) -> int:
    """Pointer doubling: after k passes each index knows the smallest of the next 2ᵏ."""
    smallest, jump = np.arange(len(indices)), indices.copy()
    for _ in range(max(len(indices), 1).bit_length()):
        smallest = np.minimum(smallest, smallest[jump])
        jump = jump[jump]
    return int((smallest == np.arange(len(indices))).sum())
