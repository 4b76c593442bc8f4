"""The one way in which the coordinates of a posterior are moved.

A `Move` takes a params-shaped tree and the number of leading axes in front of
every leaf (0, or 1 for stacked draws and factors) and gives the moved tree. A
posterior's `relabel` applies it to every tree inside it, so that permuting is
written once for all kinds.
"""

from collections.abc import Callable

from onebasin.trees import PyTree

Move = Callable[[PyTree, int], PyTree]


def keep(tree: PyTree, lead: int) -> PyTree:
    """The move that leaves everything where it is."""
    del lead
    return tree
