"""Where a figure is drawn: on a page of its own, or in axes that the caller has."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onebasin.figures.style import paper

AxesLike: TypeAlias = Axes | Sequence[Axes]
"""Axes to draw in: those of the first panel, or of the first few."""


class Drawing(Figure):
    """A figure that notebooks show by itself, on white in light and dark themes."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The figure at twice the resolution of the page, and its size on the page."""
        written = io.BytesIO()
        with paper():
            self.savefig(written, format="png", dpi=2 * self.dpi, bbox_inches="tight")
        png = written.getvalue()
        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
        return png, {"width": width // 2, "height": height // 2}


@dataclass(frozen=True)
class Canvas:
    """A figure and the axes of its panels."""

    figure: Figure
    axes: list[Axes]
    own: bool
    """Whether the figure was made for these panels alone."""

    def legend(self, *shown: Any, inside: Axes | None = None, **options: Any) -> None:
        """The legend: outside the panels of our own figure, else in the first one."""
        if self.own:
            self.figure.legend(*shown, **options)
        else:
            (inside or self.axes[0]).legend(*shown)


@contextmanager
def canvas(
    ax: AxesLike | None,
    panels: int,
    size: tuple[float, float],
    *,
    rows: int = 1,
    **options: Any,
) -> Iterator[Canvas]:
    """A new figure in our style, or the given axes, whose own style stays.

    Fewer axes than panels draw the first panels only.
    """
    if ax is not None:
        given = [ax] if isinstance(ax, Axes) else list(ax)
        if not 1 <= len(given) <= panels:
            raise ValueError(f"ax holds {len(given)} axes; give from 1 to {panels} of them")
        figure = given[0].get_figure(root=True)
        assert figure is not None
        yield Canvas(figure, given, own=False)
        return
    with paper():
        figure = Drawing(figsize=size, layout="constrained")
        grid = figure.subplots(rows, panels // rows, squeeze=False, **options)
        yield Canvas(figure, list(grid.ravel()), own=True)
