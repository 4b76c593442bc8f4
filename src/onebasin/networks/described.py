"""The network that a posterior file describes, ready to be called and traced."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from onebasin.likelihoods import HasOwnParams, Likelihood, WithOwnParams
from onebasin.networks.checks import check_counts
from onebasin.networks.config import OWN, from_config, get_input_shape, to_config
from onebasin.networks.network import Apply
from onebasin.networks.own import Place
from onebasin.networks.running import RunningStatistics
from onebasin.trees import PyTree, first_difference, shapes_by_path

ADVICE = "give network='./file.py:function' or network='package.module:function'"


class ChangedSourceWarning(UserWarning):
    """The source file of a network is not the one with which a posterior was fitted."""


@dataclass(frozen=True)
class DescribedNetwork:
    """A network and the shape of one input: all that calling, fitting and tracing it needs.

    >>> from onebasin.networks import MLP
    >>> network = DescribedNetwork.of_module(MLP(widths=(4,)), (6,))
    >>> network.shapes["Dense_0"]["kernel"].shape
    (6, 4)
    """

    apply: Apply
    init: Callable[[jax.Array], PyTree]
    input_shape: tuple[int, ...]
    config: dict[str, Any]
    state: PyTree | None = None
    """Running statistics, if the network has any."""
    running: RunningStatistics | None = None
    fixed: bool = False
    """Whether `init` gives the same params for every key."""
    alone: "DescribedNetwork | None" = None
    """The network without the parameters of a likelihood, if it was joined by one."""

    @classmethod
    def of_module(cls, module: nn.Module, input_shape: tuple[int, ...]) -> "DescribedNetwork":
        """A built-in network."""
        check_counts(type(module).__name__, "input_shape", input_shape)
        x = np.zeros((2, *input_shape), np.float32)

        def apply(params: PyTree, x: Any) -> jax.Array:
            return cast(jax.Array, module.apply({"params": params}, x))

        def init(key: jax.Array) -> PyTree:
            return in_precision(module.init(key, x)["params"])

        return cls(apply, init, tuple(input_shape), to_config(module, input_shape))

    @classmethod
    def own(cls, name: str, input_shape: tuple[int, ...]) -> "DescribedNetwork":
        """A network of one's own, by the place of the function that makes it."""
        config = to_config(name, input_shape)
        made = Place.of(name).make(tuple(input_shape))
        found = made.network

        def init(key: jax.Array) -> PyTree:
            return in_precision(made.init(key))

        running = (found.state, found.running)
        return cls(found.apply, init, tuple(input_shape), config, *running, made.fixed)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | None,
        source: object,
        params_shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        name: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        likelihood: Likelihood | None = None,
    ) -> "DescribedNetwork":
        """The network of a config; `source` is the file that errors name.

        If the shapes of the params are given, they must be the network's: others are refused
        before anything of its size is made. `name` is the place of one's own network, used instead
        of what the config says; `input_shape` that of one example, where the config has none. A
        `likelihood` with parameters of its own adds them to those of the network.
        """
        if config is None and name is None:
            raise ValueError(f"{source} does not name its network; {ADVICE}")
        shape = get_input_shape(config or {}) or input_shape
        if shape is None:
            raise ValueError(
                f"{source} does not give the input shape of its network; give input_shape=, or "
                "save it with network=to_config(network, input_shape)"
            )
        recorded = config if config is not None and config.get("kind") == OWN else None
        if name is None and recorded is None:
            network = cls.of_module(from_config(cast(Mapping[str, Any], config)), shape)
        else:
            place = name or _place_in(recorded, source)
            _warn_if_changed(recorded, place, source)  # before anything of it runs
            network = cls.own(place, shape)
        if isinstance(likelihood, HasOwnParams) and params_shapes is not None:
            network = network.joined_by(likelihood, params_shapes)
        expected = shapes_by_path(network.shapes)
        difference = first_difference(
            expected, expected if params_shapes is None else params_shapes
        )
        if difference:
            which = "that it names" if name is None else name
            raise ValueError(
                f"{source} is not of the network {which}: {difference}; save it again with the "
                "config of its network, or name another one"
            )
        return network

    def joined_by(
        self, likelihood: HasOwnParams, shapes: Mapping[str, tuple[int, ...]]
    ) -> "DescribedNetwork":
        """The network whose params hold those of the likelihood as well, of the shapes given."""
        names = [name for name in likelihood.own_names if name in shapes]

        def init(key: jax.Array) -> PyTree:
            return {**self.init(key), **{name: jnp.zeros(shapes[name]) for name in names}}

        apply = WithOwnParams(self.apply, likelihood)
        return replace(self, apply=apply, init=init, alone=self)

    @property
    def x(self) -> np.ndarray:
        """Two inputs, all zeros."""
        return np.zeros((2, *self.input_shape), np.float32)

    @property
    def shapes(self) -> PyTree:
        """Shapes and dtypes of the params."""
        return jax.eval_shape(self.init, jax.random.key(0))


def in_precision(params: PyTree) -> PyTree:
    """Params in double precision where that is asked for: most modules make single ones."""
    wide = jnp.result_type(float) == jnp.float64
    return jax.tree.map(lambda leaf: leaf.astype(float), params) if wide else params


def _place_in(config: Mapping[str, Any] | None, source: object) -> str:
    place = (config or {}).get("source")
    if not isinstance(place, str):
        raise ValueError(f"{source} does not say where its network is; {ADVICE}")
    return place


def _warn_if_changed(recorded: Mapping[str, Any] | None, place: str, source: object) -> None:
    """Say that the code is not what it was; the shapes of the params are checked in any case."""
    if recorded is not None and recorded.get("digest") != Place.of(place).digest():
        warnings.warn(
            f"{Place.of(place).source()} is not the source with which {source} was fitted; its "
            "network may be another",
            ChangedSourceWarning,
            stacklevel=4,
        )
