"""Assignments of groups whose units move in blocks (`symmetry/blocks.py`).

With S the score matrix of all H·d units, the best order inside block h, if it takes block h′, is
one small assignment; V[h, h′] is its value. The best order of the blocks is then the assignment of
V, summed over the groups of the family. Together this is the exact optimum over all orders at
once, at H² assignments of d units and one of H.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from onebasin.alignment.assignment import solve
from onebasin.symmetry.blocks import BlocksByGroup, joined


def solve_family(
    matrices: Mapping[str, np.ndarray], blocks: BlocksByGroup, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """The best permutations of the groups of one family; `names` are all of its groups."""
    count = blocks[names[0]].count
    values = np.zeros((count, count))
    inner: dict[str, np.ndarray] = {}
    for name in names:
        scores = matrices[name].astype(np.float64)
        size = len(scores) // count
        parts = scores.reshape(count, size, count, size).transpose(0, 2, 1, 3)
        orders = inner[name] = np.zeros((count, count, size), np.int64)
        for h, h2 in np.ndindex(count, count):
            orders[h, h2] = solve(parts[h, h2], name=name).columns if size > 1 else 0
        values += np.take_along_axis(parts, orders[..., None], axis=3).sum(axis=(2, 3))
    outer = solve(values, name=blocks[names[0]].family).columns
    rows = np.arange(count)
    return {name: joined(outer, orders[rows, outer]) for name, orders in inner.items()}


def solve_all(
    matrices: Mapping[str, np.ndarray], units: Sequence[tuple[str, ...]], blocks: BlocksByGroup
) -> dict[str, np.ndarray]:
    """The best permutation of every group, or of every family, for its own score matrix."""
    found: dict[str, np.ndarray] = {}
    for names in units:
        if names[0] in blocks:
            found |= solve_family(matrices, blocks, names)
        else:
            found[names[0]] = solve(matrices[names[0]], name=names[0]).columns
    return {name: found[name] for name in matrices}
