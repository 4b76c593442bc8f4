"""`onebasin symmetry`: the permutation symmetries of a network, of a posterior, or in a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import tyro

from onebasin.choices import KindsName, NetworkName
from onebasin.cli import shared
from onebasin.cli.opening import open_posteriors
from onebasin.cli.plain_checkpoints import own_network

if TYPE_CHECKING:
    from onebasin.networks.described import DescribedNetwork
    from onebasin.symmetry import Symmetry

IMAGE = (28, 28, 1)


@dataclass(frozen=True)
class SymmetryOptions(shared.OverwriteOption, shared.JsonOption):
    """Show the groups of hidden units that can be permuted, found by tracing the network.

    With --kinds all also signs, scales, rotations and invertible maps, each confirmed on numbers.

    Example: onebasin symmetry resnet20 --width 16 --input-shape 32 32 3

    Example: onebasin symmetry ./net.py:make_network --input-shape 13 --out symmetry.json

    Example: onebasin symmetry q0.safetensors
    """

    network: tyro.conf.Positional[str]
    """mlp, lenet, resnet20, vit, gpt, your own (./file.py:function or package.module:function), a
    posterior file that names its network, or a symmetry in a .json file."""
    width: int | None = None
    """Base width of a built-in network."""
    depth: int | None = None
    """Number of hidden layers of the MLP, or of blocks of a transformer."""
    input_shape: tuple[int, ...] = ()
    """Shape of one input; by default 28 28 1 for a built-in network, and 64 for gpt."""
    kinds: KindsName = "permutation"
    """Look for permutations only, or for all: signs, scales, rotations and invertible maps too."""
    out: Path | None = None
    """Write the symmetry to this .json file, for --symmetry of other commands."""


COMMAND = SymmetryOptions


@dataclass(frozen=True)
class OfFile(shared.NetworkOptions, shared.DataOptions):
    """How a posterior file is opened here."""

    kinds: KindsName = "permutation"


def run(config: SymmetryOptions) -> None:
    shared.check_size(config.network, config.width, config.depth)
    shared.check_new(config.out, overwrite=config.overwrite)
    shared.check_folder(config.out)
    symmetry = _symmetry(config)
    groups = [
        {
            "name": group.name,
            "size": group.size,
            "kind": group.kind,
            "places": [str(place) for place in group.places],
        }
        for group in symmetry.groups
    ]
    result = {"groups": groups, "unused": list(symmetry.unused)}
    shared.print_result(result, str(symmetry), as_json=config.json)
    if config.out is not None:
        symmetry.save(config.out, overwrite=config.overwrite)


def _symmetry(config: SymmetryOptions) -> "Symmetry":
    from onebasin.symmetry import Symmetry, find_symmetry

    if config.network.endswith(".json"):
        return Symmetry.load(config.network)
    known, path = get_args(NetworkName), Path(config.network)
    is_own = ":" in config.network and not path.exists()
    if config.network not in known and not is_own and not path.exists():
        raise ValueError(
            f"'{path}' is neither a file nor one of {', '.join(known)}; name your own network as "
            "./file.py:function"
        )
    shape = tuple(config.input_shape)
    if config.network not in known and not is_own:
        opened = open_posteriors(OfFile(input_shape=shape, kinds=config.kinds), path)
        if not opened.knows_network:
            raise ValueError(
                f"{path} does not name its network; name the network in its place, as "
                "./file.py:function"
            )
        return opened.symmetry
    if is_own:
        own, x = own_network(config.network, shape)
        return find_symmetry(own, x=x, kinds=config.kinds)
    network = _built_in(config, shape)
    return find_symmetry(
        network, network.shapes, network.x, state=network.state, kinds=config.kinds
    )


def _built_in(config: SymmetryOptions, shape: tuple[int, ...]) -> "DescribedNetwork":
    from onebasin.networks import network_named
    from onebasin.networks.described import DescribedNetwork

    name = cast(NetworkName, config.network)
    shape = shape or ((64,) if name == "gpt" else IMAGE)
    module = network_named(name, width=config.width, depth=config.depth, input_shape=shape)
    return DescribedNetwork.of_module(module, shape)
