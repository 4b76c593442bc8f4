"""Figures of diagnosis and pruning: R-hat, projections, σ, accuracy against what is kept."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from onebasin.diagnosis.chains import Diagnosis
from onebasin.diagnosis.geometry import Geometry
from onebasin.figures.style import (
    COLOURS,
    COLUMN,
    DASHES,
    GREY,
    MARKERS,
    PAGE,
    paper,
    plain_ticks,
    series,
)
from onebasin.pruning import PruningCurve

GOOD_RHAT = 1.05


def rhat_figure(found: Diagnosis) -> Figure:
    """The distribution function of R-hat over weights: before, after, and for the null."""
    with paper():
        figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
        _rhat(figure.subplots(), found)
    return figure


def projection_figure(found: Diagnosis) -> Figure:
    """The draws in their two principal directions, by chain, before and after alignment."""
    with paper():
        figure = Figure(figsize=(PAGE, 2.7), layout="constrained")
        views = {"before": found.before, "after": found.after, "null, aligned": found.null}
        for ax, (name, view) in zip(figure.subplots(1, 3), views.items(), strict=True):
            _projection(ax, view.geometry, found.chain, name)
        _chain_legend(figure, found.chain)
    return figure


def sigma_figure(found: Diagnosis | Mapping[str, np.ndarray]) -> Figure:
    """Histograms of the weights' standard deviations: before and after alignment, or by name."""
    with paper():
        figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
        _sigma(figure.subplots(), found if isinstance(found, Mapping) else _both(found))
    return figure


def diagnosis_figure(found: Diagnosis) -> Figure:
    """R-hat, σ, and projections before and after, on one page."""
    with paper():
        figure = Figure(figsize=(PAGE, 5.2), layout="constrained")
        (rhat, sigma), (before, after) = figure.subplots(2, 2)
        _rhat(rhat, found)
        _sigma(sigma, _both(found))
        _projection(before, found.before.geometry, found.chain, "before")
        _projection(after, found.after.geometry, found.chain, "after")
        _chain_legend(figure, found.chain)
    return figure


def _rhat(ax: Axes, found: Diagnosis) -> None:
    views = {"before": found.before, "after": found.after, "null, aligned": found.null}
    top = max(np.nanquantile(v.weights.rhat, 0.999) for v in views.values())
    for i, (name, view) in enumerate(views.items()):
        values = np.sort(view.weights.rhat[np.isfinite(view.weights.rhat)])
        share = np.arange(1, len(values) + 1) / len(values)
        label = f"{name}: median {np.median(values):.2f}"
        ax.step(values, share, where="post", color=COLOURS[i], linestyle=DASHES[i], label=label)
    ax.axvline(GOOD_RHAT, color=GREY, linewidth=0.6)
    ax.set_xscale("log")
    ax.set_xlim(0.98, top)
    ticks = [t for t in (1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20) if t <= top]
    ticks = ticks if top < 2 else [t for t in ticks if t not in (1.1, 1.2)]
    plain_ticks(ax.xaxis, ticks)
    ax.set_ylim(0, 1.01)
    ax.set_xlabel(r"$\hat{R}$ of a weight (line: 1.05)")
    ax.set_ylabel("share of weights below")
    ax.legend(loc="lower right")


def _both(found: Diagnosis) -> dict[str, np.ndarray]:
    return {"$q_d$, before": found.before.sigma, "$q_r$, after": found.after.sigma}


def _sigma(ax: Axes, sigmas: Mapping[str, np.ndarray]) -> None:
    high = max(np.quantile(sigma, 0.9999) for sigma in sigmas.values())
    low = min(np.quantile(sigma, 0.0001) for sigma in sigmas.values())
    edges = np.linspace(max(low, 0.0) * 0.95, high * 1.02, 80)
    tallest = 0.0
    for i, (name, sigma) in enumerate(sigmas.items()):
        counts, _ = np.histogram(sigma, edges)
        tallest = max(tallest, counts.max() / len(sigma))
        label = f"{name}: median {np.median(sigma):.3g}"
        ax.stairs(
            counts / len(sigma), edges, color=COLOURS[i], linestyle=DASHES[i], label=label,
            fill=False, linewidth=1.2,
        )  # fmt: skip
    ax.set_xlabel("standard deviation σ of a weight")
    ax.set_ylabel("share of weights")
    ax.set_ylim(0, (1.1 + 0.1 * len(sigmas)) * tallest)  # room for the legend
    ax.legend()


def _projection(ax: Axes, found: Geometry, chain: np.ndarray, name: str) -> None:
    for i, one in enumerate(np.unique(chain)):
        ax.plot(*found.scores[chain == one, :2].T, markersize=3, **_chain_style(i))
    ax.set_title(
        f"{name}: {100 * found.between:.1f} % between chains\n"
        f"(one law: {100 * found.between_expected:.1f} %)"
    )
    ax.set_xlabel(f"first direction ({100 * found.explained[0]:.1f} %)")
    if len(found.explained) > 1:
        ax.set_ylabel(f"second direction ({100 * found.explained[1]:.1f} %)")
    ax.set_aspect("equal", adjustable="datalim")


def _chain_style(i: int) -> dict[str, Any]:
    k = i % len(COLOURS)
    hollow = {"linestyle": "none", "markerfacecolor": "none", "markeredgewidth": 0.6}
    return {**hollow, "marker": MARKERS[k], "color": COLOURS[k]}


def _chain_legend(figure: Figure, chain: np.ndarray) -> None:
    names = np.unique(chain)[:12]
    handles = [
        Line2D([], [], label=f"chain {name}", **_chain_style(i)) for i, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6))


def pruning_figure(curves: Mapping[str, PruningCurve]) -> Figure:
    """Accuracy (or RMSE) of the pruned mean network against the share of weights kept."""
    if not curves:
        raise ValueError("there is no pruning curve to draw; give at least one")
    classes = all(curve.score_name == "accuracy" for curve in curves.values())
    with paper():
        figure = Figure(figsize=(COLUMN, 2.5 + 0.1 * len(curves)), layout="constrained")
        ax = figure.subplots()
        for i, (name, curve) in enumerate(curves.items()):
            shown = 100 * curve.accuracy if classes else curve.score
            ax.plot(100 * curve.kept, shown, label=name, **series(i))
        lowest = min(float(curve.kept.min()) for curve in curves.values())
        ax.set_xscale("log")
        ax.set_xlim(100, 90 * lowest)  # decreasing, as pruning proceeds
        ticks = [t for t in (100, 50, 20, 10, 5, 2, 1) if t >= 90 * lowest]
        plain_ticks(ax.xaxis, ticks)
        ax.set_xlabel("weights kept (%)")
        measure, unit = ("accuracy", " (%)") if classes else ("RMSE", "")
        ax.set_ylabel(f"{measure} of the mean network{unit}")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
