"""`onebasin merge`: average checkpoints after moving them into one basin."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from onebasin.cli import shared


@dataclass(frozen=True)
class Merge(shared.JsonOption, shared.OverwriteOption):
    """Align plain state_dicts to one another and write their average, in the form of the first.

    Files are .safetensors or .pt, or folders in the form of Hugging Face. Their tensors are
    averaged one at a time.

    Example: onebasin merge a.safetensors b.safetensors --symmetry net.json --out merged.safetensors
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """State_dicts to merge; the first keeps its labelling of units."""
    symmetry: Path
    """File of their symmetry, written by Symmetry.save."""
    out: Path
    """File to write, or a folder if the first is one."""
    weights: tuple[float, ...] = ()
    """Share of each file; equal by default. Two shares 1 - t and t give the point at t."""
    max_sweeps: int = 100
    """Maximum number of sweeps over the groups."""


COMMAND = Merge


def run(config: Merge) -> None:
    if len(config.files) < 2:
        raise ValueError("name at least two files to merge")
    shared.check_new(config.out, overwrite=config.overwrite)
    from onebasin.merging import merge
    from onebasin.symmetry import Symmetry, transpositions

    symmetry = Symmetry.load(config.symmetry)
    with shared.writing(config.out):
        found = merge(
            config.files,
            symmetry=symmetry,
            weights=config.weights or None,
            max_sweeps=config.max_sweeps,
        )
        found.write(config.out, overwrite=config.overwrite)
    moved = [int(transpositions(p)) for p in found.permutations]
    members = [
        {"file": str(path), "weight": weight, "transpositions": swaps}
        for path, weight, swaps in zip(config.files, found.weights, moved, strict=True)
    ]
    lines = [
        f"{m['file']}  weight {m['weight']:.3g}  {m['transpositions']} transpositions"
        for m in members
    ]
    result = {"out": str(config.out), "members": members}
    text = "\n".join([*lines, f"→ {config.out}"])
    shared.print_result(result, text, as_json=config.json)
