"""`onebasin barrier`: the loss along a path between two posterior files."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from onebasin.choices import ObjectiveName, SplitName
from onebasin.cli import shared
from onebasin.cli.opening import Opened, open_posteriors

if TYPE_CHECKING:
    from onebasin.evaluation import Profile
    from onebasin.posterior import Posterior


@dataclass(frozen=True)
class Barrier(shared.SeededOptions, shared.NetworkOptions, shared.FigureOption):
    """Measure the barrier: how far the loss rises along a path between two posteriors.

    With --align, the path is measured both before and after alignment. The figure shows loss and
    accuracy along the path.

    Example: onebasin barrier q0.safetensors q1.safetensors --data mnist --align w2 --figure b.pdf
    """

    q0: Annotated[Path, tyro.conf.Positional]
    """Posterior file at t = 0."""
    q1: Annotated[Path, tyro.conf.Positional]
    """Posterior file at t = 1."""
    data: str | None = None
    """Data set or data file on which the loss is measured; by default that of the fit."""
    split: tuple[SplitName, ...] = ("test",)
    """Measure on the training data, the test data, or both."""
    limit: int | None = None
    """Use only the first LIMIT examples of each split."""
    align: ObjectiveName | None = None
    """Also align q1 to q0 by this objective (those on data use 1,000 training examples)."""
    path: Literal["geodesic", "norm-keeping", "mixture"] = "geodesic"
    """The Wasserstein geodesic, the one on which units before a normalisation keep the norm of
    their mean (reported beside the first), or the mixture of both posteriors."""
    repair: bool = False
    """Also restore the mean and std of each hidden unit along the path; both are reported."""
    repair_examples: int = 1000
    """Number of training examples for these means and stds."""
    points: int = 25
    """Number of points on the path, including both ends."""
    num_samples: int = 128
    """Number of weight draws at each point."""
    refine: int = 0
    """Rounds of extra points around the maximum."""
    data_shards: int = 1
    """Devices over which the examples are spread."""


COMMAND = Barrier
TRIED = 8  # training examples on which it is tried which units are scale-free


def run(config: Barrier) -> None:
    """Profile the path on each split, before and after alignment; draw and report."""
    import jax

    from onebasin.processes import check_shards

    shared.check_figure(config.figure)
    if config.repair and config.path == "mixture":
        raise ValueError("only a geodesic is repaired; drop --repair or take --path geodesic")
    if config.repair_examples < 2:
        raise ValueError(f"--repair-examples is {config.repair_examples}; give at least two")
    if not config.split:
        raise ValueError("name at least one split, test or train")
    check_shards(config.data_shards, len(jax.local_devices()))
    opened = open_posteriors(config, config.q0, config.q1)
    data = opened.data
    ends = {"as fitted": opened.posteriors[1]}
    report, lines = None, []
    if config.align is not None:
        moved, report = opened.align_second(config.align, config.seed)
        ends[f"aligned ({config.align})"] = moved
        lines.append(
            f"aligned by {config.align}: {report['distance_before']:.6g} → "
            f"{report['distance_after']:.6g}, {report['transpositions']} transpositions"
        )
    found = _profiles(config, opened, ends)
    named = {f"{split}, {name}": profile for (split, name), profile in found.items()}
    lines += [f"{name}: {profile}" for name, profile in named.items()]
    result = {
        "q0": str(config.q0),
        "q1": str(config.q1),
        "data": data.name,
        "alignment": report,
        "figure": None if config.figure is None else str(config.figure),
        "results": [
            {"split": split, "ends": name, **p.summary()} for (split, name), p in found.items()
        ],
    }
    shared.print_result(result, "\n".join(lines), as_json=config.json)
    from onebasin.figures.evaluation import profile_figure

    shared.write_figure(config.figure, lambda: profile_figure(named))


def _profiles(
    config: Barrier, opened: Opened, ends: "dict[str, Posterior]"
) -> "dict[tuple[str, str], Profile]":
    """A profile for each split and each form of the second posterior."""
    import jax

    from onebasin.evaluation import profile
    from onebasin.paths import geodesic, keep_norms, mixture_path, repair

    q0, network, data = opened.posteriors[0], opened.problem, opened.data
    found = {}
    for name, q1 in ends.items():
        path = mixture_path(q0, q1)
        if config.path != "mixture":
            path = geodesic(q0, q1)
            if config.path == "norm-keeping":
                path = keep_norms(path, network, data.train.x[:TRIED])
            if config.repair:
                path = repair(path, network, data.train.x[: config.repair_examples])
        for split in config.split:
            found[split, name] = profile(
                path,
                network,
                shared.first_examples(data, split, config.limit),
                key=jax.random.key(config.seed),
                points=config.points,
                num_samples=config.num_samples,
                refine=config.refine,
                data_shards=config.data_shards,
            )
    return found
