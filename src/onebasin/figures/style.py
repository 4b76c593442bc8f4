"""How figures look: sizes for a column of a paper, colours that everyone can tell apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Okabe and Ito's palette, without the yellow that vanishes on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), "-", "-", "-")
COLUMN = 3.4  # inches: one column of a two-column page
PAGE = 7.0  # inches: the whole width

SUFFIXES = (".pdf", ".png", ".svg")

RC: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
    "legend.frameon": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "onebasin",  # the same figure is the same file
    "savefig.dpi": 200,
    "figure.dpi": 100,
}


def series(index: int) -> dict[str, Any]:
    """The look of a curve: colour, marker and dash differ, so that it is known without colour.

    Past as many curves as there are colours, markers are hollow and most dashes others.
    """
    again, k = divmod(index, len(COLOURS))
    return {
        "color": COLOURS[k],
        "marker": MARKERS[k],
        "linestyle": DASHES[(k + 2 * again) % len(DASHES)],
        **({"markerfacecolor": "white"} if again else {}),
    }


@contextmanager
def paper() -> Iterator[None]:
    """The style, for as long as figures are made or written; nothing global is changed."""
    import matplotlib

    with matplotlib.rc_context(RC):
        yield


def check_figure_path(path: str | Path) -> Path:
    """Refuse a name whose suffix is no format of ours, before anything is computed."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure is written as {', '.join(SUFFIXES)}, not as '{path.name}'")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    return path


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure as PDF, PNG or SVG, by its suffix."""
    path = check_figure_path(path)
    with paper():
        # No date in the file: the same figure is the same bytes.
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else metadata
        figure.savefig(path, bbox_inches="tight", metadata=metadata)
    return path
