"""A network as a function of params and inputs.

Functions that need a network take this function, a `Network`, or a `Problem`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import jax
from jax.typing import ArrayLike

from onebasin.trees import PyTree, num_parameters

Apply: TypeAlias = Callable[..., jax.Array]
"""`apply(params, x)`, or `apply(params, x, state)` where there are running statistics."""


@dataclass(frozen=True)
class Network:
    """A function and its parameters.

    Args:
      apply: `apply(params, x)` gives the outputs for a batch `x`; with running statistics it is
        `apply(params, x, state)`.
      params: a pytree of arrays.
      state: the running statistics, if any.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> ob.Network(lambda params, x: x @ params["w"], {"w": jnp.ones((3, 2))})
    Network(6 parameters)
    """

    apply: Apply
    params: PyTree
    state: PyTree | None = None

    def __repr__(self) -> str:
        running = (
            "" if self.state is None else f", {num_parameters(self.state):,} running statistics"
        )
        return f"Network({num_parameters(self.params):,} parameters{running})"


@runtime_checkable
class HasApply(Protocol):
    """An object that holds the function of a network: a `Network` or a `Problem`."""

    @property
    def apply(self) -> Apply: ...


NetworkLike: TypeAlias = Apply | HasApply


def apply_of(network: NetworkLike) -> Apply:
    """The function `apply(params, x)` or `apply(params, x, state)` of a network."""
    name = type(network).__name__
    if any(kind.__module__.startswith("flax.") for kind in inspect.getmro(type(network))):
        raise ValueError(
            f"{name} is a Flax module; adapt it with networks.from_linen or networks.from_nnx first"
        )
    if isinstance(network, HasApply):
        return network.apply
    if callable(network):
        return network
    raise ValueError(f"a {name} is not a network; give apply(params, x), a Network or a Problem")


def forward(apply: Apply, params: PyTree, x: ArrayLike, state: PyTree | None) -> jax.Array:
    """The outputs of the network, with running statistics if there are any."""
    return apply(params, x) if state is None else apply(params, x, state)
