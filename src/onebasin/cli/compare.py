"""`onebasin compare`: the predictives of two posterior files, against the labels and each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import ObjectiveName, SplitName
from onebasin.cli import shared
from onebasin.cli.opening import Opened, open_posteriors


@dataclass(frozen=True)
class Compare(shared.SeededOptions, shared.NetworkOptions, shared.FigureOption):
    """Compare two posteriors: their predictions, calibration and agreement, and their distance.

    Without a network only the distance is reported. The figure shows reliability diagrams.

    Example: onebasin compare hmc.safetensors vi.safetensors --data mnist --ood fashion-mnist
    """

    p: Annotated[Path, tyro.conf.Positional]
    """Reference posterior file."""
    q: Annotated[Path, tyro.conf.Positional]
    """Posterior file to compare with it."""
    data: str | None = None
    """Data set or data file to predict; by default that of the fit."""
    split: SplitName = "test"
    """Training or test data."""
    limit: int | None = None
    """Use only the first LIMIT examples."""
    ood: str | None = None
    """Out-of-distribution data: also report how well uncertainty detects them (AUROC)."""
    align: ObjectiveName | None = None
    """Also report the distance after aligning q to p by this objective (those on data use 1,000
    training examples)."""
    num_samples: int = 128
    """Number of weight draws."""


COMMAND = Compare
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)  # of the intervals in the figure


def run(config: Compare) -> None:
    """Predict with both posteriors, measure, report and draw."""
    shared.check_figure(config.figure)
    opened = open_posteriors(config, config.p, config.q)
    if not opened.knows_network and config.data is None:
        _compare_distances(config, opened)
        return
    data = opened.data
    split = shared.first_examples(data, config.split, config.limit)
    outside = None
    if config.ood is not None:
        outside = shared.first_examples(opened.other_data(config.ood), "test", config.limit)
    import jax

    from onebasin.evaluation import comparison, predictive

    both, key = list(opened.posteriors), jax.random.key(config.seed)
    names = [config.p.stem, config.q.stem]
    if names[0] == names[1]:
        names = [str(config.p), f"{config.q} (second)"]
    options: Any = {"key": key, "num_samples": config.num_samples}
    inside = predictive(both, opened.problem, split.x, **options)
    each = dict(zip(names, inside, strict=True))
    scores = {name: comparison.predictive_measures(one, split.y) for name, one in each.items()}
    if outside is not None:
        far = predictive(both, opened.problem, outside.x, **options)
        for name, one in zip(names, far, strict=True):
            scores[name] |= comparison.detection_measures(each[name], one)
    between = {
        **comparison.predictive_distances(*inside),
        **comparison.closed_form_distances(*both),
    }
    alignment = None
    if config.align is not None:
        _, alignment = opened.align_second(config.align, config.seed)
    result = {"data": data.name, "split": config.split, "examples": len(split.y), **between}
    result |= {"alignment": alignment, "posteriors": scores}
    shared.print_result(result, _table(scores, between, alignment), as_json=config.json)
    shared.write_figure(config.figure, lambda: _calibration_figure(each, split.y))


def _calibration_figure(each: dict[str, Any], y: Any) -> Any:
    """Reliability diagrams of classes; the coverage of intervals of numbers."""
    from onebasin.evaluation import coverage, measures
    from onebasin.evaluation.predicting import Predictive
    from onebasin.figures.evaluation import coverage_figure, reliability_figure

    if all(isinstance(p, Predictive) for p in each.values()):
        return reliability_figure({name: measures.reliability(p, y) for name, p in each.items()})
    shares = {name: {at: coverage(p, y, at) for at in LEVELS} for name, p in each.items()}
    return coverage_figure(shares)


def _compare_distances(config: Compare, opened: Opened) -> None:
    """What two posteriors tell without a network."""
    for flag, given in (("--figure", config.figure), ("--ood", config.ood)):
        if given is not None:
            raise ValueError(
                f"{flag} needs predictions, and {config.p} does not name its network; give "
                "--network"
            )
    if config.align is not None and config.symmetry is None:
        raise ValueError(
            f"{config.p} does not name its network; give --network, or its symmetry by --symmetry"
        )
    from onebasin.evaluation.comparison import closed_form_distances

    between: dict[str, float] = closed_form_distances(*opened.posteriors)
    alignment = None
    if config.align is not None:
        _, alignment = opened.align_second(config.align, config.seed)
    result = {**between, "alignment": alignment}
    shared.print_result(result, _table({}, between, alignment), as_json=config.json)


def _table(
    scores: dict[str, dict[str, float]], between: dict[str, float], alignment: dict[str, Any] | None
) -> str:
    measured = list(next(iter(scores.values()), {}))
    width = max(map(len, [*measured, *between]))
    rows = {"": [f"{name:>12}" for name in scores]} if scores else {}
    rows |= {m: [f"{one[m]:>12.5g}" for one in scores.values()] for m in measured}
    rows |= {name: [f"{value:>12.5g}"] for name, value in between.items()}
    lines = [f"{name:<{width}}  {'  '.join(cells)}" for name, cells in rows.items()]
    if alignment is not None:
        lines.append(
            f"aligned by {alignment['objective']}: squared distance of means "
            f"{alignment['squared_distance_of_means']:.6g}, "
            f"{alignment['transpositions']} transpositions"
        )
    return "\n".join(lines)
