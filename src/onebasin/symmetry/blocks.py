"""Groups whose units come in blocks: each head has its own order of dimensions.

The dimensions of H heads are one group of H·d units in row-major order. Its permutations move whole
blocks and permute inside each block, independently: p(h·d + i) = σ(h)·d + πₕ(i). They are closed
under composition (a wreath product). Several groups may share the order σ of their blocks, as the
dimensions of queries and keys, those of values, and the heads themselves (blocks of one) do; they
are one *family*.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np


@dataclass(frozen=True)
class Blocks:
    """How the units of a group are divided, and the family whose blocks move alike."""

    family: str
    count: int


BlocksByGroup: TypeAlias = Mapping[str, Blocks]


def families(blocks: BlocksByGroup) -> dict[str, list[str]]:
    """The groups of each family."""
    found: dict[str, list[str]] = {}
    for name, own in blocks.items():
        found.setdefault(own.family, []).append(name)
    return found


def units(names: Iterable[str], blocks: BlocksByGroup) -> list[tuple[str, ...]]:
    """The groups in order, those of one family together at the place of the first of them."""
    by_family = families(blocks)
    found: dict[tuple[str, ...], None] = {}
    for name in names:
        found.setdefault(tuple(by_family[blocks[name].family]) if name in blocks else (name,))
    return list(found)


def joined(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The permutation that takes block σ(h) to h, with the order π[h] inside it."""
    return (outer[:, None] * inner.shape[1] + inner).reshape(-1)


def outer_order(index: np.ndarray, count: int) -> np.ndarray:
    """σ of permutations [..., H·d] in H blocks; an error if they do not keep the blocks."""
    rows = index.reshape(*index.shape[:-1], count, -1) // (index.shape[-1] // count)
    if not (rows == rows[..., :1]).all():
        raise ValueError("it moves units out of their blocks; keep each block together")
    return rows[..., 0]


def check_blocks(indices: Mapping[str, np.ndarray], blocks: BlocksByGroup) -> None:
    """Refuse permutations that divide a block, or move the blocks of one family differently."""
    for family, names in families(blocks).items():
        orders = []
        for name in names:
            try:
                orders.append(outer_order(indices[name], blocks[name].count))
            except ValueError as error:
                raise ValueError(
                    f"the permutation of group '{name}' is none of this symmetry: {error}; find "
                    "the symmetry with own_orders=False where groups are permuted freely"
                ) from None
        if not all(np.array_equal(order, orders[0]) for order in orders[1:]):
            raise ValueError(
                f"groups {', '.join(names)} move the blocks of '{family}' differently; give them "
                "one order of the blocks"
            )


def random_order(size: int, count: int, outer: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A permutation with the given order of blocks and random orders inside them."""
    return joined(outer, rng.permuted(np.tile(np.arange(size // count), (count, 1)), axis=1))
