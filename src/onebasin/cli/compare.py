"""`onebasin compare`: the predictives of two posterior files, against the labels and each other."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import DataName, ObjectiveName, SplitName
from onebasin.cli.shared import (
    align_second,
    open_data,
    open_posteriors,
    write_json,
)


@dataclass(frozen=True)
class Compare:
    """Compare two posteriors by what they predict: accuracy, calibration, agreement.

    Example: onebasin compare hmc.safetensors vi.safetensors --data mnist --ood fashion-mnist
    """

    p: Annotated[Path, tyro.conf.Positional]
    """Posterior file, taken as the reference."""
    q: Annotated[Path, tyro.conf.Positional]
    """Posterior file to compare with it."""
    data: DataName = "digits"
    """Data set to predict on."""
    root: Path | None = None
    """Folder with the published files; by default that in ONEBASIN_DATA, then the cache."""
    split: SplitName = "test"
    """Which part of the data."""
    limit: int | None = None
    """Use only the first so many examples."""
    ood: DataName | None = None
    """Data from another source: how well uncertainty tells them apart (AUROC)."""
    align: ObjectiveName | None = None
    """Also report the distance after bringing q to p by this objective (activations: on 1,000
    training examples)."""
    num_samples: int = 128
    """Draws of the weights."""
    seed: int = 0
    """All randomness follows from it."""
    figure: Path | None = None
    """Draw reliability diagrams into this .pdf, .png or .svg."""
    json: bool = False
    """Print everything as one JSON object on standard output."""


COMMAND = Compare


def run(config: Compare) -> None:
    """Predict with both, measure, draw and report."""
    from onebasin.figures.style import check_figure_path

    if config.figure is not None:
        check_figure_path(config.figure)
    opened = open_posteriors([config.p, config.q])
    data = open_data(config.data, config.root, opened.input_shape, str(config.p))
    split = getattr(data, config.split).first(config.limit)
    outside = None
    if config.ood is not None:
        other = open_data(config.ood, config.root, opened.input_shape, str(config.p))
        outside = other.test.first(config.limit).x
    import jax

    from onebasin.evaluation import measures
    from onebasin.evaluation.predicting import predictive

    key = jax.random.key(config.seed)
    both = [*opened.posteriors]
    p, q = predictive(both, opened.apply, split.x, key=key, num_samples=config.num_samples)
    names = _names(config)
    single = {name: _measures(one, split.y) for name, one in zip(names, (p, q), strict=True)}
    if outside is not None:
        far = predictive(both, opened.apply, outside, key=key, num_samples=config.num_samples)
        for name, near, away in zip(names, (p, q), far, strict=True):
            single[name] |= {
                "ood_auroc_entropy": measures.auroc(measures.entropy(near), measures.entropy(away)),
                "ood_auroc_mutual_information": measures.auroc(
                    measures.mutual_information(near), measures.mutual_information(away)
                ),
            }
    between = {
        "agreement": measures.agreement(p, q),
        "total_variation": measures.total_variation(p, q),
        **_distances(*opened.posteriors),
    }
    alignment = None
    if config.align is not None:
        _, alignment = align_second(opened, config.align, config.seed, data)
    if config.figure is not None:
        from onebasin.figures.evaluation import reliability_figure
        from onebasin.figures.style import save_figure

        diagrams = {
            name: measures.reliability(one, split.y)
            for name, one in zip(names, (p, q), strict=True)
        }
        save_figure(reliability_figure(diagrams), config.figure)
    result = {"data": config.data, "split": config.split, "examples": len(split.y), **between}
    if config.json:
        write_json({**result, "alignment": alignment, "posteriors": single})
        return
    _print(single, between, alignment)


def _names(config: Compare) -> tuple[str, str]:
    names = (config.p.stem, config.q.stem)
    return names if names[0] != names[1] else (str(config.p), f"{config.q} (second)")


def _measures(one: Any, y: Any) -> dict[str, float]:
    from onebasin.evaluation import measures

    return {
        "nll": measures.nll(one, y),
        "accuracy": measures.accuracy(one, y),
        "brier": measures.brier(one, y),
        "calibration_error": measures.calibration_error(one, y),
        "entropy": float(measures.entropy(one).mean()),
        "mutual_information": float(measures.mutual_information(one).mean()),
    }


def _distances(p: Any, q: Any) -> dict[str, float]:
    """W2 and L2 where they are defined: W2 is not between kinds."""
    from onebasin.evaluation.distances import l2, wasserstein

    found = {"l2": l2(p, q)}
    # Between some kinds there is no closed form; the means' distance stands alone then.
    with suppress(ValueError):
        found["w2"] = wasserstein(p, q)
    return found


def _print(single: dict[str, dict[str, float]], between: dict[str, float], alignment: Any) -> None:
    wide = max(len(name) for name in next(iter(single.values())))
    heads = "  ".join(f"{name:>12}" for name in single)
    lines = [f"{'':<{wide}}  {heads}"]
    for measure in next(iter(single.values())):
        values = "  ".join(f"{one[measure]:>12.5g}" for one in single.values())
        lines.append(f"{measure:<{wide}}  {values}")
    lines += [f"{name:<{wide}}  {value:>12.5g}" for name, value in between.items()]
    if alignment is not None:
        lines.append(
            f"aligned by {alignment['objective']}: squared distance of means "
            f"{alignment['squared_distance_of_means']:.6g}, "
            f"{alignment['transpositions']} transpositions"
        )
    sys.stdout.write("\n".join(lines) + "\n")
