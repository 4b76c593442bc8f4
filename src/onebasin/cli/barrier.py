"""`onebasin barrier`: the loss along a path between two posterior files."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from onebasin.choices import DataName, ObjectiveName, SplitName
from onebasin.cli.shared import (
    Opened,
    align_second,
    open_data,
    open_posteriors,
    write_json,
)


@dataclass(frozen=True)
class Barrier:
    """Measure the barrier between two posteriors: how far the loss rises on a path between them.

    With --align the path is measured as the files are and after alignment, side by side.

    Example: onebasin barrier q0.safetensors q1.safetensors --data mnist --align w2 --figure b.pdf
    """

    q0: Annotated[Path, tyro.conf.Positional]
    """Posterior file at t = 0."""
    q1: Annotated[Path, tyro.conf.Positional]
    """Posterior file at t = 1."""
    data: DataName = "digits"
    """Data set to measure on."""
    root: Path | None = None
    """Folder with the published files; by default that in ONEBASIN_DATA, then the cache."""
    split: tuple[SplitName, ...] = ("test",)
    """Measure on the training data, the test data, or both."""
    limit: int | None = None
    """Use only the first so many examples of each split."""
    align: ObjectiveName | None = None
    """Also bring q1 to q0 first, by this objective (activations: on 1,000 training examples)."""
    path: Literal["geodesic", "mixture"] = "geodesic"
    """The Wasserstein geodesic, or the mixture of both ends."""
    repair: bool = False
    """Also restore each hidden unit's mean and spread along the path (reported beside it)."""
    repair_examples: int = 1000
    """Training examples over which those are taken."""
    points: int = 25
    """Points on the path, both ends among them."""
    num_samples: int = 128
    """Draws of the weights at each point."""
    refine: int = 0
    """Rounds of extra points beside the top."""
    seed: int = 0
    """All randomness follows from it."""
    figure: Path | None = None
    """Draw loss and accuracy along the path into this .pdf, .png or .svg."""
    json: bool = False
    """Print everything as one JSON object on standard output."""


COMMAND = Barrier


def run(config: Barrier) -> None:
    """Profile the path (before and after alignment) on each split, draw and report."""
    from onebasin.figures.style import check_figure_path

    if config.figure is not None:
        check_figure_path(config.figure)
    if config.repair and config.path != "geodesic":
        raise ValueError("only a geodesic is repaired; drop --repair or take --path geodesic")
    if not config.split:
        raise ValueError("name at least one split, test or train")
    opened = open_posteriors([config.q0, config.q1])
    data = open_data(config.data, config.root, opened.input_shape, str(config.q0))
    ends = {"as fitted": opened.posteriors[1]}
    report = None
    if config.align is not None:
        moved, report = align_second(opened, config.align, config.seed, data)
        ends[f"aligned ({config.align})"] = moved
    found = _profiles(config, opened, data, ends)
    if config.figure is not None:
        from onebasin.figures.evaluation import profile_figure
        from onebasin.figures.style import save_figure

        drawn = {f"{split}, {name}": p for (split, name), p in found.items()}
        save_figure(profile_figure(drawn), config.figure)
    if config.json:
        results = [
            {"split": split, "ends": name, **p.summary()} for (split, name), p in found.items()
        ]
        write_json(
            {
                "q0": str(config.q0),
                "q1": str(config.q1),
                "data": config.data,
                "alignment": report,
                "figure": None if config.figure is None else str(config.figure),
                "results": results,
            }
        )
        return
    if report is not None:
        sys.stdout.write(
            f"aligned by {config.align}: {report['distance_before']:.6g} → "
            f"{report['distance_after']:.6g}, {report['transpositions']} transpositions\n"
        )
    for (split, name), p in found.items():
        sys.stdout.write(f"{split}, {name}: {p}\n")


def _profiles(
    config: Barrier, opened: Opened, data: Any, ends: dict[str, Any]
) -> dict[tuple[str, str], Any]:
    import jax

    from onebasin.evaluation.profiles import profile
    from onebasin.paths import geodesic, mixture_path, repair

    q0 = opened.posteriors[0]
    key = jax.random.key(config.seed)
    found = {}
    for name, q1 in ends.items():
        path: Any = geodesic(q0, q1) if config.path == "geodesic" else mixture_path(q0, q1)
        if config.repair:
            path = repair(path, opened.apply, data.train.x[: config.repair_examples])
        for split in config.split:
            found[split, name] = profile(
                path,
                opened.apply,
                getattr(data, split).first(config.limit),
                key=key,
                points=config.points,
                num_samples=config.num_samples,
                refine=config.refine,
            )
    return found
