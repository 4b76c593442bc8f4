"""Two posteriors of one setting, before and after alignment: what the sweeps repeat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from onebasin.experiments.claims import Requirement
from onebasin.experiments.common_stages import POSTERIOR, Align, Measure, aligned, fits, measured
from onebasin.experiments.curves import Curve
from onebasin.experiments.experiment import Outcomes, Table
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import Stage
from onebasin.figures.style import COLOURS, COLUMN, MARKERS, paper
from onebasin.inference.methods import VI

Z = 1.96  # bands and bars are 95 % intervals


@dataclass(frozen=True)
class Sizes:
    """How finely barriers are measured."""

    points: int = 25
    num_samples: int = 128
    examples: int | None = None
    """Test images; all of them if None."""

    def measure(self, setting: Setting) -> Measure:
        return Measure(
            setting, points=self.points, num_samples=self.num_samples, examples=self.examples
        )

    def __str__(self) -> str:
        images = "all" if self.examples is None else f"{self.examples:,}"
        return f"{images} test images, {self.points} points × {self.num_samples} draws"


def pair(setting: Setting, vi: VI, sizes: Sizes, *, together: int) -> dict[str, Stage]:
    """Fit two posteriors, align them by w2, measure before and after."""
    q0, q1 = fits(setting, vi, 2, together=together)
    moved = aligned(Align(setting), q0, q1)
    measure = sizes.measure(setting)
    return {
        "align": moved,
        "before": measured(measure, q0, q1),
        "after": measured(measure, q0, moved[POSTERIOR]),
    }


def before_after(done: Outcomes) -> tuple[Curve, Curve]:
    return Curve(done["before"].result), Curve(done["after"].result)


def requirement(curves: Sequence[Curve], least: float) -> Requirement:
    """Both ends of every curve must classify this share of the test images right."""
    worst = min(curve.least_accuracy for curve in curves)
    return Requirement("the fits' test accuracy is", worst, least)


def pair_table(title: str, label: str, found: Mapping[str, tuple[Curve, Curve]]) -> Table:
    rows = [
        [
            name,
            before.barrier_text,
            after.barrier_text,
            f"{after.barrier / before.barrier:.1%}" if before.barrier > 0 else "–",
            f"{before.accuracy[0]:.2%} / {before.accuracy[-1]:.2%}",
        ]
        for name, (before, after) in found.items()
    ]
    columns = [label, "as fitted, nats", "aligned, nats", "left", "test accuracy"]
    return Table(title, columns, rows)


def pair_figure(
    label: str,
    lines: Mapping[str, Mapping[Any, tuple[Curve, Curve]]],
    *,
    logarithmic: bool = True,
) -> Figure:
    """Barriers against a number, as fitted and aligned; one pair of lines for each name."""
    with paper():
        figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
        ax: Any = figure.subplots()
        for i, (name, found) in enumerate(lines.items()):
            xs = sorted(found)
            for which, style in ((0, "--"), (1, "-")):
                curves = [found[x][which] for x in xs]
                words = ("as fitted", "aligned")[which]
                ax.errorbar(
                    xs,
                    [c.barrier for c in curves],
                    yerr=[Z * c.error for c in curves],
                    label=f"{name}, {words}" if name else words,
                    color=COLOURS[(2 * i + which) % len(COLOURS)],
                    marker=MARKERS[(2 * i + which) % len(MARKERS)],
                    linestyle=style,
                )
        if logarithmic:
            ax.set_xscale("log", base=2)
            ax.set_xticks(sorted({x for found in lines.values() for x in found}))
            ax.xaxis.set_major_formatter("{x:g}")
            ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel(label)
        ax.set_ylabel("barrier (nats per example)")
        figure.legend(loc="outside upper center", ncols=2)
    return figure
