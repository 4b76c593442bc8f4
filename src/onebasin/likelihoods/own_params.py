"""Parameters that belong to the likelihood and are inferred with those of the network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np

from onebasin.trees import PyTree


@runtime_checkable
class HasOwnParams(Protocol):
    """A likelihood with parameters of its own, which join the outputs of the network."""

    own_names: ClassVar[tuple[str, ...]]
    """The names of its leaves among the params."""
    prior_variance: float
    """The variance of their Gaussian prior."""

    def own_params(self, y: np.ndarray) -> dict[str, jax.Array]:
        """Their values at the start of a fit to the targets y."""
        ...

    def join(self, outputs: jax.Array, own: Mapping[str, jax.Array]) -> jax.Array:
        """The outputs of the network, joined by what its own parameters say."""
        ...


@dataclass(frozen=True)
class WithOwnParams:
    """A network's function whose params hold those of the likelihood as well."""

    function: Callable[..., jax.Array]  # not `apply`: this is a function, and holds none to take
    likelihood: HasOwnParams

    def __call__(self, params: PyTree, *inputs: Any) -> jax.Array:
        own = {name: params[name] for name in self.likelihood.own_names}
        return self.likelihood.join(self.function(self.network_params(params), *inputs), own)

    def network_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The params of the network alone."""
        return {name: v for name, v in params.items() if name not in self.likelihood.own_names}


@dataclass(frozen=True)
class InitWithOwnParams:
    """A network's init that adds the parameters of the likelihood."""

    init: Callable[[jax.Array], PyTree]
    likelihood: HasOwnParams
    y: np.ndarray

    def __call__(self, key: jax.Array) -> dict[str, Any]:
        params = self.init(key)
        if not isinstance(params, Mapping) or set(params) & set(self.likelihood.own_names):
            names = ", ".join(self.likelihood.own_names)
            raise ValueError(
                f"the likelihood adds the leaf '{names}' to params; let init return a dictionary "
                "without it"
            )
        return {**params, **self.likelihood.own_params(self.y)}
