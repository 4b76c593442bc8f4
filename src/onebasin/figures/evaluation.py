"""Figures of results: each function takes result objects and returns a matplotlib Figure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onebasin.evaluation.landscapes import Landscape
from onebasin.evaluation.measures import Reliability
from onebasin.evaluation.profiles import Profile
from onebasin.figures.style import COLUMN, DASHES, MARKERS, PAGE, paper, series

Z = 1.96  # bands are 95 % intervals


def profile_figure(
    profiles: Mapping[str, Profile], *, logarithmic: bool = False, means: bool = False
) -> Figure:
    """Loss and accuracy along paths, one curve for each named profile, with 95 % bands.

    A repaired profile brings the plain one along. Straight lines between the ends show from
    where the barrier is measured. `means` adds the mean networks' loss as thin lines.
    """
    if not profiles:
        raise ValueError("there is no profile to draw")
    curves: dict[str, Profile] = {}
    for name, found in profiles.items():
        if found.plain is not None and found.plain not in profiles.values():
            curves[f"{name}, plain"] = found.plain
            name = f"{name}, repaired"
        curves[name] = found
    classifies = all(np.isfinite(p.accuracy).all() for p in curves.values())
    with paper():
        width = PAGE if classifies else COLUMN
        figure = Figure(figsize=(width, 2.4 + 0.16 * len(curves)), layout="constrained")
        axes = figure.subplots(1, 2 if classifies else 1, squeeze=False)[0]
        for i, (name, found) in enumerate(curves.items()):
            _curve(axes[0], found, name, i, means)
            if classifies:
                axes[1].plot(found.t, 100 * found.accuracy, label=name, **_line(i))
        axes[0].set_ylabel("negative log likelihood (nats per example)")
        if logarithmic:
            axes[0].set_yscale("log")
        for ax in axes:
            ax.set_xlabel("position $t$ on the path from $q_0$ to $q_1$")
            ax.set_xlim(0, 1)
        if classifies:
            axes[1].set_ylabel("accuracy (%)")
        # Above the plots: a barrier fills the middle of its own.
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center")
    return figure


def _curve(ax: Any, found: Profile, name: str, index: int, means: bool) -> None:
    style = _line(index)
    label = f"{name}: barrier {found.barrier:.3f} ± {found.barrier_stderr:.3f}"
    ax.plot(found.t, found.nll, label=label, **style)
    band = Z * np.nan_to_num(found.nll_stderr)
    ax.fill_between(
        found.t, found.nll - band, found.nll + band, color=style["color"], alpha=0.2, linewidth=0
    )
    ax.plot([0, 1], found.nll[[0, -1]], color=style["color"], linewidth=0.6, linestyle=":")
    if means:
        ax.plot(found.t, found.mean_nll, color=style["color"], linewidth=0.6)


def _line(index: int) -> dict[str, Any]:
    return {**series(index), "markersize": 2.5}


def excess_figure(profiles: Mapping[str, Profile]) -> Figure:
    """The excess over the straight line between the ends, with 95 % bands."""
    if not profiles:
        raise ValueError("there is no profile to draw")
    with paper():
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        ax = figure.subplots()
        ax.axhline(0, color="#888888", linewidth=0.6)
        for i, (name, found) in enumerate(profiles.items()):
            style = _line(i)
            ax.plot(found.t, found.excess, label=name, **style)
            band = Z * np.nan_to_num(found.excess_stderr)
            ax.fill_between(
                found.t,
                found.excess - band,
                found.excess + band,
                color=style["color"],
                alpha=0.2,
                linewidth=0,
            )
        ax.set_xlim(0, 1)
        ax.set_xlabel("position $t$ on the path from $q_0$ to $q_1$")
        ax.set_ylabel("excess loss (nats per example)")
        ax.legend()
    return figure


def landscape_figure(found: Landscape, value: str | None = None) -> Figure:
    """Contours of the log posterior (or the loss) on the plane, with its points marked.

    `value` is "log_posterior", "nll" or "accuracy"; the log posterior if there is one.
    """
    value = value or ("log_posterior" if found.log_posterior is not None else "nll")
    values = getattr(found, value, None)
    if values is None:
        raise ValueError(f"this landscape has no '{value}'; give a log_prior when making it")
    labels = {
        "log_posterior": "drop of the log posterior (nats)",
        "nll": "negative log likelihood (nats per example)",
        "accuracy": "accuracy (%)",
    }
    shown = {
        "log_posterior": lambda v: v.max() - v,
        "nll": lambda v: v,
        "accuracy": lambda v: 100 * v,
    }[value](values)
    with paper():
        tall = np.ptp(found.b) / np.ptp(found.a) if "distance" in found.plane.unit else 1.0
        height = float(np.clip(0.62 * COLUMN * tall, 1.4, 4.5)) + 0.6
        figure = Figure(figsize=(COLUMN, height), layout="constrained")
        ax = figure.subplots()
        levels = _levels(shown, value)
        filled = ax.contourf(
            found.a,
            found.b,
            np.clip(shown, levels[0], levels[-1]),
            levels=levels,
            cmap="cividis" if value == "accuracy" else "cividis_r",
        )
        # A few lines in ink, so that the shape survives a copy without colour.
        ax.contour(found.a, found.b, shown, levels=levels[1:-1:2], colors="white", linewidths=0.4)
        bar = figure.colorbar(filled, ax=ax, label=labels[value], ticks=levels[::2], pad=0.02)
        bar.ax.set_yticklabels([f"{level:,.6g}" for level in levels[::2]])
        bar.outline.set_linewidth(0.4)  # pyright: ignore[reportCallIssue]
        for i, (point, name) in enumerate(zip(found.plane.points, found.plane.names, strict=True)):
            ax.plot(
                *point,
                marker=MARKERS[i],
                color="white",
                markeredgecolor="black",
                markersize=6,
                linestyle="none",
            )
            ax.annotate(
                name,
                point,
                textcoords="offset points",
                xytext=(6, 5),
                fontsize=7,
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8},
            )
        if "distance" in found.plane.unit:
            ax.set_aspect("equal")
        ax.set_xlabel(found.plane.unit)
        ax.set_ylabel(found.plane.unit if tall > 0.9 else "distance")
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.grid(False)
    return figure


def _levels(values: np.ndarray, value: str) -> np.ndarray:
    """Contour levels: even for accuracy, geometric where a basin is narrow against its walls."""
    low, high = float(values.min()), float(values.max())
    if value == "accuracy" or high <= low:
        return np.linspace(low, high if high > low else low + 1, 13)
    # Between the tenth smallest value, of the basin's floor, and the walls; two digits each.
    floor = np.sort(values.ravel())[min(10, values.size - 1)]
    start = max(floor, low + 1e-3 * (high - low), 1e-12)
    rounded = [float(f"{level:.2g}") for level in np.geomspace(start, high, 12)]
    return np.unique([float(f"{low:.2g}"), *rounded])


def reliability_figure(found: Mapping[str, Reliability]) -> Figure:
    """Accuracy against confidence, with the diagonal of perfect calibration."""
    if not found:
        raise ValueError("there is no reliability to draw")
    with paper():
        figure = Figure(figsize=(COLUMN, 3.6), layout="constrained")
        ax, counts = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
        ax.plot([0, 1], [0, 1], color="#888888", linewidth=0.6)
        for i, (name, one) in enumerate(found.items()):
            full = one.count > 0
            style = _line(i)
            share = one.accuracy[full]
            low, high = _wilson(share, one.count[full])
            error = np.maximum([share - low, high - share], 0.0)
            ax.errorbar(
                one.confidence[full],
                one.accuracy[full],
                yerr=error,
                elinewidth=0.6,
                label=f"{name}: calibration error {100 * one.error:.2f} %",
                **style,
            )
            middles = (one.edges[:-1] + one.edges[1:]) / 2
            share = one.count / one.count.sum()
            counts.step(middles, share, where="mid", color=style["color"], linestyle=DASHES[i])
        ax.set_ylim(0, 1.02)
        ax.set_xlim(0, 1)
        ax.set_ylabel("accuracy, with 95 % intervals")
        counts.set_ylabel("share of\nexamples")
        counts.set_yscale("log")
        counts.set_xlabel("confidence of the most probable class")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center")
    return figure


def _wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share, which is sensible at 0 and 1 and for few examples."""
    scale = 1 + Z**2 / count
    centre = (share + Z**2 / (2 * count)) / scale
    half = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / scale
    return centre - half, centre + half
