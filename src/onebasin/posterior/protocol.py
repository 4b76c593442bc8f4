"""What every posterior can do: the contract that alignment, paths and evaluation rely on."""

from typing import Protocol, Self, TypeVar, runtime_checkable

import jax

from onebasin.posterior.relabelling import Move, keep
from onebasin.trees import PyTree


@runtime_checkable
class Posterior(Protocol):
    """A law over the params of a network.

    `MeanField`, `Samples`, `LowRank` and `Mixture` are posteriors. One of your own needs these
    five methods and can then be aligned, joined by mixture paths and evaluated like them.
    """

    @property
    def like(self) -> PyTree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        ...

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree:
        """One draw, or `count` draws along a leading axis of every leaf."""
        ...

    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        ...

    def moments(self) -> tuple[PyTree, PyTree]:
        """Mean and standard deviation of every coordinate."""
        ...

    def relabel(self, move: Move, move_state: Move = keep) -> Self:
        """Apply one relabelling of coordinates to every params-shaped tree inside."""
        ...


PosteriorT = TypeVar("PosteriorT", bound=Posterior)
