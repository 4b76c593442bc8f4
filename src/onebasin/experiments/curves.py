"""Profiles read back from records, in figures and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onebasin.experiments.claims import (
    Measured,
    Removal,
    plus_minus,
    removal,
    share_left,
    words_left,
)
from onebasin.experiments.experiment import Picture, Table
from onebasin.figures.evaluation import SCORES, profile_figure
from onebasin.figures.style import COLOURS, COLUMN, MARKERS, paper

Z = 1.96  # error bars are 95 % intervals


@dataclass(frozen=True, eq=False)
class Curve:
    """The summary of a profile with lists as arrays; has what figures of profiles read."""

    summary: Mapping[str, Any]
    plain: None = field(default=None, init=False)  # the plain path is a curve of its own here

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.summary:
            raise AttributeError(name)
        value = self.summary[name]
        return np.array(value, float) if isinstance(value, list) else value

    @property
    def score_name(self) -> str:
        """The score beside the loss, such as accuracy; empty if there is none."""
        return next((name for name in SCORES if name in self.summary), "")

    @property
    def score(self) -> np.ndarray:
        """The score along the path."""
        return np.array(self.summary[self.score_name], float)

    @property
    def error(self) -> float:
        """The standard error of the barrier; 0 where nothing is random."""
        return self.summary["barrier_stderr"] or 0.0

    @property
    def measured(self) -> Measured:
        """The barrier and its standard error, as keyword arguments of `judge`."""
        return {"value": self.summary["barrier"], "stderr": self.error}

    @property
    def barrier_text(self) -> str:
        return plus_minus(self.summary["barrier"], self.error)

    def clearly_below(self, other: "Curve") -> bool:
        """Whether its barrier is smaller by two standard errors of the difference."""
        return other.barrier - self.barrier > 2 * (self.error**2 + other.error**2) ** 0.5

    def removed_from(self, unaligned: "Curve", largest_share: float | None = None) -> Removal:
        """Whether aligning left no barrier, or at most this share of it."""
        return removal(self.barrier, self.error, unaligned.barrier, largest_share)

    def share_of(self, unaligned: "Curve", digits: int = 1) -> str:
        """What is left of a barrier, in per cent."""
        return share_left(self.barrier, unaligned.barrier, digits)

    def left_of(self, unaligned: "Curve") -> str:
        """The same in words."""
        return words_left(self.barrier, unaligned.barrier)

    @property
    def least_accuracy(self) -> float:
        """The accuracy at the worse end."""
        return float(min(self.accuracy[0], self.accuracy[-1]))

    @property
    def end_accuracies(self) -> str:
        return f"{self.accuracy[0]:.2%} / {self.accuracy[-1]:.2%}"


def brief(before: Curve, after: Curve) -> str:
    """Two barriers in a few words."""
    return f"{before.barrier:.2g} → {after.barrier:.2g} nats ({after.share_of(before)})"


Sweep = Mapping[float, tuple[Curve, Curve]]
"""The curves as fitted and aligned, by the value of what is varied."""


def profile_picture(
    name: str, title: str, curves: Mapping[str, Curve], drawn: Sequence[str] = ()
) -> Picture:
    """The figure of the drawn curves, or of all; its text alternative gives all barriers."""
    alt = ", ".join(f"{k}: barrier {c.barrier_text} nats" for k, c in curves.items())
    shown = {k: c for k, c in curves.items() if k in (drawn or curves)}
    return Picture(name, title, alt, profile_figure(shown))  # pyright: ignore[reportArgumentType]


def barrier_table(title: str, curves: Mapping[str, Curve], note: str = "") -> Table:
    """One row per curve: barrier, its position, accuracies."""
    rows = [
        [
            name,
            c.barrier_text,
            f"{c.barrier_t:.2f}" if c.barrier > 0 else "–",
            f"{c.largest_excess:+.4f}",
            c.end_accuracies,
            f"{c.accuracy.min():.2%}",
        ]
        for name, c in curves.items()
    ]
    columns = [
        "path",
        "barrier, nats",
        "at t",
        "largest interior excess, nats",
        "accuracy at the ends",
        "lowest accuracy on the path",
    ]
    return Table(title, columns, rows, note)


def tick_at(ax: Axes, xs: Sequence[float], label: str) -> None:
    """Make the horizontal axis logarithmic, with ticks at the values of a sweep."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(xs)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    ax.set_xlabel(label)


def sweep_figure(label: str, found: Sweep) -> Figure:
    """Barriers against a number, as fitted and aligned."""
    xs = sorted(found)
    with paper():
        figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
        ax = figure.subplots()
        for which, (words, style) in enumerate((("as fitted", "--"), ("aligned", "-"))):
            curves = [found[x][which] for x in xs]
            ax.errorbar(
                xs,
                [c.barrier for c in curves],
                yerr=[Z * c.error for c in curves],
                label=words,
                color=COLOURS[which],
                marker=MARKERS[which],
                linestyle=style,
            )
        tick_at(ax, xs, label)
        ax.set_ylim(bottom=0)
        ax.set_ylabel("barrier (nats per example)")
        figure.legend(loc="outside upper center", ncols=2)
    return figure
