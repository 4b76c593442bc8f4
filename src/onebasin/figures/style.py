"""The style of figures: sizes for a column of a paper, and a palette safe for colour blindness."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# The palette of Okabe and Ito without yellow, which is hard to see on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), "-", "-", "-")
GREY = "#888888"
COLUMN = 3.4  # inches: one column of a two-column page
PAGE = 7.0  # inches: the full width

SUFFIXES = (".pdf", ".png", ".svg")

RC: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8,
    "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.linewidth": 0.4, "grid.color": "#dddddd",
    "lines.linewidth": 1.2, "lines.markersize": 3,
    "pdf.fonttype": 42, "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "onebasin",  # the same figure gives the same file
    "savefig.dpi": 200, "figure.dpi": 100,
    # Black on white whatever the style around it, so that it can be read in a dark notebook too.
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "auto",
    "text.color": "black", "axes.labelcolor": "black", "axes.edgecolor": "black",
    "xtick.color": "black", "ytick.color": "black",
}  # fmt: skip


def series(index: int) -> dict[str, Any]:
    """The style of a curve: its colour, marker and dash, so that curves differ without colour too.

    Beyond the number of colours, markers are hollow and most dashes differ.
    """
    again, k = divmod(index, len(COLOURS))
    return {
        "color": COLOURS[k],
        "marker": MARKERS[k],
        "linestyle": DASHES[(k + 2 * again) % len(DASHES)],
        **({"markerfacecolor": "white"} if again else {}),
    }


def band(ax: "Axes", x: np.ndarray, middle: np.ndarray, half: np.ndarray, color: str) -> None:
    """A shaded band of half width `half` around a curve; where that is NaN there is none."""
    half = np.nan_to_num(half)
    ax.fill_between(x, middle - half, middle + half, color=color, alpha=0.2, linewidth=0)


def plain_ticks(axis: "Axis", ticks: Sequence[float]) -> None:
    """Ticks at these values only, labelled by plain numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


@contextmanager
def paper() -> Iterator[None]:
    """The style, while figures are made or written; nothing global is changed."""
    import matplotlib

    with matplotlib.rc_context(RC):
        yield


def check_figure_path(path: str | Path) -> Path:
    """Refuse an unknown suffix or a missing folder, before anything is computed."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure is written as {', '.join(SUFFIXES)}, not as '{path.name}'")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    return path


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write a figure as PDF, PNG or SVG, by its suffix."""
    path = check_figure_path(path)
    with paper():
        # Without a date in the file, the same figure gives the same bytes.
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, bbox_inches="tight", metadata=dates.get(path.suffix, {}))
    return path
