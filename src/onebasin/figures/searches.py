"""Figures of alignment, compaction and fits: how the search went, and what it moved."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onebasin.figures.canvas import AxesLike, canvas
from onebasin.figures.diagnosis import draw_sigma
from onebasin.figures.drawn import DrawnAlignment
from onebasin.figures.style import COLOURS, PAGE

MOST_GROUPS = 12  # more of them are counted in a histogram
MOST_PANELS = 6
OF_TRANSITIONS = ("acceptance", "divergences")
NOT_DRAWN = {"step", "seconds", "epoch", "transitions"}


def alignment_figure(found: DrawnAlignment, *, ax: AxesLike | None = None) -> Figure:
    """The score after every move of the search, and the share of units moved in every group.

    `ax` holds the axes to draw in: of the first panel, or of both.
    """
    moved = {n: 100 * float(np.mean(p != np.arange(len(p)))) for n, p in _indices(found).items()}
    with canvas(ax, 2, (PAGE, 2.4)) as page:
        _trace(page.axes[0], found.trace, "score (higher is nearer)", "move of a group")
        before, after = found.distance_before, found.distance_after
        page.axes[0].set_title(f"{found.objective}: distance {before:.4g} → {after:.4g}")
        if len(page.axes) > 1:
            _moved(page.axes[1], moved)
    return page.figure


def _indices(found: DrawnAlignment) -> dict[str, np.ndarray]:
    return {name: np.asarray(found.permutation[name]) for name in found.permutation}


def _trace(ax: Axes, trace: Sequence[float], ylabel: str, xlabel: str) -> None:
    ax.plot(np.arange(len(trace)), trace, color=COLOURS[0], marker="o" if len(trace) < 40 else "")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)


def _moved(ax: Axes, moved: Mapping[str, float]) -> None:
    """A bar for each group, or a histogram of many."""
    label = "units moved (%)"
    if len(moved) > MOST_GROUPS:
        ax.hist(list(moved.values()), bins=np.linspace(0, 100, 21).tolist(), color=COLOURS[0])
        ax.set_ylabel(f"groups, of {len(moved)}")
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        ax.barh(list(moved), list(moved.values()), color=COLOURS[0], height=0.6)
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
    ax.set_xlim(0, 100)
    ax.set_xlabel(label)


def compact_figure(
    trace: Sequence[float], sigmas: Mapping[str, np.ndarray], *, ax: AxesLike | None = None
) -> Figure:
    """The mean log likelihood of the members after every round, and σ of the weights by name.

    `ax` holds the axes to draw in: of the first panel, or of both.
    """
    with canvas(ax, 2, (PAGE, 2.4)) as page:
        _trace(page.axes[0], trace, "mean log likelihood of a member", "round (last: the result)")
        if len(page.axes) > 1:
            draw_sigma(page.axes[1], sigmas)
    return page.figure


def history_figure(rows: Sequence[Mapping[str, Any]], *, ax: AxesLike | None = None) -> Figure:
    """What a fit recorded while it ran, a panel for each figure and a line for each replica.

    `ax` holds the axes to draw in: of the first panel, or of the first few.
    """
    recorded = [name for name in (rows[0] if rows else {}) if name not in NOT_DRAWN]
    names = sorted(recorded, key=lambda name: name != "loss")[:MOST_PANELS]
    if not names:
        raise ValueError("this fit has no history to draw: it was read from its file; fit anew")
    lines = -(-len(names) // 3)
    count = len(names) if lines == 1 else 3 * lines
    with canvas(ax, count, (PAGE, 2.0 * lines + 0.2), rows=lines) as page:
        for one, name in zip(page.axes, names, strict=False):
            _course(one, rows, name)
        for empty in page.axes[len(names) :]:
            empty.set_visible(False)
    return page.figure


def _course(ax: Axes, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    """One figure of a fit against its steps; one of transitions only where some ended."""
    steps = np.array([row["step"] for row in rows])
    values = np.array([np.atleast_1d(np.asarray(row[name], float)) for row in rows])
    shown = np.isfinite(values)
    if name in OF_TRANSITIONS:
        shown &= np.array([np.atleast_1d(row.get("transitions", 1)) for row in rows]) > 0
    marker = "o" if len(rows) < 3 else ""
    for i, (column, some) in enumerate(zip(values.T, shown.T, strict=True)):
        style = {"color": COLOURS[i % (len(COLOURS) - 1)], "linewidth": 0.9, "marker": marker}
        ax.plot(steps[some], column[some], **style)
    finite = values[shown]
    if len(finite) and finite.min() > 0 and finite.max() > 50 * finite.min():
        ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.set_xlabel("step")
    ax.set_title(name.replace("_", " "))
