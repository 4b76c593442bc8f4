"""How far a fit has come: a Rich bar on a terminal, plain lines elsewhere, or nothing."""

import sys
import time
from typing import Any, Literal, Protocol

import numpy as np

Style = Literal["auto", "bar", "plain", "silent"]
STYLES = ("auto", "bar", "plain", "silent")
PLAIN_INTERVAL = 5.0  # seconds between two plain lines


class Progress(Protocol):
    def update(self, row: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def make_progress(style: Style, label: str, steps: int, done: int) -> Progress:
    if style == "auto":
        style = "bar" if sys.stderr.isatty() else "plain"
    if style == "bar":
        return _Bar(label, steps, done)
    return _Plain(label, steps, done) if style == "plain" else _Silent()


def check_style(style: str) -> None:
    if style not in STYLES:
        raise ValueError(f"progress must be one of {', '.join(STYLES)}, got {style!r}")


def describe(row: dict[str, Any]) -> str:
    """The figures of a history row as text; several lanes as their mean.

    Trajectories can be longer than a chunk: a row in which none ended says nothing of them.
    """
    words = []
    unsaid = {"step", "seconds"}
    if not np.any(row.get("transitions", 1)):
        unsaid |= {"transitions", "acceptance", "divergences"}
    for name, value in row.items():
        if name in unsaid:
            continue
        mean = float(np.mean(value))
        if name == "accuracy":
            words.append(f"accuracy {100 * mean:.2f}%")
        else:
            words.append(f"{name} {mean:.4g}")
    return "  ".join(words)


class _Silent:
    def update(self, row: dict[str, Any]) -> None:
        del row

    def close(self) -> None:
        pass


class _Plain:
    def __init__(self, label: str, steps: int, done: int) -> None:
        self.label, self.steps, self.first = label, steps, done
        self.began = time.monotonic()
        self.last = -PLAIN_INTERVAL

    def update(self, row: dict[str, Any]) -> None:
        elapsed = time.monotonic() - self.began
        done = row["step"]
        if elapsed - self.last < PLAIN_INTERVAL and done < self.steps:
            return
        self.last = elapsed
        left = elapsed / max(done - self.first, 1) * (self.steps - done)
        line = f"{self.label}: step {done}/{self.steps}  {describe(row)}  {_clock(left)} left"
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, label: str, steps: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.bar.start()
        self.task = self.bar.add_task(label, total=steps, completed=done, figures="compiling")

    def update(self, row: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=row["step"], figures=describe(row))

    def close(self) -> None:
        self.bar.stop()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
