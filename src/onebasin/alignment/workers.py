"""Independent matches side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from os import cpu_count
from typing import Any

from threadpoolctl import threadpool_limits

from onebasin.progress import Reporter

SEQUENTIAL = 8  # up to this many members go one at a time


class Workers:
    """Runs a function on many members; each then has one core to itself."""

    def __init__(self, members: int, report: Reporter) -> None:
        self.parallel = members > SEQUENTIAL
        self.report = report
        self.pool = ThreadPoolExecutor(cpu_count()) if self.parallel else None
        # With as many matches as cores, a BLAS that also takes all cores only gets in the way.
        limits: AbstractContextManager[Any] = nullcontext()
        self.limits = threadpool_limits(1) if self.parallel else limits

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        self.limits.__exit__(None, None, None)

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], what: str = "") -> list:
        """The function of every item, in order, reported as `what`."""
        results = map(function, items) if self.pool is None else self.pool.map(function, items)
        done = []
        for result in results:
            done.append(result)
            if what:
                self.report(what, len(done), len(items))
        return done
