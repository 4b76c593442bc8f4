"""A network as a function of params and inputs.

Functions that need a network take this function, a `Network`, or a `Problem`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np
from jax.typing import ArrayLike

from onebasin.likelihoods import LearnedNoise
from onebasin.networks.running import RunningStatistics
from onebasin.trees import PyTree, check_same_shapes, num_parameters, shapes_by_path

Apply: TypeAlias = Callable[..., jax.Array]
"""`apply(params, x)`, or `apply(params, x, state)` where there are running statistics."""


@runtime_checkable
class Distribution(Protocol):
    """What a network needs of a posterior over its params."""

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree: ...
    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None: ...
    def moments(self) -> tuple[PyTree, PyTree]: ...


@dataclass(frozen=True)
class Network:
    """A function and its parameters.

    Args:
      apply: `apply(params, x)` gives the outputs for a batch `x`; with running statistics it is
        `apply(params, x, state)`.
      params: a pytree of arrays.
      state: the running statistics, if any.
      restore: `restore(params, state)` gives the module that the network was adapted from, with
        these params; the adapters set it.
      fill: `fill(module, restored)` writes what `restore` gave into a module that holds its own
        weights; set by `networks.from_torch`.
      running: how the running statistics are updated and measured; the adapters set it.
      example: inputs with which to trace it; set by `networks.from_torch`.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> ob.Network(lambda params, x: x @ params["w"], {"w": jnp.ones((3, 2))})
    Network(6 parameters)
    """

    apply: Apply
    params: PyTree
    state: PyTree | None = None
    restore: Callable[[PyTree, PyTree | None], Any] | None = field(default=None, repr=False)
    fill: Callable[[Any, Any], Any] | None = field(default=None, repr=False)
    running: RunningStatistics | None = field(default=None, repr=False)
    example: Any | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        running = (
            "" if self.state is None else f", {num_parameters(self.state):,} running statistics"
        )
        return f"Network({num_parameters(self.params):,} parameters{running})"

    def with_params(self, params: PyTree, state: PyTree | None = None) -> Any:
        """Your own module with these params: what the adapter was given, filled anew.

        Args:
          params: a tree like `params`, such as an aligned draw. The noise that a likelihood has
            added to it (`log_noise`) is left out.
          state: running statistics; by default those of this network.

        Returns:
          Linen variables, an NNX model, an Equinox module (with running statistics the pair of
          module and state), a PyTorch state_dict, or for a network made by hand the params
          themselves.

        >>> import equinox as eqx, jax, onebasin as ob
        >>> linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        >>> network = ob.networks.from_equinox(linear)
        >>> doubled = network.with_params(jax.tree.map(lambda leaf: 2 * leaf, network.params))
        >>> type(doubled).__name__, bool((doubled.weight == 2 * linear.weight).all())
        ('Linear', True)
        """
        if isinstance(params, Mapping) and isinstance(self.params, Mapping):
            added = set(LearnedNoise.own_names) - set(self.params)
            params = {name: value for name, value in params.items() if name not in added}
        check_same_shapes(self.params, params, "the params tree given")
        state = self.state if state is None else state
        if self.state is not None:
            check_same_shapes(self.state, state, "the state given")
        return params if self.restore is None else self.restore(params, state)

    def sample(self, posterior: Distribution, *, key: jax.Array) -> Any:
        """One draw of a posterior as your own module.

        >>> import equinox as eqx, jax, onebasin as ob
        >>> network = ob.networks.from_equinox(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
        >>> std = jax.tree.map(lambda leaf: 0.1 + 0 * leaf, network.params)
        >>> q = ob.MeanField(network.params, std)
        >>> network.sample(q, key=jax.random.key(1)).weight.shape
        (2, 3)
        """
        return self.with_params(posterior.sample(key=key), posterior.states(key=key))

    def mean(self, posterior: Distribution) -> Any:
        """The mean of a posterior as your own module; the running statistics are averaged too.

        >>> import equinox as eqx, jax, onebasin as ob
        >>> network = ob.networks.from_equinox(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
        >>> draws = jax.tree.map(lambda leaf: leaf[None], network.params)
        >>> bool((network.mean(ob.Samples(draws)).weight == network.params["weight"]).all())
        True
        """
        state = getattr(posterior, "state", None)
        if state is not None and shapes_by_path(state) != shapes_by_path(self.state):
            state = jax.tree.map(lambda leaf: np.mean(leaf, axis=0), state)  # one for every draw
        return self.with_params(posterior.moments()[0], state)

    def load_into(
        self, module: Any, weights: PyTree | Distribution, state: PyTree | None = None
    ) -> Any:
        """Fill a PyTorch module, in place, and return it.

        Args:
          module: a `torch.nn.Module` of the architecture that was converted. It keeps its own data
            types and devices.
          weights: params like this network's, or a posterior, of which the mean is taken.
          state: running statistics to go with params; by default those of this network.

        >>> import onebasin as ob, torch                                 # doctest: +SKIP
        >>> linear, other = torch.nn.Linear(3, 2).eval(), torch.nn.Linear(3, 2)  # doctest: +SKIP
        >>> network = ob.networks.from_torch(linear, torch.ones(2, 3))   # doctest: +SKIP
        >>> other = network.load_into(other, network.params)             # doctest: +SKIP
        >>> bool((other.weight == linear.weight).all())                  # doctest: +SKIP
        True
        """
        if self.fill is None:
            raise ValueError(
                "load_into is for networks made by networks.from_torch; with_params gives a module "
                "of your own library with new params"
            )
        if isinstance(weights, Distribution):
            return self.fill(module, self.mean(weights))
        return self.fill(module, self.with_params(weights, state))


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
