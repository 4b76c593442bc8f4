"""Figures of sweeps: barriers against one axis of the grid."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onebasin.figures.style import COLOURS, COLUMN, MARKERS, paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 6  # more combinations of the other axes are averaged


def axis_figure(summary: Sequence[Mapping[str, Any]], axis: str, others: Sequence[str]) -> "Figure":
    """Barriers as fitted and aligned against `axis`, a colour per combination of the others.

    Bars are standard errors over the repeats. With more than six combinations the lines are means
    over them, and the bars standard errors of these means.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    places = list(dict.fromkeys(tuple(row[o] for o in others) for row in summary))
    averaged = len(places) > MOST_LINES
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in summary:
        place = ", ".join(f"{o.replace('_', ' ')} {row[o]}" for o in others)
        groups.setdefault("" if averaged else place, []).append(row)
    with paper():
        figure = Figure(figsize=(COLUMN, 2.8), layout="constrained")
        ax = figure.subplots()
        for index, (place, rows) in enumerate(groups.items()):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
            for name, style in (("barrier_as_fitted", "--"), ("barrier_aligned", "-")):
                x, mean, error = _line(rows, axis, name)
                label = place if style == "-" else None
                ax.errorbar(
                    x, mean, yerr=error, color=colour, marker=marker, linestyle=style, label=label
                )
        _scale(ax, sorted({row[axis] for row in summary}))
        ax.set_xlabel(axis.replace("_", " "))
        ax.set_ylabel("barrier (nats per example)")
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        handles = [
            Line2D([], [], color="black", linestyle="--", label="as fitted"),
            Line2D([], [], color="black", linestyle="-", label="aligned"),
        ]
        named = [h for h in ax.get_legend_handles_labels()[0] if len(groups) > 1]
        figure.legend(handles=[*handles, *named], loc="outside upper center", ncols=2)
        if averaged:
            ax.set_title(f"means over {len(places)} combinations of the other axes")
    return figure


def _line(
    rows: Sequence[Mapping[str, Any]], axis: str, name: str
) -> tuple[list[float], list[float], list[float]]:
    """Positions, means and standard errors of one line."""
    xs = sorted({row[axis] for row in rows})
    means, errors = [], []
    for x in xs:
        here = [row for row in rows if row[axis] == x]
        values = np.array([row[name] for row in here], float)
        means.append(float(values.mean()))
        if len(here) == 1:
            errors.append(here[0][f"{name}_stderr"] or 0.0)
        else:
            errors.append(float(values.std(ddof=1) / np.sqrt(len(values))))
    return xs, means, errors


def _scale(ax: Any, xs: Sequence[float]) -> None:
    """A logarithmic axis with ticks at the values, where they are spread over a factor of four."""
    if min(xs) > 0 and max(xs) >= 4 * min(xs):
        ax.set_xscale("log")
    ax.set_xticks(xs)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
