"""Independent matches in parallel."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

from onebasin.progress import Reporter
from onebasin.threads import available_cores, one_thread_for_products

T = TypeVar("T")
SEQUENTIAL = 8  # up to this many members are matched one at a time


class Workers:
    """Runs a function on many members, each on one core."""

    def __init__(self, members: int, report: Reporter) -> None:
        self.parallel = members > SEQUENTIAL
        self.report = report
        self.pool = ThreadPoolExecutor(len(available_cores())) if self.parallel else None
        # With one match on every core, a multithreaded BLAS would only compete for the cores.
        self.limits = one_thread_for_products() if self.parallel else nullcontext()

    def __enter__(self) -> "Workers":
        self.limits.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        self.limits.__exit__(None, None, None)

    def map(self, function: Callable[[int], T], items: Sequence[int], what: str = "") -> list[T]:
        """The results of the function for all items, in order, with progress reported as `what`."""
        results = map(function, items) if self.pool is None else self.pool.map(function, items)
        done = []
        for result in results:
            done.append(result)
            if what:
                self.report(what, len(done), len(items))
        return done
