"""Profiles as records keep them, drawn and tabulated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from onebasin.experiments.claims import plus_minus
from onebasin.experiments.experiment import Table
from onebasin.figures.evaluation import profile_figure


@dataclass(frozen=True, eq=False)
class Curve:
    """The summary of a profile with its arrays as arrays: what figures of profiles read."""

    summary: Mapping[str, Any]
    plain: None = field(default=None, init=False)  # plain paths are curves of their own here

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.summary:
            raise AttributeError(name)
        value = self.summary[name]
        return np.array(value, float) if isinstance(value, list) else value

    @property
    def error(self) -> float:
        """The barrier's standard error; 0 where nothing is random."""
        return self.summary["barrier_stderr"] or 0.0

    @property
    def barrier_text(self) -> str:
        return plus_minus(self.summary["barrier"], self.error)

    def clearly_below(self, other: "Curve") -> bool:
        """Whether its barrier is the smaller by two standard errors of the difference."""
        return other.barrier - self.barrier > 2 * (self.error**2 + other.error**2) ** 0.5

    @property
    def least_accuracy(self) -> float:
        """The accuracy of the worse end."""
        return float(min(self.accuracy[0], self.accuracy[-1]))


def curves_figure(curves: Mapping[str, Curve], *, logarithmic: bool = False) -> Figure:
    return profile_figure(curves, logarithmic=logarithmic)  # pyright: ignore[reportArgumentType]


def barrier_table(title: str, curves: Mapping[str, Curve], note: str = "") -> Table:
    """One row for each curve: barrier, where, accuracies."""
    rows = [
        [
            name,
            c.barrier_text,
            f"{c.barrier_t:.2f}" if c.barrier > 0 else "–",
            f"{c.largest_excess:+.4f}",
            f"{c.accuracy[0]:.2%} / {c.accuracy[-1]:.2%}",
            f"{c.accuracy.min():.2%}",
        ]
        for name, c in curves.items()
    ]
    columns = [
        "path",
        "barrier, nats",
        "at t",
        "largest excess inside, nats",
        "accuracy at the ends",
        "lowest accuracy on the way",
    ]
    return Table(title, columns, rows, note)
