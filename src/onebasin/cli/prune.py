"""`onebasin prune`: keep the weights a posterior is surest of, in a file that holds only those."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import DataName, PruningRule, PruningScope, SplitName
from onebasin.cli.shared import open_data, open_posteriors, write_json


@dataclass(frozen=True)
class Prune:
    """Keep a share of a posterior's mean weights and write them as a sparse file.

    Example: onebasin prune compact.safetensors --keep 0.1 --out pruned.safetensors --data mnist
    """

    posterior: Annotated[Path, tyro.conf.Positional]
    """Posterior file; of samples, the mean and spread of the draws as they lie."""
    out: Path
    """File to write: kept values and their places."""
    keep: float = 0.1
    """Share of the weights that stay."""
    by: PruningRule = "std"
    """Keep the lowest σ, the highest |mean|/σ, or the highest |mean|."""
    scope: PruningScope = "global"
    """Rank all weights together, or keep the same share of every layer."""
    data: DataName | None = None
    """Also report accuracy on these data, before and after."""
    root: Path | None = None
    """Folder with the published files; by default that in ONEBASIN_DATA, then the cache."""
    split: SplitName = "test"
    """Which part of the data."""
    limit: int | None = None
    """Use only the first so many examples."""
    curve: bool = False
    """With --data: also accuracy at 100, 90, … 10, 5 and 1 %."""
    figure: Path | None = None
    """With --data: draw that curve into this .pdf, .png or .svg."""
    overwrite: bool = False
    """Replace --out if it exists."""
    json: bool = False
    """Print everything as one JSON object on standard output."""


COMMAND = Prune


def run(config: Prune) -> None:
    """Check everything, prune, evaluate, write and report."""
    from onebasin.figures.style import check_figure_path

    if config.figure is not None:
        check_figure_path(config.figure)
    if config.data is None and (config.curve or config.figure is not None):
        raise ValueError("a curve of accuracies needs data; name them with --data")
    if config.out.exists() and not config.overwrite:
        raise ValueError(f"{config.out} exists; give --overwrite to replace it, or another --out")
    opened = open_posteriors([config.posterior])
    split: Any = None
    if config.data is not None:
        data = open_data(config.data, config.root, opened.input_shape, str(config.posterior))
        split = getattr(data, config.split).first(config.limit)
    from onebasin.posterior.sparse import save_sparse
    from onebasin.pruning import KEEPS, prune, pruning_curve

    (posterior,) = opened.posteriors
    rule: dict[str, Any] = {"by": config.by, "scope": config.scope}
    mean, std = posterior.moments()
    found = prune(mean, std, keep=config.keep, **rule)
    report: dict[str, Any] = {
        "file": str(config.posterior),
        "out": str(config.out),
        **rule,
        "kept": found.kept,
    }
    if split is not None:
        ends = pruning_curve(posterior, opened.apply, split, keeps=(1.0, config.keep), **rule)
        report |= {"data": config.data, "split": config.split, "examples": ends.num_examples}
        report |= {"accuracy_before": ends.accuracy[0], "accuracy": ends.accuracy[1]}
        report |= {"nll_before": ends.nll[0], "nll": ends.nll[1]}
        if config.curve or config.figure is not None:
            curve = pruning_curve(posterior, opened.apply, split, keeps=KEEPS, **rule)
            report["curve"] = curve.summary()
            if config.figure is not None:
                from onebasin.figures.diagnosis import pruning_figure
                from onebasin.figures.style import save_figure

                save_figure(pruning_figure({f"by {config.by}": curve}), config.figure)
    header = opened.headers[0]
    save_sparse(
        config.out,
        found,
        network=header.network,
        overwrite=config.overwrite,
        **{**header.provenance, "pruning": {k: v for k, v in report.items() if k != "curve"}},
    )
    report |= {"bytes": config.out.stat().st_size, "bytes_before": config.posterior.stat().st_size}
    if config.json:
        write_json(report)
        return
    _print(report)


def _print(report: dict[str, Any]) -> None:
    lines = [
        f"{report['file']} → {report['out']}  {100 * report['kept']:.4g} % kept by "
        f"{report['by']} ({report['scope']}), {report['bytes'] / 1e6:.3g} MB"
    ]
    if "accuracy" in report:
        lines.append(
            f"accuracy of the mean network on {report['data']} ({report['split']}): "
            f"{100 * report['accuracy_before']:.2f} % → {100 * report['accuracy']:.2f} %"
        )
    if "curve" in report:
        curve = report["curve"]
        lines.append("kept %   accuracy %")
        for kept, hits in zip(curve["kept"], curve["accuracy"], strict=True):
            lines.append(f"{100 * kept:>6.4g}   {100 * hits:>10.2f}")
    sys.stdout.write("\n".join(lines) + "\n")
