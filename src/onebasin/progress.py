"""Progress of long computations: a bar on a terminal or in a notebook, plain lines elsewhere.

Every function that may take more than two seconds has an argument `progress`: a style, or a
function that is called with the name of the task, the number of steps done, and their total.
"""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

ProgressStyle: TypeAlias = Literal["auto", "bar", "plain", "silent"]
Callback: TypeAlias = Callable[[str, int, int], None]
Progress: TypeAlias = ProgressStyle | Callback
"""A style, or a function of (what, done, total)."""

DELAY = 2.0  # seconds before the first output, unless there are figures to show
INTERVAL = 5.0  # seconds between two plain lines
REDRAW = 0.2  # seconds between two pictures of a bar in a notebook
BESIDE = 25  # columns of a bar, the time left, and the spaces


class Reporter:
    """Receives the progress of a computation: `report(what, done, total, figures)`.

    This one calls the function of the user, if there is one, without the figures. A reporter is a
    `Callback`, so it can be passed as the `progress` of an inner function.
    """

    def __init__(self, callback: Callback | None = None) -> None:
        self.callback = callback

    def __call__(self, what: str, done: int, total: int, figures: str = "") -> None:
        del figures
        if self.callback is not None:
            self.callback(what, done, total)

    def note(self, text: str) -> None:
        """Say something that the user should know; silent here, as a function has no words."""

    def close(self) -> None:
        """Restore the terminal."""


@contextmanager
def reporting(progress: Progress) -> Iterator[Reporter]:
    """The reporter for `progress`, closed on exit.

    >>> seen = []
    >>> with reporting(lambda what, done, total: seen.append((what, done, total))) as report:
    ...     report("draws", 1, 2)
    >>> seen
    [('draws', 1, 2)]
    """
    check_progress(progress)
    if isinstance(progress, Reporter):
        yield progress
        return
    reporter = Reporter(progress) if callable(progress) else _styled(progress)
    try:
        yield reporter
    finally:
        reporter.close()


def check_progress(progress: object) -> None:
    """Refuse a value that is neither a style nor a function, before any work is done."""
    if not callable(progress) and progress not in get_args(ProgressStyle):
        styles = ", ".join(repr(style) for style in get_args(ProgressStyle))
        raise ValueError(f"progress must be one of {styles} or a function, got {progress!r}")


def clock(seconds: float) -> str:
    """A duration as h:mm:ss.

    >>> clock(3723), clock(75)
    ('1:02:03', '1:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _styled(style: ProgressStyle) -> Reporter:
    if style in ("auto", "bar") and _in_notebook():
        return _NotebookBar()
    if style == "auto":
        style = "bar" if sys.stderr.isatty() else "plain"
    return {"bar": _Bar, "plain": _Lines, "silent": Reporter}[style]()


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Lines(Reporter):
    """A line on standard error every few seconds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.last = -INTERVAL
        self.first: dict[str, tuple[float, int]] = {}  # time and step at which each task began

    def __call__(self, what: str, done: int, total: int, figures: str = "") -> None:
        now = time.monotonic() - self.began
        since, start = self.first.setdefault(what, (now, done))
        due = done >= total or now - self.last >= INTERVAL
        if not due or not (figures or now >= DELAY):
            return
        self.last = now
        left = (now - since) / max(done - start, 1) * (total - done)
        line = f"{what}: {done}/{total}  {clock(left)} left  {figures}".rstrip()
        width = shutil.get_terminal_size().columns if sys.stderr.isatty() else len(line)
        print(line[:width], file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(f"note: {text}", file=sys.stderr, flush=True)


class _Bar(Reporter):
    """A progress bar of Rich; one task at a time."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.bar: RichProgress | None = None
        self.task: TaskID | None = None
        self.what = ""

    def __call__(self, what: str, done: int, total: int, figures: str = "") -> None:
        if self.bar is None:
            if not figures and time.monotonic() - self.began < DELAY:
                return
            self.bar = _rich_bar()
            self.show(self.bar)
        if self.task is None or what != self.what:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.what, self.task = what, self.bar.add_task(what, total=total, figures="")
        room = self.bar.console.width - len(what) - 2 * len(str(total)) - BESIDE
        self.bar.update(self.task, completed=done, total=total, figures=fitting(figures, room))
        self.refresh(self.bar)

    def show(self, bar: "RichProgress") -> None:
        bar.start()

    def refresh(self, bar: "RichProgress") -> None:
        """Nothing: on a terminal Rich draws ten times a second."""

    def note(self, text: str) -> None:
        self.close()
        print(f"note: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class _NotebookBar(_Bar):
    """The same bar as an output of a cell, which is replaced; it needs no widgets."""

    def __init__(self) -> None:
        super().__init__()
        self.handle: Any = None
        self.drawn = -math.inf

    def show(self, bar: "RichProgress") -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self.handle = display(bar.get_renderable(), display_id=True)

    def refresh(self, bar: "RichProgress") -> None:
        now = time.monotonic()
        if bar.finished or now - self.drawn >= REDRAW:
            self.drawn = now
            self.handle.update(bar.get_renderable())

    def close(self) -> None:
        if self.bar is not None:
            self.handle.update(self.bar.get_renderable())


def fitting(figures: str, room: int) -> str:
    """As many of the figures, which two spaces separate, as have room.

    >>> fitting("loss 0.51  nll 0.402  accuracy 93%", 22)
    'loss 0.51  nll 0.402'
    """
    kept = figures
    while len(kept) > room:
        kept = kept.rpartition("  ")[0]
    return kept


def _rich_bar() -> "RichProgress":
    from rich import progress
    from rich.console import Console
    from rich.table import Column

    # What is done and the time left keep their room; the figures are cut to what remains.
    whole: Any = {"table_column": Column(no_wrap=True)}
    return progress.Progress(
        progress.TextColumn("{task.description}", **whole),
        progress.MofNCompleteColumn(**whole),
        progress.TimeRemainingColumn(**whole),
        progress.BarColumn(bar_width=12, table_column=Column(ratio=1, max_width=12)),
        progress.TextColumn("{task.fields[figures]}", **whole),
        console=Console(stderr=True),
    )
