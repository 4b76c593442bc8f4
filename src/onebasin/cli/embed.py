"""`onebasin embed`: a posterior as one of a wider network of the same structure."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from onebasin.cli import shared
from onebasin.cli.opening import open_posteriors


@dataclass(frozen=True)
class Embed(shared.OverwriteOption, shared.JsonOption):
    """Write a posterior as one of a wider network, with zeros for the further units.

    It is the same function, which is checked; units that are normalised together cannot be added.
    Align the result to a posterior of the wide network, and measure the path through that network.

    Example: onebasin embed narrow.safetensors --into wide.safetensors --out embedded.safetensors
    """

    posterior: Annotated[Path, tyro.conf.Positional]
    """Posterior file that names its network."""
    into: Path
    """Posterior file of the wider network."""
    out: Path
    """File to write."""


COMMAND = Embed


@dataclass(frozen=True)
class OfFile(shared.NetworkOptions, shared.DataOptions):
    """How a posterior file is opened here."""


def run(config: Embed) -> None:
    shared.check_new(config.out, overwrite=config.overwrite)
    shared.check_folder(config.out)
    with shared.writing(config.out):
        _embed(config)


def _embed(config: Embed) -> None:
    narrow, wide = (open_posteriors(OfFile(), path) for path in (config.posterior, config.into))
    mine, theirs = narrow.network, wide.network
    from onebasin.posterior import save
    from onebasin.symmetry.embedding import embed
    from onebasin.trees import num_parameters

    if mine.input_shape != theirs.input_shape:
        raise ValueError(
            f"{config.posterior} takes inputs of shape {mine.input_shape} and {config.into} of "
            f"{theirs.input_shape}; give two posteriors of networks on the same data"
        )
    (posterior,) = narrow.posteriors
    found = embed(posterior, mine, into=theirs, like=theirs.shapes, x=mine.x)
    record = {"from": str(config.posterior), "into": str(config.into)}
    provenance = {**narrow.header.provenance, "embedded": record}
    save(config.out, found, network=wide.header.network, overwrite=config.overwrite, **provenance)
    sizes = [num_parameters(q.like) for q in (posterior, found)]
    report = {**record, "out": str(config.out), "parameters": sizes}
    text = f"{config.posterior} → {config.out}  {sizes[0]:,} parameters inside {sizes[1]:,}"
    shared.print_result(report, text, as_json=config.json)
