"""`onebasin diagnose`: do chains agree on the weights, once they are in one basin?"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from onebasin.choices import DataName, SplitName
from onebasin.cli.shared import open_data, open_posteriors, write_json


@dataclass(frozen=True)
class Diagnose:
    """R-hat, ESS, modes and barriers of a file of chains, before and after alignment.

    Example: onebasin diagnose hmc.safetensors --data mnist --limit 1000 --figure diagnosis.png
    """

    chains: Annotated[Path, tyro.conf.Positional]
    """File of draws of at least two chains."""
    per: Literal["draw", "chain"] = "draw"
    """Move each draw by a permutation of its own, or each chain as a whole."""
    data: DataName | None = None
    """Also measure barriers between draws on these data."""
    root: Path | None = None
    """Folder with the published files; by default that in ONEBASIN_DATA, then the cache."""
    split: SplitName = "test"
    """Which part of the data."""
    limit: int | None = 1000
    """Use only the first so many examples."""
    weights: int = 20_000
    """Weights to look at one by one, chosen at random."""
    pairs: int = 16
    """Pairs of draws whose barrier is measured, across chains and within."""
    seed: int = 0
    """All randomness follows from it."""
    figure: Path | None = None
    """Draw R-hat, projections and σ into this .pdf, .png or .svg."""
    out: Path | None = None
    """Write the aligned draws to this file."""
    export_arviz: Path | None = None
    """Write the aligned draws as a NetCDF file for ArviZ (needs the extra `arviz`)."""
    overwrite: bool = False
    """Replace --out and --export-arviz if they exist."""
    json: bool = False
    """Print everything as one JSON object on standard output."""


COMMAND = Diagnose


def run(config: Diagnose) -> None:
    """Check everything, align, measure, draw and report."""
    from onebasin.figures.style import check_figure_path
    from onebasin.posterior import read_header

    if config.figure is not None:
        check_figure_path(config.figure)
    for path in (config.out, config.export_arviz):
        if path is not None and path.exists() and not config.overwrite:
            raise ValueError(f"{path} exists; give --overwrite to replace it, or another name")
        if path is not None and not path.parent.is_dir():
            raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    header = read_header(config.chains)
    if header.kind != "Samples":
        raise ValueError(f"{config.chains} holds a {header.kind}; diagnose takes draws of chains")
    if config.export_arviz is not None:
        _check_arviz()
    opened = open_posteriors([config.chains])
    split: Any = None
    if config.data is not None:
        data = open_data(config.data, config.root, opened.input_shape, str(config.chains))
        split = getattr(data, config.split).first(config.limit)
    import jax

    from onebasin.cli.symmetry import network_symmetry
    from onebasin.diagnosis import align_draws, diagnose, to_arviz

    symmetry = network_symmetry(opened.network, opened.input_shape)
    (samples,) = opened.posteriors
    found = diagnose(
        samples,
        symmetry=symmetry,
        key=jax.random.key(config.seed),
        align=lambda draws: align_draws(draws, symmetry=symmetry, per=config.per),
        network=None if split is None else opened.apply,
        data=split,
        weights=config.weights,
        pairs=config.pairs,
    )
    if config.out is not None:
        from onebasin.posterior import save

        notes = {"objective": "l2", "per": config.per, "file": str(config.chains)}
        provenance = {**header.provenance, "alignment": notes}
        save(
            config.out, found.aligned, network=header.network, overwrite=config.overwrite,
            **provenance,
        )  # fmt: skip
    if config.export_arviz is not None:
        to_arviz(found.aligned).to_netcdf(str(config.export_arviz))
    if config.figure is not None:
        from onebasin.figures.diagnosis import diagnosis_figure
        from onebasin.figures.style import save_figure

        save_figure(diagnosis_figure(found), config.figure)
    if config.json:
        write_json({"file": str(config.chains), "per": config.per, **found.summary()})
    else:
        sys.stdout.write(f"{found}\n")


def _check_arviz() -> None:
    from importlib.util import find_spec

    if find_spec("arviz") is None:
        raise ImportError("--export-arviz needs ArviZ; install it with pip install onebasin[arviz]")
