"""`onebasin diagnose`: whether chains agree on the weights after alignment."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro

from onebasin.cli import shared
from onebasin.cli.opening import open_posteriors


@dataclass(frozen=True)
class Diagnose(
    shared.EvaluationOptions,
    shared.SeededOptions,
    shared.NetworkOptions,
    shared.FigureOption,
    shared.OverwriteOption,
):
    """Compute R-hat, ESS and modes of a file of chains, before and after alignment.

    With --data, barriers between draws are measured too. The figure shows R-hat, projections of
    the draws, and posterior standard deviations.

    Example: onebasin diagnose hmc.safetensors --data mnist --limit 1000 --figure diagnosis.png
    """

    chains: Annotated[Path, tyro.conf.Positional]
    """File of draws from at least two chains."""
    per: Literal["draw", "chain"] = "draw"
    """Permute each draw separately, or each chain as a whole."""
    limit: int | None = field(default=1000, kw_only=True)
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
    shared.check_figure(config.figure)
    for path in (config.out, config.export_arviz):
        shared.check_new(path, overwrite=config.overwrite)
        shared.check_folder(path)
    if config.export_arviz is not None and find_spec("arviz") is None:
        raise ImportError("--export-arviz needs ArviZ; install it with pip install onebasin[arviz]")
    with shared.writing(*(path for path in (config.out, config.export_arviz) if path is not None)):
        _diagnose(config)


def _diagnose(config: Diagnose) -> None:
    opened = open_posteriors(config, config.chains)
    split = opened.examples(config)
    import jax

    from onebasin.diagnosis import align_draws, diagnose, to_arviz
    from onebasin.posterior import Samples

    (samples,), (header,) = opened.posteriors, opened.headers
    if not isinstance(samples, Samples):
        raise ValueError(f"{config.chains} holds a {header.kind}; diagnose takes draws of chains")
    symmetry = opened.symmetry
    found = diagnose(
        samples,
        symmetry=symmetry,
        key=jax.random.key(config.seed),
        align=lambda draws: align_draws(draws, symmetry=symmetry, per=config.per),
        network=None if split is None else opened.problem,
        data=split,
        weights=config.weights,
        pairs=config.pairs,
    )
    result = {"file": str(config.chains), "per": config.per, **found.summary()}
    shared.print_result(result, str(found), as_json=config.json)
    if config.out is not None:
        record = {"objective": "l2", "per": config.per, "file": str(config.chains)}
        shared.write_posterior(
            config.out, found.aligned, header, overwrite=config.overwrite, alignment=record
        )
    if config.export_arviz is not None:
        to_arviz(found.aligned).to_netcdf(str(config.export_arviz))
    from onebasin.figures.diagnosis import diagnosis_figure

    shared.write_figure(config.figure, lambda: diagnosis_figure(found))
