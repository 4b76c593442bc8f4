"""A network as OneBasin sees it: a function of params and inputs.

Whatever needs a network's function takes the function itself, a `Network`, or a `Problem`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax

from onebasin.trees import PyTree, num_parameters

Apply: TypeAlias = Callable[..., jax.Array]
"""`apply(params, x)`, or `apply(params, x, state)` where there are running statistics."""


@dataclass(frozen=True)
class Network:
    """A function and its parameters.

    `apply(params, x)` gives the outputs for a batch `x`, or `apply(params, x, state)` where there
    are running statistics: then `state` holds them as they were given, else it is None.

    >>> import jax.numpy as jnp
    >>> Network(lambda params, x: x @ params["w"], {"w": jnp.ones((3, 2))})
    Network(6 parameters)
    """

    apply: Apply
    params: PyTree
    state: PyTree | None = None

    def __repr__(self) -> str:
        running = "" if self.state is None else f", {num_parameters(self.state)} in the state"
        return f"Network({num_parameters(self.params):,} parameters{running})"


@runtime_checkable
class HasApply(Protocol):
    """A network's function with something around it: a `Network` or a `Problem`."""

    @property
    def apply(self) -> Apply: ...


NetworkLike: TypeAlias = Apply | HasApply


def apply_of(network: NetworkLike) -> Apply:
    """The function `apply(params, x)` or `apply(params, x, state)` of what was given."""
    name = type(network).__name__
    if any(kind.__module__.startswith("flax.") for kind in inspect.getmro(type(network))):
        raise ValueError(
            f"{name} is a Flax module; turn it into a function with networks.from_linen or "
            "networks.from_nnx first"
        )
    if isinstance(network, HasApply):
        return network.apply
    if callable(network):
        return network
    raise ValueError(f"a {name} is not a network; give apply(params, x), a Network or a Problem")


def forward(apply: Apply, params: PyTree, x: Any, state: PyTree | None) -> jax.Array:
    """The network's outputs, with running statistics where there are any."""
    return apply(params, x) if state is None else apply(params, x, state)
