"""`onebasin symmetry`: the permutation symmetries of a built-in network or of a saved posterior."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import tyro

from onebasin.choices import NetworkName


@dataclass(frozen=True)
class SymmetryOptions:
    """Show the groups of hidden units that may be permuted, found by tracing the network.

    Example: onebasin symmetry resnet20 --width 16

    Example: onebasin symmetry q0.safetensors
    """

    network: tyro.conf.Positional[str]
    """mlp, lenet, resnet20, or a posterior file that names its network."""
    width: int | None = None
    """Base width of a built-in network."""
    depth: int = 3
    """Hidden layers of the mlp."""
    input_shape: tuple[int, ...] = (28, 28, 1)
    """Shape of one input; for resnet20 usually 32 32 3."""
    json: bool = False
    """Print the groups as JSON."""


COMMAND = SymmetryOptions


def run(config: SymmetryOptions) -> None:
    network, input_shape = _network(config)
    symmetry = network_symmetry(network, input_shape)
    if not config.json:
        sys.stdout.write(f"{symmetry}\n")
        return
    groups = [
        {"name": group.name, "size": group.size, "places": [str(place) for place in group.places]}
        for group in symmetry.groups
    ]
    sys.stdout.write(json.dumps({"groups": groups, "unused": list(symmetry.unused)}) + "\n")


def network_symmetry(network: Any, input_shape: tuple[int, ...]) -> Any:
    """The symmetry of one of our Flax networks for inputs of a shape."""
    import jax
    import numpy as np

    from onebasin.symmetry import find_symmetry

    x = np.zeros((2, *input_shape), np.float32)
    shapes = jax.eval_shape(network.init, jax.random.key(0), x)["params"]
    return find_symmetry(lambda p, x: network.apply({"params": p}, x), shapes, x)


def file_network(path: Path) -> tuple[Any, tuple[int, ...]]:
    """The network that a posterior file names, and the shape of its inputs."""
    from onebasin.networks import from_config, get_input_shape
    from onebasin.posterior import read_header

    header = read_header(path)
    if header.network is None:
        raise ValueError(
            f"{path} does not name its network; use find_symmetry on your own network in Python"
        )
    input_shape = get_input_shape(header.network)
    if input_shape is None:
        raise ValueError(
            f"{path} does not say the shape of its network's inputs; save it with "
            "network=to_config(network, input_shape)"
        )
    return from_config(header.network), input_shape


def _network(config: SymmetryOptions) -> tuple[Any, tuple[int, ...]]:
    if config.network not in get_args(NetworkName):
        if not Path(config.network).exists():
            raise ValueError(
                f"'{config.network}' is neither a file nor one of {', '.join(get_args(NetworkName))}"
            )
        return file_network(Path(config.network))
    from onebasin.networks import network_named

    name = cast(NetworkName, config.network)
    return network_named(name, width=config.width, depth=config.depth), config.input_shape
