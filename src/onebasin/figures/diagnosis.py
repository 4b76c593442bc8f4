"""Figures of diagnosis and pruning: R-hat, projections, σ, accuracy against what is kept."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from onebasin.figures.canvas import AxesLike, Canvas, canvas
from onebasin.figures.drawn import DrawnDiagnosis, DrawnGeometry, DrawnPruning
from onebasin.figures.style import (
    COLOURS,
    COLUMN,
    DASHES,
    GREY,
    MARKERS,
    PAGE,
    plain_ticks,
    series,
)

GOOD_RHAT = 1.05


def rhat_figure(found: DrawnDiagnosis, *, ax: AxesLike | None = None) -> Figure:
    """The distribution function of R-hat over weights: before, after, and for the null."""
    with canvas(ax, 1, (COLUMN, 2.4)) as page:
        _rhat(page.axes[0], found)
    return page.figure


def projection_figure(found: DrawnDiagnosis) -> Figure:
    """The draws in their two principal directions, by chain, before and after alignment."""
    with canvas(None, 3, (PAGE, 2.7)) as page:
        views = {"before": found.before, "after": found.after, "null, aligned": found.null}
        for ax, (name, view) in zip(page.axes, views.items(), strict=True):
            _projection(ax, view.geometry, found.chain, name)
        _chain_legend(page, found.chain)
    return page.figure


def sigma_figure(
    found: DrawnDiagnosis | Mapping[str, np.ndarray], *, ax: AxesLike | None = None
) -> Figure:
    """Histograms of the weights' standard deviations: before and after alignment, or by name."""
    with canvas(ax, 1, (COLUMN, 2.4)) as page:
        draw_sigma(page.axes[0], found if isinstance(found, Mapping) else _both(found))
    return page.figure


def diagnosis_figure(found: DrawnDiagnosis, *, ax: AxesLike | None = None) -> Figure:
    """R-hat, σ, and projections before and after, on one page.

    `ax` holds the axes to draw in: of the first panel, or of the first few.
    """
    before, after = found.before.geometry, found.after.geometry
    panels: list[Callable[[Axes], None]] = [
        lambda ax: _rhat(ax, found),
        lambda ax: draw_sigma(ax, _both(found)),
        lambda ax: _projection(ax, before, found.chain, "before"),
        lambda ax: _projection(ax, after, found.chain, "after"),
    ]
    with canvas(ax, 4, (PAGE, 5.2), rows=2) as page:
        for one, draw in zip(page.axes, panels, strict=False):
            draw(one)
        if len(page.axes) > 2:
            _chain_legend(page, found.chain)
    return page.figure


def _rhat(ax: Axes, found: DrawnDiagnosis) -> None:
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


def _both(found: DrawnDiagnosis) -> dict[str, np.ndarray]:
    return {"$q_d$, before": found.before.sigma, "$q_r$, after": found.after.sigma}


def draw_sigma(ax: Axes, sigmas: Mapping[str, np.ndarray]) -> None:
    """Histograms of standard deviations, by name."""
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


def _projection(ax: Axes, found: DrawnGeometry, chain: np.ndarray, name: str) -> None:
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


def _chain_legend(page: Canvas, chain: np.ndarray) -> None:
    names = np.unique(chain)[:12]
    handles = [
        Line2D([], [], label=f"chain {name}", **_chain_style(i)) for i, name in enumerate(names)
    ]
    names = [str(handle.get_label()) for handle in handles]
    columns = min(len(handles), 6)
    page.legend(handles, names, inside=page.axes[-1], loc="outside lower center", ncols=columns)


def pruning_figure(curves: Mapping[str, DrawnPruning], *, ax: AxesLike | None = None) -> Figure:
    """Accuracy (or RMSE) of the pruned mean network against the share of weights kept."""
    if not curves:
        raise ValueError("there is no pruning curve to draw; give at least one")
    classes = all(curve.score_name == "accuracy" for curve in curves.values())
    with canvas(ax, 1, (COLUMN, 2.5 + 0.1 * len(curves))) as page:
        (ax,) = page.axes
        for i, (name, curve) in enumerate(curves.items()):
            shown = (100 if classes else 1) * curve.score
            ax.plot(100 * curve.kept, shown, label=name, **series(i))
        lowest = min(float(curve.kept.min()) for curve in curves.values())
        ax.set_xscale("log")
        ax.set_xlim(100, 90 * lowest)  # decreasing, as pruning proceeds
        ticks = [t for t in (100, 50, 20, 10, 5, 2, 1) if t >= 90 * lowest]
        plain_ticks(ax.xaxis, ticks)
        ax.set_xlabel("weights kept (%)")
        measure, unit = ("accuracy", " (%)") if classes else ("RMSE", "")
        ax.set_ylabel(f"{measure} of the mean network{unit}")
        page.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return page.figure
