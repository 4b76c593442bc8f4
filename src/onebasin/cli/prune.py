"""`onebasin prune`: keep the weights a posterior is most certain of, in a sparse file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import PruningRule, PruningScope
from onebasin.cli import shared
from onebasin.cli.opening import open_posteriors


@dataclass(frozen=True)
class Prune(
    shared.EvaluationOptions, shared.NetworkOptions, shared.FigureOption, shared.OverwriteOption
):
    """Keep a fraction of a posterior's mean weights and write them to a sparse file.

    With --data, the accuracy before and after is reported. The figure shows accuracy against the
    fraction kept.

    Example: onebasin prune compact.safetensors --keep 0.1 --out pruned.safetensors --data mnist
    """

    posterior: Annotated[Path, tyro.conf.Positional]
    """Posterior file; samples are pruned by their mean and std, without alignment."""
    out: Path
    """File to write: the values kept and their positions."""
    keep: float = 0.1
    """Fraction of the weights to keep."""
    by: PruningRule = "magnitude"
    """Keep the highest |mean| (it keeps most), the highest |mean|/std, or the lowest std."""
    scope: PruningScope = "global"
    """Rank all weights together, or keep the same fraction of every layer."""
    curve: bool = False
    """Also report the accuracy at 100, 90, …, 10, 5 and 1 % (needs --data)."""


COMMAND = Prune


def run(config: Prune) -> None:
    """Check everything, prune, evaluate, write and report."""
    shared.check_figure(config.figure)
    if config.data is None and (config.curve or config.figure is not None):
        raise ValueError("a curve of accuracies needs data; name a data set with --data")
    shared.check_new(config.out, overwrite=config.overwrite)
    shared.check_folder(config.out)
    with shared.writing(config.out):
        _prune(config)


def _prune(config: Prune) -> None:
    opened = open_posteriors(config, config.posterior)
    split = opened.examples(config)
    from onebasin.posterior.sparse import save_sparse
    from onebasin.pruning import KEEPS, prune, pruning_curve

    (posterior,), (header,) = opened.posteriors, opened.headers
    rule: dict[str, Any] = {"by": config.by, "scope": config.scope}
    found = prune(*posterior.moments(), keep=config.keep, **rule)
    report = {"file": str(config.posterior), "out": str(config.out), **rule, "kept": found.kept}
    curve = None
    if split is not None:
        ends = pruning_curve(posterior, opened.problem, split, keeps=(1.0, config.keep), **rule)
        report |= {"data": opened.data.name, "split": config.split, "examples": ends.num_examples}
        name = ends.score_name
        report |= {"measure": name, f"{name}_before": ends.score[0], name: ends.score[1]}
        report |= {"nll_before": ends.nll[0], "nll": ends.nll[1]}
        if config.curve or config.figure is not None:
            curve = pruning_curve(posterior, opened.problem, split, keeps=KEEPS, **rule)
    shown = report if curve is None else {**report, "curve": curve.summary()}
    try:
        save_sparse(
            config.out,
            found,
            network=header.network,
            overwrite=config.overwrite,
            **{**header.provenance, "pruning": report},
        )
        sizes = {"bytes": config.out, "bytes_before": config.posterior}
        shown = {**shown, **{name: path.stat().st_size for name, path in sizes.items()}}
    finally:  # the numbers are told even if the file cannot be written
        shared.print_result(shown, _text(shown), as_json=config.json)
    if curve is not None:
        from onebasin.figures.diagnosis import pruning_figure

        shared.write_figure(config.figure, lambda: pruning_figure({f"by {config.by}": curve}))


def _text(report: dict[str, Any]) -> str:
    size = f", {report['bytes'] / 1e6:.3g} MB" if "bytes" in report else ""
    lines = [
        f"{report['file']} → {report['out']}  {100 * report['kept']:.4g} % kept by "
        f"{report['by']} ({report['scope']}){size}"
    ]
    if "measure" in report:
        name = report["measure"]
        lines.append(
            f"{name} of the mean network on {report['data']} ({report['split']}): "
            f"{_shown(name, report[f'{name}_before'])} → {_shown(name, report[name])}"
        )
    if "curve" in report:
        curve, name = report["curve"], report["measure"]
        lines.append(f"kept %   {name}")
        for kept, value in zip(curve["kept"], curve[name], strict=True):
            lines.append(f"{100 * kept:>6.4g}   {_shown(name, value)}")
    return "\n".join(lines)


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"
