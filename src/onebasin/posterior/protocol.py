"""The contract of a posterior, on which alignment, paths and evaluation rely."""

from collections.abc import Callable
from typing import Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import jax

from onebasin.trees import PyTree

Move: TypeAlias = Callable[[PyTree, int], PyTree]
"""A relabelling of coordinates: takes a params-shaped tree and the number of leading axes of every
leaf (0, or 1 for stacked draws and factors), and returns the relabelled tree."""


def keep(tree: PyTree, lead: int) -> PyTree:
    """The identity."""
    del lead
    return tree


@runtime_checkable
class Posterior(Protocol):
    """A probability distribution over the params of a network.

    `MeanField`, `Samples`, `LowRank`, `LowRankPrecision`, `Kronecker` and `Mixture` are posteriors.
    A class of your own with these five members can be aligned, joined by mixture paths and
    evaluated like them; register it as a pytree. A Laplace distribution, for example:

    >>> from dataclasses import dataclass
    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> from onebasin.posterior.protocol import keep
    >>> @jax.tree_util.register_dataclass
    ... @dataclass(frozen=True)
    ... class Laplace:
    ...     mean: dict
    ...     scale: dict
    ...     like = property(lambda self: self.mean)
    ...     def sample(self, count=None, *, key):
    ...         lead = () if count is None else (count,)
    ...         draw = lambda m, s: m + s * jax.random.laplace(key, lead + m.shape)
    ...         return jax.tree.map(draw, self.mean, self.scale)
    ...     def states(self, count=None, *, key):
    ...         return None
    ...     def moments(self):
    ...         return self.mean, jax.tree.map(lambda s: jnp.sqrt(2) * s, self.scale)
    ...     def relabel(self, move, move_state=keep):
    ...         return Laplace(move(self.mean, 0), move(self.scale, 0))
    >>> q = Laplace({"w": jnp.zeros(3)}, {"w": jnp.ones(3)})
    >>> isinstance(q, ob.Posterior), q.sample(5, key=jax.random.key(0))["w"].shape
    (True, (5, 3))
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
        """Apply `move` to every params-shaped tree inside and `move_state` to the state."""
        ...


@runtime_checkable
class Density(Posterior, Protocol):
    """A posterior with a log density."""

    def log_prob(self, params: PyTree) -> jax.Array:
        """log q(params)."""
        ...


PosteriorT = TypeVar("PosteriorT", bound=Posterior)
