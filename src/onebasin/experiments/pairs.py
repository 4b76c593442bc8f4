"""Two variational posteriors of one setting: fitted, aligned by W2, measured before and after."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from onebasin.experiments.claims import Requirement
from onebasin.experiments.common_stages import POSTERIOR, Align, Measure, aligned, fits, measured
from onebasin.experiments.curves import Curve, Sweep, sweep_figure
from onebasin.experiments.experiment import Outcomes, Picture, Table
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import File, Stage
from onebasin.inference.methods import VI


@dataclass(frozen=True)
class Sizes:
    """How finely barriers are measured."""

    points: int = 25
    num_samples: int = 128
    examples: int | None = None
    """Number of test images; None for all of them."""

    def __str__(self) -> str:
        images = "all" if self.examples is None else f"{self.examples:,}"
        return f"{images} test images, {self.points} points × {self.num_samples} draws"


@dataclass(frozen=True)
class Pair:
    """What is fitted, what the fits must reach, and how barriers between them are measured."""

    setting: Setting
    vi: VI
    accuracy: float
    """Test accuracy that the fits must reach; below it nothing is concluded."""
    sizes: Sizes = Sizes()
    together: int = 0
    """Number of fits in one program; 0 for each in its own."""

    def at(self, **changes: Any) -> "Pair":
        """The same with another setting."""
        return replace(self, setting=replace(self.setting, **changes))

    @property
    def measure(self) -> Measure:
        sizes = self.sizes
        return Measure(
            self.setting,
            points=sizes.points,
            num_samples=sizes.num_samples,
            examples=sizes.examples,
        )

    @property
    def conditions(self) -> str:
        return f"{self.setting.title}; {self.vi.epochs} epochs; {self.sizes}"

    def published_scale(self, published: "Pair") -> bool:
        return self.setting.same_size(published.setting) and self.sizes.num_samples >= 128

    def fits(self, count: int = 2) -> list[File]:
        return fits(self.setting, self.vi, count, together=self.together)

    def plan(self) -> dict[str, Stage]:
        """Fit two posteriors, align them by W2, measure before and after."""
        q0, q1 = self.fits()
        moved = aligned(Align(self.setting), q0, q1)
        return {
            "align": moved,
            "before": measured(self.measure, q0, q1),
            "after": measured(self.measure, q0, moved[POSTERIOR]),
        }

    def requirement(self, curves: Iterable[Curve]) -> Requirement:
        """Both ends of every curve must reach the accuracy."""
        worst = min(curve.least_accuracy for curve in curves)
        return Requirement("the fits' test accuracy is", worst, self.accuracy)


def before_after(done: Outcomes) -> tuple[Curve, Curve]:
    return Curve(done["before"].result), Curve(done["after"].result)


def sweep_table(title: str, label: str, found: Mapping[str, tuple[Curve, Curve]]) -> Table:
    """One row per setting of a sweep: the barrier before and after."""
    rows = [
        [
            name,
            before.barrier_text,
            after.barrier_text,
            after.share_of(before),
            before.end_accuracies,
        ]
        for name, (before, after) in found.items()
    ]
    columns = [label, "as fitted, nats", "aligned, nats", "remaining", "test accuracy"]
    return Table(title, columns, rows)


def sweep_picture(name: str, title: str, what: str, found: Sweep, axis: str = "") -> Picture:
    """Barriers before and after against `what`, which is also the label of the axis by default."""
    alt = "; ".join(
        f"{what} {x:g}: {before.barrier_text} as fitted, {after.barrier_text} aligned"
        for x, (before, after) in found.items()
    )
    return Picture(name, title, alt, sweep_figure(axis or what, found))
