"""`onebasin landscape`: the log posterior on a plane through posterior files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from onebasin.choices import ObjectiveName, SplitName
from onebasin.cli import shared
from onebasin.cli.opening import open_posteriors


@dataclass(frozen=True)
class LandscapeOptions(shared.SeededOptions, shared.NetworkOptions, shared.FigureOption):
    """Evaluate the log posterior and the loss on a plane in parameter space.

    With two files the plane contains q0, q1 and q1 aligned to q0; with one file it is spanned by
    two random directions.

    Example: onebasin landscape q0.safetensors q1.safetensors --data mnist --figure plane.pdf
    """

    q0: Annotated[Path, tyro.conf.Positional]
    """Posterior file at the origin."""
    q1: Annotated[Path | None, tyro.conf.Positional] = None
    """Second posterior file; without it, random directions are used."""
    data: str | None = None
    """Data set or data file on which the loss is measured; by default that of the fit."""
    split: SplitName = "train"
    """Training or test data."""
    limit: int | None = 2000
    """Use only the first LIMIT examples; the log likelihood is scaled to the training set."""
    align: ObjectiveName = "w2"
    """Objective that aligns q1 to q0 (those on data use 1,000 training examples)."""
    draw: int | None = None
    """Use this draw of files of samples instead of their mean."""
    prior_variance: float | None = None
    """Variance of the prior; by default the one recorded in the file, if any."""
    filter_normalised: bool = True
    """Scale random directions to the norm of each filter."""
    points: int = 25
    """Number of points along each side of the grid."""
    value: Literal["log_posterior", "nll", "accuracy", "rmse"] | None = None
    """What the figure shows; by default the log posterior if the prior is known."""


COMMAND = LandscapeOptions


def run(config: LandscapeOptions) -> None:
    """Choose the plane, evaluate the grid, draw and report."""
    shared.check_figure(config.figure)
    files = [config.q0] if config.q1 is None else [config.q0, config.q1]
    opened = open_posteriors(config, *files)
    data = opened.data
    split = shared.first_examples(data, config.split, config.limit)
    import jax

    from onebasin.evaluation import landscape, plane_through, random_plane
    from onebasin.evaluation.expectations import score_name
    from onebasin.inference.recorded_prior import recorded_prior

    prior, scale = recorded_prior(opened.headers[0], config.prior_variance)
    if config.value == "log_posterior" and prior is None:
        raise ValueError(f"{config.q0} does not record its prior; give --prior-variance")
    measured = score_name(opened.problem.log_likelihood)
    if config.value in ("accuracy", "rmse") and config.value != measured:
        raise ValueError(
            f"--value {config.value} is not measured of {data.name}; it has {measured}"
        )
    if config.q1 is None:
        plane = random_plane(
            opened.posteriors[0],
            key=jax.random.key(config.seed),
            filter_normalised=config.filter_normalised,
            draw=config.draw,
        )
    else:
        moved, _ = opened.align_second(config.align, config.seed)
        plane = plane_through([*opened.posteriors, moved], draw=config.draw)
    found = landscape(
        plane,
        opened.problem,
        split,
        points=config.points,
        log_prior=prior,
        likelihood_scale=scale,
        num_train=len(data.train),
    )
    text = (
        f"{config.points} × {config.points} points on {found.num_examples} examples: loss "
        f"{found.nll.min():.4f} to {found.nll.max():.4f} nats per example"
    )
    shared.print_result(found.summary(), text, as_json=config.json)
    from onebasin.figures.evaluation import landscape_figure

    shared.write_figure(config.figure, lambda: landscape_figure(found, config.value))
