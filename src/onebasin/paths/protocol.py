"""What a path is: t in [0, 1] to a posterior."""

from typing import Protocol, runtime_checkable

from onebasin.posterior import Posterior


@runtime_checkable
class Path(Protocol):
    """Anything that gives a posterior for every t in [0, 1] can be profiled.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> def bend(t):  # a path of your own
    ...     return ob.MeanField({"w": jnp.array([t, t**2])}, {"w": jnp.ones(2)})
    >>> isinstance(bend, Path)
    True
    """

    def __call__(self, t: float, /) -> Posterior: ...
