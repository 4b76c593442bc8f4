"""A relabelling of the coordinates of a posterior.

A `Move` takes a params-shaped tree and the number of leading axes of every leaf (0, or 1 for
stacked draws and factors), and returns the relabelled tree. The `relabel` of a posterior applies it
to every tree inside, so the action of a permutation is written once for all kinds.
"""

from collections.abc import Callable
from typing import TypeAlias

from onebasin.trees import PyTree

Move: TypeAlias = Callable[[PyTree, int], PyTree]


def keep(tree: PyTree, lead: int) -> PyTree:
    """The identity."""
    del lead
    return tree
