"""Sums over the devices that share the data of one replica.

With `data_shards` each replica is computed by several devices, each with its part of the data, or
of the minibatch. All of them hold the same weights and draw the same random numbers; gradients and
log likelihoods are summed between them, so they stay equal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from onebasin.trees import PyTree

AXIS = "data"


@dataclass(frozen=True)
class Shards:
    """How many devices share the data of a replica; to be used inside the loop over devices."""

    count: int = 1

    def sum(self, tree: PyTree) -> PyTree:
        """The sum over the devices."""
        return tree if self.count == 1 else jax.lax.psum(tree, AXIS)

    def mean(self, tree: PyTree) -> PyTree:
        """The mean over the devices."""
        return tree if self.count == 1 else jax.lax.pmean(tree, AXIS)

    def index(self) -> int | jax.Array:
        """Which of the devices this is."""
        return 0 if self.count == 1 else jax.lax.axis_index(AXIS)

    def joined(self, tree: PyTree) -> PyTree:
        """The parts of all devices one after another."""
        if self.count == 1:
            return tree
        join: Callable[[jax.Array], jax.Array] = lambda a: jax.lax.all_gather(a, AXIS, tiled=True)
        return jax.tree.map(join, tree)


WHOLE = Shards()
