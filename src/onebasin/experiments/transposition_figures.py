"""Figures of the studies of transpositions: planted, along the line, and during training."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onebasin.evaluation.transposition_studies import (
    Dynamics,
    Interpolated,
    Planted,
    Record,
    mean_and_std,
)
from onebasin.figures.style import COLUMN, GREY, PAGE, band, paper, plain_ticks, series


def planted_figure(records: Sequence[Planted]) -> Figure:
    """NoT found, distance and barrier after training against the NoT planted, ± 1σ over runs."""
    _check_some(records)
    with paper():
        figure = Figure(figsize=(PAGE, 2.6), layout="constrained")
        counts, distances, barriers = figure.subplots(1, 3)
        largest = max(record.planted for record in records)
        counts.plot([0, largest], [0, largest], color=GREY, linewidth=0.6, label="planted")
        _curve(counts, mean_and_std(records, "planted", "found"), "found", 1)
        counts.set_ylabel("transpositions found")
        counts.legend()
        for ax, what in ((distances, "distance"), (barriers, "barrier")):
            _curve(ax, mean_and_std(records, "planted", f"{what}_before"), "as trained", 0)
            _curve(ax, mean_and_std(records, "planted", f"{what}_after"), "rebased", 1)
        distances.set_ylabel(r"distance $\|W_0 - W_1\|$")
        barriers.set_ylabel("loss barrier (nats per example)")
        for ax in (distances, barriers):
            ax.set_ylim(0, None)
        for ax in (counts, distances, barriers):
            ax.set_xlabel("transpositions planted")
        figure.legend(*distances.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def interpolation_figure(records: Sequence[Interpolated]) -> Figure:
    """NoT of the permutation that rebases the interpolation onto W0, ± 1σ over runs."""
    _check_some(records)
    with paper():
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        ax = figure.subplots()
        names = {"permuted": "$W_1$ a permuted $W_0$", "independent": "$W_1$ trained by itself"}
        for i, kind in enumerate(dict.fromkeys(record.kind for record in records)):
            own = [record for record in records if record.kind == kind]
            _curve(ax, mean_and_std(own, "t", "transpositions"), names.get(kind, kind), i)
        ax.set_xlim(0, 1)
        ax.set_xlabel(r"position $\lambda$ between $W_0$ and $W_1$")
        ax.set_ylabel(r"transpositions to rebase $W_\lambda$ onto $W_0$")
        ax.legend()
    return figure


def dynamics_figure(records: Sequence[Dynamics]) -> Figure:
    """Loss of W0, W1 and points between them during training, as trained and rebased."""
    _check_some(records)
    ts = records[0].t
    ends, inside = {0: "$W_0$", len(ts) - 1: "$W_1$"}, range(1, len(ts) - 1)
    with paper():
        figure = Figure(figsize=(PAGE, 2.9), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, name in zip(axes, ("before", "after"), strict=True):
            shown = [*inside, *ends] if len(ts) <= 7 else [len(ts) // 2, *ends]
            for i, k in enumerate(shown):
                label = ends.get(k, rf"$\lambda = {ts[k]:.2g}$")
                reader = lambda record, name=name, k=k: getattr(record, name)[k]
                _curve(ax, mean_and_std(records, "epoch", reader), label, i)
            # Training starts at epoch 0: linear up to the first step after it, then logarithmic.
            first = min(record.epoch for record in records if record.epoch > 0)
            ax.set_xscale("symlog", linthresh=first, linscale=0.3)
            ax.set_xlim(0, max(record.epoch for record in records))
            ticks = (0, 0.01, 0.1, 1, 10, 100, 1000)
            plain_ticks(ax.xaxis, [t for t in ticks if t == 0 or t > 2 * first])  # kept apart
            ax.set_yscale("log")
            plain_ticks(ax.yaxis, (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20))
            ax.set_xlabel("epochs of training")
            ax.set_title("as trained" if name == "before" else "$W_1$ rebased onto $W_0$")
        axes[0].set_ylabel("negative log likelihood\n(nats per example)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _curve(ax: Axes, curve: tuple[np.ndarray, np.ndarray, np.ndarray], name: str, i: int) -> None:
    x, mean, std = curve
    style = series(i)
    ax.plot(x, mean, label=name, **style)
    if np.isfinite(std).any():
        band(ax, x, mean, std, style["color"])


def _check_some(records: Sequence[Record]) -> None:
    if not records:
        raise ValueError("there is no record to draw; give at least one")
