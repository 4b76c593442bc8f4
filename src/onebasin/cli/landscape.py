"""`onebasin landscape`: the log posterior on a plane through posterior files."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from onebasin.choices import DataName, ObjectiveName, SplitName
from onebasin.cli.shared import (
    align_second,
    open_data,
    open_posteriors,
    write_json,
)


@dataclass(frozen=True)
class LandscapeOptions:
    """Draw the log posterior and the loss on a plane in parameter space.

    With two files the plane goes through q0, q1 and q1 aligned to q0; with one it goes along
    two random directions.

    Example: onebasin landscape q0.safetensors q1.safetensors --data mnist --figure plane.pdf
    """

    q0: Annotated[Path, tyro.conf.Positional]
    """Posterior file at the origin."""
    q1: Annotated[Path | None, tyro.conf.Positional] = None
    """Second posterior file; none for random directions."""
    data: DataName = "digits"
    """Data set to measure on."""
    root: Path | None = None
    """Folder with the published files; by default that in ONEBASIN_DATA, then the cache."""
    split: SplitName = "train"
    """Which part of the data."""
    limit: int | None = 2000
    """Use only the first so many examples; the likelihood is scaled up to all of them."""
    align: ObjectiveName = "w2"
    """The objective that brings q1 to q0 (activations: on 1,000 training examples)."""
    draw: int | None = None
    """Take this draw of sample files instead of their mean."""
    prior_variance: float | None = None
    """Variance of the prior; by default what the file's fit says, if it does."""
    filter_normalised: bool = True
    """Random directions with the norm of each filter."""
    points: int = 25
    """Points along each side of the grid."""
    value: Literal["log_posterior", "nll", "accuracy"] | None = None
    """What the figure shows; the log posterior if a prior is known."""
    seed: int = 0
    """Of random directions and alignment."""
    figure: Path | None = None
    """Draw into this .pdf, .png or .svg."""
    json: bool = False
    """Print the grid as one JSON object on standard output."""


COMMAND = LandscapeOptions


def run(config: LandscapeOptions) -> None:
    """Lay the plane, evaluate the grid, draw and report."""
    from onebasin.figures.style import check_figure_path

    if config.figure is not None:
        check_figure_path(config.figure)
    files = [config.q0] if config.q1 is None else [config.q0, config.q1]
    opened = open_posteriors(files)
    data = open_data(config.data, config.root, opened.input_shape, str(config.q0))
    whole = getattr(data, config.split)
    import jax

    from onebasin.evaluation.landscapes import landscape, plane_through, random_plane

    if config.q1 is None:
        plane = random_plane(
            opened.posteriors[0],
            key=jax.random.key(config.seed),
            filter_normalised=config.filter_normalised,
            draw=config.draw,
        )
    else:
        moved, _ = align_second(opened, config.align, config.seed, data)
        plane = plane_through([*opened.posteriors, moved], draw=config.draw)
    prior, scale = _prior(opened.headers[0], config.prior_variance)
    if config.value == "log_posterior" and prior is None:
        raise ValueError(f"{config.q0} does not say its prior; give --prior-variance")
    found = landscape(
        plane,
        opened.apply,
        whole.first(config.limit),
        points=config.points,
        log_prior=prior,
        likelihood_scale=scale,
        num_train=len(data.train),
    )
    if config.figure is not None:
        from onebasin.figures.evaluation import landscape_figure
        from onebasin.figures.style import save_figure

        save_figure(landscape_figure(found, config.value), config.figure)
    if config.json:
        write_json(found.summary())
        return
    best = found.nll.min()
    sys.stdout.write(
        f"{config.points} × {config.points} points on {found.num_examples} examples: loss "
        f"{best:.4f} to {found.nll.max():.4f} nats per example\n"
    )


def _prior(header: Any, variance: float | None) -> tuple[Any, float]:
    """log N(θ; 0, v) and the weight of the likelihood, from a flag or from the fit's own record."""
    from onebasin.trees import leaves_by_path

    problem = (header.provenance.get("fit") or {}).get("problem") or {}
    recorded = problem.get("prior_variance")
    scale = problem.get("augmentation", 1.0) / problem.get("temperature", 1.0)
    if variance is None and not isinstance(recorded, Mapping):
        return None, scale
    if variance is not None and not variance > 0:
        raise ValueError(f"a variance is positive, got {variance}")

    def log_prior(params: Any) -> Any:
        import jax.numpy as jnp

        terms = []
        for name, leaf in leaves_by_path(params).items():
            v = variance if variance is not None else recorded[name]  # pyright: ignore
            terms.append(-0.5 * (jnp.sum(leaf**2) / v + leaf.size * jnp.log(2 * jnp.pi * v)))
        return sum(terms)

    return log_prior, scale
