"""A path: t in [0, 1] → posterior."""

from typing import Protocol, runtime_checkable

from onebasin.posterior import Posterior


@runtime_checkable
class Path(Protocol):
    """A function from t in [0, 1] to a posterior; `profile` takes any such function.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> def bend(t):  # a path of your own
    ...     return ob.MeanField({"w": jnp.array([t, t**2])}, {"w": jnp.ones(2)})
    >>> isinstance(bend, ob.Path)
    True
    """

    def __call__(self, t: float, /) -> Posterior: ...
