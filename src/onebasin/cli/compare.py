"""`onebasin compare`: the predictives of two posterior files, against the labels and each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import DataName, ObjectiveName, SplitName
from onebasin.cli import shared


@dataclass(frozen=True)
class Compare(shared.SeededOptions, shared.FigureOption):
    """Compare the predictions of two posteriors: accuracy, calibration and agreement.

    The figure shows reliability diagrams.

    Example: onebasin compare hmc.safetensors vi.safetensors --data mnist --ood fashion-mnist
    """

    p: Annotated[Path, tyro.conf.Positional]
    """Reference posterior file."""
    q: Annotated[Path, tyro.conf.Positional]
    """Posterior file to compare with it."""
    data: DataName = "digits"
    """Data set to predict."""
    split: SplitName = "test"
    """Training or test data."""
    limit: int | None = None
    """Use only the first LIMIT examples."""
    ood: DataName | None = None
    """Out-of-distribution data: also report how well uncertainty detects them (AUROC)."""
    align: ObjectiveName | None = None
    """Also report the distance after aligning q to p by this objective (those on data use 1,000
    training examples)."""
    num_samples: int = 128
    """Number of weight draws."""


COMMAND = Compare


def run(config: Compare) -> None:
    """Predict with both posteriors, measure, draw and report."""
    shared.check_figure(config.figure)
    opened = shared.open_posteriors(config.p, config.q)
    data = opened.data(config.data, config.root)
    split = shared.first_examples(data, config.split, config.limit)
    outside = None
    if config.ood is not None:
        other = opened.data(config.ood, config.root)
        outside = shared.first_examples(other, "test", config.limit)
    import jax

    from onebasin.evaluation import comparison, measures, predictive
    from onebasin.figures.evaluation import reliability_figure

    both, key = list(opened.posteriors), jax.random.key(config.seed)
    names = [config.p.stem, config.q.stem]
    if names[0] == names[1]:
        names = [str(config.p), f"{config.q} (second)"]
    options: Any = {"key": key, "num_samples": config.num_samples}
    inside = predictive(both, opened.network, split.x, **options)
    each = dict(zip(names, inside, strict=True))
    scores = {name: comparison.predictive_measures(one, split.y) for name, one in each.items()}
    if outside is not None:
        far = predictive(both, opened.network, outside.x, **options)
        for name, one in zip(names, far, strict=True):
            scores[name] |= comparison.detection_measures(each[name], one)
    between = {
        "agreement": measures.agreement(*inside),
        "total_variation": measures.total_variation(*inside),
        **comparison.closed_form_distances(*both),
    }
    alignment = None
    if config.align is not None:
        _, alignment = opened.align_second(config.align, data, config.seed)
    shared.write_figure(
        config.figure,
        lambda: reliability_figure({n: measures.reliability(p, split.y) for n, p in each.items()}),
    )
    result = {"data": config.data, "split": config.split, "examples": len(split.y), **between}
    result |= {"alignment": alignment, "posteriors": scores}
    shared.print_result(result, _table(scores, between, alignment), as_json=config.json)


def _table(
    scores: dict[str, dict[str, float]], between: dict[str, float], alignment: dict[str, Any] | None
) -> str:
    measured = list(next(iter(scores.values())))
    width = max(map(len, measured))
    rows = {"": [f"{name:>12}" for name in scores]}
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
