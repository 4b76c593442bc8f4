"""The network that a posterior file describes, ready to be called and traced."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from onebasin.networks.checks import check_counts
from onebasin.networks.config import from_config, get_input_shape
from onebasin.networks.lenet import LeNet
from onebasin.networks.mlp import MLP
from onebasin.networks.resnet import ResNet20
from onebasin.trees import PyTree, first_difference, shapes_by_path


@dataclass(frozen=True)
class DescribedNetwork:
    """A built-in network and the shape of one input: all that tracing it needs.

    >>> network = DescribedNetwork(MLP(widths=(4,)), (6,))
    >>> network.shapes["Dense_0"]["kernel"].shape
    (6, 4)
    """

    module: MLP | LeNet | ResNet20
    input_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        check_counts(type(self.module).__name__, "input_shape", self.input_shape)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | None,
        source: object,
        params_shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> "DescribedNetwork":
        """The network of a config; `source` is the file that errors name.

        If the shapes of the params are given, they must be the network's: others are refused
        before anything of its size is made.
        """
        if config is None:
            raise ValueError(
                f"{source} does not name its network; use find_symmetry on your own network in "
                "Python"
            )
        input_shape = get_input_shape(config)
        if input_shape is None:
            raise ValueError(
                f"{source} does not give the input shape of its network; save it with "
                "network=to_config(network, input_shape)"
            )
        network = cls(from_config(config), input_shape)
        expected = shapes_by_path(network.shapes)
        difference = first_difference(
            expected, expected if params_shapes is None else params_shapes
        )
        if difference:
            raise ValueError(
                f"{source} is not of the network that it names: {difference}; save it again with "
                "the config of its network"
            )
        return network

    def apply(self, params: PyTree, x: Any) -> jax.Array:
        outputs = self.module.apply({"params": params}, x)
        assert isinstance(outputs, jax.Array)  # no collection is mutable, so no tuple
        return outputs

    @property
    def x(self) -> np.ndarray:
        """Two inputs, all zeros."""
        return np.zeros((2, *self.input_shape), np.float32)

    @property
    def shapes(self) -> PyTree:
        """Shapes and dtypes of the params."""
        return jax.eval_shape(self.module.init, jax.random.key(0), self.x)["params"]
