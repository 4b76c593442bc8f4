"""`onebasin diagnose`: whether chains agree on the weights after alignment."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro

from onebasin.choices import DataName, SplitName
from onebasin.cli.shared import (
    FigureOption,
    JsonOption,
    OverwriteOption,
    RootOption,
    SeedOption,
    check_figure,
    check_folder,
    check_new,
    first_examples,
    open_data,
    open_posteriors,
    print_result,
    write_figure,
    write_posterior,
)


@dataclass(frozen=True)
class Diagnose(JsonOption, OverwriteOption, FigureOption, SeedOption, RootOption):
    """Compute R-hat, ESS, modes and barriers of a file of chains, before and after alignment.

    The figure shows R-hat, projections of the draws, and posterior standard deviations.

    Example: onebasin diagnose hmc.safetensors --data mnist --limit 1000 --figure diagnosis.png
    """

    chains: Annotated[Path, tyro.conf.Positional]
    """File of draws from at least two chains."""
    per: Literal["draw", "chain"] = "draw"
    """Permute each draw separately, or each chain as a whole."""
    data: DataName | None = None
    """Also measure barriers between draws on this data set."""
    split: SplitName = "test"
    """Training or test data."""
    limit: int | None = 1000
    """Use only the first LIMIT examples."""
    weights: int = 20_000
    """Number of weights to examine individually, chosen at random."""
    pairs: int = 16
    """Number of pairs of draws whose barrier is measured, across and within chains."""
    out: Path | None = None
    """Write the aligned draws to this file."""
    export_arviz: Path | None = None
    """Write the aligned draws to this NetCDF file for ArviZ (needs the `arviz` extra)."""


COMMAND = Diagnose


def run(config: Diagnose) -> None:
    """Check everything, align, measure, draw and report."""
    check_figure(config.figure)
    for path in (config.out, config.export_arviz):
        check_new(path, overwrite=config.overwrite)
        check_folder(path)
    if config.export_arviz is not None and find_spec("arviz") is None:
        raise ImportError("--export-arviz needs ArviZ; install it with pip install onebasin[arviz]")
    opened = open_posteriors(config.chains)
    split = None
    if config.data is not None:
        data = open_data(config.data, config.root, opened.network, config.chains)
        split = first_examples(data, config.split, config.limit)
    import jax

    from onebasin.diagnosis import align_draws, diagnose, to_arviz
    from onebasin.figures.diagnosis import diagnosis_figure
    from onebasin.posterior import Samples

    (samples,), (header,) = opened.posteriors, opened.headers
    if not isinstance(samples, Samples):
        raise ValueError(f"{config.chains} holds a {header.kind}; diagnose takes draws of chains")
    symmetry = opened.symmetry()
    found = diagnose(
        samples,
        symmetry=symmetry,
        key=jax.random.key(config.seed),
        align=lambda draws: align_draws(draws, symmetry=symmetry, per=config.per),
        network=None if split is None else opened.network,
        data=split,
        weights=config.weights,
        pairs=config.pairs,
    )
    if config.out is not None:
        record = {"objective": "l2", "per": config.per, "file": str(config.chains)}
        write_posterior(
            config.out, found.aligned, header, overwrite=config.overwrite, alignment=record
        )
    if config.export_arviz is not None:
        to_arviz(found.aligned).to_netcdf(str(config.export_arviz))
    write_figure(config.figure, lambda: diagnosis_figure(found))
    result = {"file": str(config.chains), "per": config.per, **found.summary()}
    print_result(result, str(found), as_json=config.json)
