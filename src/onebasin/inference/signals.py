"""Ctrl-C and termination as a request that the loop answers between two chunks."""

import signal
import threading
from types import FrameType
from typing import Any


class FitInterrupted(KeyboardInterrupt):
    """A fit was stopped by a signal; the message says how to resume it.

    `exit_code` is what a shell expects of a program ended by that signal (130 for Ctrl-C).
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopRequest:
    """Catches SIGINT and SIGTERM while a fit runs; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Only the main thread can set handlers; in other threads the caller's stay in force.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
