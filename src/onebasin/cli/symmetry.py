"""`onebasin symmetry`: the permutation symmetries of a built-in network or of a saved posterior."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import tyro

from onebasin.choices import NetworkName
from onebasin.cli import shared

if TYPE_CHECKING:
    from onebasin.networks.described import DescribedNetwork


@dataclass(frozen=True)
class SymmetryOptions(shared.JsonOption):
    """Show the groups of hidden units that can be permuted, found by tracing the network.

    Example: onebasin symmetry resnet20 --width 16 --input-shape 32 32 3

    Example: onebasin symmetry q0.safetensors
    """

    network: tyro.conf.Positional[str]
    """mlp, lenet, resnet20, or a posterior file that names its network."""
    width: int | None = None
    """Base width of a built-in network."""
    depth: int = 3
    """Number of hidden layers of the MLP."""
    input_shape: tuple[int, ...] = (28, 28, 1)
    """Shape of one input."""


COMMAND = SymmetryOptions


def run(config: SymmetryOptions) -> None:
    network = _network(config)
    from onebasin.symmetry import find_symmetry

    symmetry = find_symmetry(network, network.shapes, network.x)
    groups = [
        {"name": group.name, "size": group.size, "places": [str(place) for place in group.places]}
        for group in symmetry.groups
    ]
    result = {"groups": groups, "unused": list(symmetry.unused)}
    shared.print_result(result, str(symmetry), as_json=config.json)


def _network(config: SymmetryOptions) -> "DescribedNetwork":
    shared.check_size(config.width, config.depth)
    known, path = get_args(NetworkName), Path(config.network)
    if config.network not in known and not path.exists():
        raise ValueError(f"'{path}' is neither a file nor one of {', '.join(known)}")
    from onebasin.networks import network_named
    from onebasin.networks.described import DescribedNetwork
    from onebasin.posterior import read_header

    if config.network not in known:
        header = read_header(path)
        return DescribedNetwork.from_config(header.network, path, header.params_shapes())
    name = cast(NetworkName, config.network)
    module = network_named(name, width=config.width, depth=config.depth)
    return DescribedNetwork(module, config.input_shape)
