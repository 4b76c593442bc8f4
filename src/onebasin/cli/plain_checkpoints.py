"""What commands on plain state_dicts share: the files, their symmetry and their network."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from onebasin.networks import Network
    from onebasin.symmetry import Symmetry

Format: TypeAlias = Literal["safetensors", "pt"]


def expanded(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The files; a folder that is no checkpoint itself stands for the checkpoints in it."""
    from onebasin.checkpoints import is_checkpoint

    found: list[Path] = []
    for path in paths:
        inside: list[Path] = []
        if path.is_dir() and not is_checkpoint(path):
            inside = [own for own in sorted(path.iterdir()) if is_checkpoint(own)]
            if not inside:
                raise ValueError(
                    f"the folder {path} holds no state_dict; name a file, or a folder of "
                    ".safetensors or .pt files"
                )
        found += inside or [path]
    return tuple(found)


def check_format(out: Path, form: Format | None) -> None:
    """Refuse a file whose name is of another format than the one asked for."""
    if form is not None and out.suffix != f".{form}":
        raise ValueError(f"--format {form} writes .{form} files, and --out is {out}; rename it")


def own_network(name: str, input_shape: Sequence[int]) -> "tuple[Network, Any]":
    """A network of one's own by its place, and inputs to trace it with."""
    import numpy as np

    from onebasin.networks.own import Place

    shape = tuple(input_shape) or None
    network = Place.of(name).make(shape).network
    if network.example is not None:
        return network, network.example
    if shape is None:
        raise ValueError(f"{name} needs the shape of one input; give --input-shape")
    return network, np.zeros((2, *shape), np.float32)


def symmetry_of(
    config: Any, first: Path, shape: Sequence[int] = ()
) -> "tuple[Symmetry, Network | None]":
    """The symmetry of a file or of the network that the options name, and this network.

    With both, the one in the file is checked on the network. `first` is the file that errors name,
    `shape` that of one input where the options do not tell it.
    """
    from onebasin.symmetry import Symmetry, find_symmetry

    if config.network is None:
        if config.symmetry is None:
            raise ValueError(
                f"{first} is a plain state_dict, which does not name its network; give --network, "
                "or --symmetry with a file that Symmetry.save has written"
            )
        return Symmetry.load(config.symmetry).permutations, None
    network, x = own_network(config.network, config.input_shape or shape)
    if config.symmetry is None:
        return find_symmetry(network, x=x), network
    import jax

    symmetry = Symmetry.load(config.symmetry).permutations
    symmetry.check_shapes(network.params)
    symmetry.check(network, network.params, x, state=network.state, key=jax.random.key(0))
    return symmetry, network
