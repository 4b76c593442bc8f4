"""Figures of profiles, landscapes and reliability."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onebasin.figures.canvas import AxesLike, canvas
from onebasin.figures.drawn import DrawnLandscape, DrawnProfile, DrawnReliability
from onebasin.figures.style import COLUMN, DASHES, GREY, MARKERS, PAGE, band, plain_ticks, series

Value: TypeAlias = Literal["log_posterior", "nll", "accuracy", "rmse"]
SCORES = {"accuracy": "accuracy (%)", "rmse": "RMSE of the predictive mean"}

Z = 1.96  # bands are 95 % intervals
COINCIDE = 0.04  # share of the range of all losses


def profile_figure(
    profiles: Mapping[str, DrawnProfile],
    *,
    logarithmic: bool = False,
    means: bool = False,
    ax: AxesLike | None = None,
) -> Figure:
    """Loss and accuracy (or RMSE) along paths, one curve for each profile, with 95 % bands.

    A repaired profile is drawn with its plain one. Dotted lines between the ends are the base of
    the barrier. Where curves coincide at the scale of the loss, a panel beside it shows the excess
    over these lines on a logarithmic scale. `means` adds the loss of the mean networks as thin
    lines. `ax` holds the axes to draw in: of the first panel, or of the first few.
    """
    _check_some(profiles, "profile")
    curves: dict[str, DrawnProfile] = {}
    for name, found in profiles.items():
        if found.plain is not None and found.plain not in profiles.values():
            curves[f"{name}, plain"] = found.plain
            name = f"{name}, repaired"
        curves[name] = found
    measures = {p.score_name for p in curves.values()}
    measure = measures.pop() if len(measures) == 1 else ""
    times = 100 if measure == "accuracy" else 1
    panels = ["loss"] + ["score"] * bool(measure) + ["excess"] * _coincide(list(curves.values()))
    size = (PAGE if len(panels) > 1 else COLUMN, 2.4 + 0.16 * len(curves))
    with canvas(ax, len(panels), size) as page:
        axes = dict(zip(panels, page.axes, strict=False))
        loss = axes["loss"]
        for i, (name, found) in enumerate(curves.items()):
            _curve(loss, found, name, i, means)
            if "score" in axes:
                axes["score"].plot(found.t, times * found.score, label=name, **_line(i))
                axes["score"].set_ylabel(SCORES[measure])
        loss.set_ylabel("negative log likelihood (nats per example)")
        if logarithmic:
            loss.set_yscale("log")
        if "excess" in axes:
            _logarithmic_excess(axes["excess"], list(curves.values()))
        for one in page.axes:
            one.set_xlabel("position $t$ on the path from $q_0$ to $q_1$")
            one.set_xlim(0, 1)
        if len(panels) > 2:  # three side by side leave less room for each
            for one in page.axes:
                one.set_xlabel("position $t$ from $q_0$ to $q_1$")
        # Outside the plots: a barrier fills the middle of its own.
        page.legend(*loss.get_legend_handles_labels(), loc="outside upper center")
    return page.figure


def _coincide(curves: list[DrawnProfile]) -> bool:
    """Whether two curves cannot be told apart on an axis that shows all losses."""
    if not any(c.excess.max() > 0 for c in curves):
        return False
    span = np.ptp(np.concatenate([c.nll for c in curves]))
    first = curves[0].t
    losses = [np.interp(first, c.t, c.nll) for c in curves]
    pairs = [(a, b) for i, a in enumerate(losses) for b in losses[:i]]
    return any(np.abs(a - b).max() < COINCIDE * span for a, b in pairs)


def _logarithmic_excess(ax: Axes, curves: list[DrawnProfile]) -> None:
    """Where the excess is positive, on a logarithmic scale of at most four decades."""
    top = max(float(c.excess.max()) for c in curves)
    positive = np.concatenate([c.excess[c.excess > 0] for c in curves])
    bottom = max(float(positive.min()) / 2, 1e-4 * top)
    for i, found in enumerate(curves):
        style = _line(i)
        shown = np.where(found.excess > bottom, found.excess, np.nan)
        error = Z * np.nan_to_num(found.excess_stderr)
        low, high = np.maximum(shown - error, bottom), shown + error
        ax.fill_between(found.t, low, high, color=style["color"], alpha=0.2, linewidth=0)
        ax.plot(found.t, shown, **style)
    ax.set_yscale("log")
    ax.set_ylim(bottom, 2 * top)
    decades = 10.0 ** np.arange(np.ceil(np.log10(bottom)), np.floor(np.log10(2 * top)) + 1)
    plain_ticks(ax.yaxis, decades.tolist())
    ax.set_ylabel("excess loss (nats per example)")


def _curve(ax: Axes, found: DrawnProfile, name: str, index: int, means: bool) -> None:
    style = _line(index)
    label = f"{name}: barrier {found.barrier:.3f} ± {found.barrier_stderr:.3f}"
    ax.plot(found.t, found.nll, label=label, **style)
    band(ax, found.t, found.nll, Z * found.nll_stderr, style["color"])
    ax.plot([0, 1], found.nll[[0, -1]], color=style["color"], linewidth=0.6, linestyle=":")
    if means:
        ax.plot(found.t, found.mean_nll, color=style["color"], linewidth=0.6)


def _line(index: int) -> dict[str, Any]:
    return {**series(index), "markersize": 2.5}


def _check_some(found: Mapping[str, object], what: str) -> None:
    if not found:
        raise ValueError(f"there is no {what} to draw; give at least one")


def excess_figure(profiles: Mapping[str, DrawnProfile], *, ax: AxesLike | None = None) -> Figure:
    """The excess over the straight line between the ends, with 95 % bands."""
    _check_some(profiles, "profile")
    with canvas(ax, 1, (COLUMN, 2.5)) as page:
        (ax,) = page.axes
        ax.axhline(0, color=GREY, linewidth=0.6)
        for i, (name, found) in enumerate(profiles.items()):
            style = _line(i)
            ax.plot(found.t, found.excess, label=name, **style)
            band(ax, found.t, found.excess, Z * found.excess_stderr, style["color"])
        ax.set_xlim(0, 1)
        ax.set_xlabel("position $t$ on the path from $q_0$ to $q_1$")
        ax.set_ylabel("excess loss (nats per example)")
        ax.legend()
    return page.figure


def landscape_figure(
    found: DrawnLandscape, value: Value | None = None, *, ax: AxesLike | None = None
) -> Figure:
    """Contours of the log posterior (or of `value`) on the plane, with its points marked."""
    value = value or ("log_posterior" if found.log_posterior is not None else "nll")
    drop = found.log_posterior
    if value in SCORES and value != found.score_name:
        raise ValueError(f"this landscape has no '{value}'; it has '{found.score_name or 'nll'}'")
    shown, label = {
        "log_posterior": (
            None if drop is None else drop.max() - drop,
            "drop of the log posterior (nats)",
        ),
        "nll": (found.nll, "negative log likelihood (nats per example)"),
    }.get(value, (None, ""))
    if value in SCORES:
        shown, label = (100 if value == "accuracy" else 1) * found.score, SCORES[value]
    if shown is None:
        raise ValueError(f"this landscape has no '{value}'; give a log_prior when making it")
    metric = "distance" in found.plane.unit
    tall = np.ptp(found.b) / np.ptp(found.a) if metric else 1.0
    height = float(np.clip(0.62 * COLUMN * tall, 1.4, 4.5)) + 0.6
    with canvas(ax, 1, (COLUMN, height)) as page:
        (ax,) = page.axes
        levels = _levels(shown, value)
        colours = "cividis" if value == "accuracy" else "cividis_r"
        clipped = np.clip(shown, levels[0], levels[-1])
        filled = ax.contourf(found.a, found.b, clipped, levels=levels, cmap=colours)
        # A few contour lines, so that the shape can be seen without colour.
        ax.contour(found.a, found.b, shown, levels=levels[1:-1:2], colors="white", linewidths=0.4)
        bar = page.figure.colorbar(filled, ax=ax, label=label, ticks=levels[::2], pad=0.02)
        bar.ax.set_yticklabels([f"{level:,.6g}" for level in levels[::2]])
        bar.outline.set_linewidth(0.4)  # pyright: ignore[reportCallIssue]
        point_style: Any = {"color": "white", "markeredgecolor": "black", "markersize": 6}
        box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8}
        for i, (point, name) in enumerate(zip(found.plane.points, found.plane.names, strict=True)):
            ax.plot(*point, marker=MARKERS[i], linestyle="none", **point_style)
            ax.annotate(
                name, point, textcoords="offset points", xytext=(6, 5), fontsize=7, bbox=box
            )
        if metric:
            ax.set_aspect("equal")
        ax.set_xlabel(found.plane.unit)
        ax.set_ylabel(found.plane.unit if tall > 0.9 else "distance")
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.grid(False)
    return page.figure


def _levels(values: np.ndarray, value: Value) -> np.ndarray:
    """Contour levels: even for accuracy, else geometric, since a basin is narrow between walls."""
    low, high = float(values.min()), float(values.max())
    if value == "accuracy" or high <= low:
        return np.linspace(low, high if high > low else low + 1, 13)
    # From the tenth smallest value, near the floor of the basin, to the largest; two digits each.
    floor = np.sort(values.ravel())[min(10, values.size - 1)]
    start = max(floor, low + 1e-3 * (high - low), 1e-12)
    rounded = [float(f"{level:.2g}") for level in np.geomspace(start, high, 12)]
    return np.unique([float(f"{low:.2g}"), *rounded])


def reliability_figure(found: Mapping[str, DrawnReliability]) -> Figure:
    """Accuracy against confidence, with the diagonal of perfect calibration."""
    _check_some(found, "reliability")
    with canvas(None, 2, (COLUMN, 3.6), rows=2, height_ratios=[3, 1], sharex=True) as page:
        ax, counts = page.axes
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.6)
        for i, (name, one) in enumerate(found.items()):
            full = one.count > 0
            style = _line(i)
            share = one.accuracy[full]
            low, high = _wilson(share, one.count[full])
            error = np.maximum([share - low, high - share], 0.0)
            label = f"{name}: calibration error {100 * one.error:.2f} %"
            ax.errorbar(one.confidence[full], share, error, elinewidth=0.6, label=label, **style)
            middles = (one.edges[:-1] + one.edges[1:]) / 2
            share = one.count / one.count.sum()
            counts.step(middles, share, where="mid", color=style["color"], linestyle=DASHES[i])
        ax.set_ylim(0, 1.02)
        ax.set_xlim(0, 1)
        ax.set_ylabel("accuracy, with 95 % intervals")
        counts.set_ylabel("share of\nexamples")
        counts.set_yscale("log")
        counts.set_xlabel("confidence of the most probable class")
        page.legend(*ax.get_legend_handles_labels(), loc="outside upper center")
    return page.figure


def coverage_figure(found: Mapping[str, Mapping[float, float]]) -> Figure:
    """The share of targets inside central intervals against their level, with the diagonal.

    Above the diagonal intervals are too wide, below it too narrow. Values are shares by level, of
    every named predictive.
    """
    _check_some(found, "coverage")
    with canvas(None, 1, (COLUMN, 2.8)) as page:
        (ax,) = page.axes
        ax.plot([0, 100], [0, 100], color=GREY, linewidth=0.6)
        for i, (name, one) in enumerate(found.items()):
            level, share = np.array(sorted(one.items())).T
            ax.plot(100 * level, 100 * share, label=name, **_line(i))
        ax.set_xlim(0, 100)
        ax.set_ylim(0, 102)
        ax.set_xlabel("level of the central interval (%)")
        ax.set_ylabel("targets inside (%)")
        page.legend(*ax.get_legend_handles_labels(), loc="outside upper center")
    return page.figure


def _wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share, which is valid near 0 and 1 and for few examples."""
    scale = 1 + Z**2 / count
    centre = (share + Z**2 / (2 * count)) / scale
    half = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / scale
    return centre - half, centre + half
