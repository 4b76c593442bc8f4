"""Independent matches in parallel: on the cores of this process, or by the workers of a cluster.

On a cluster, the matcher, with all that it needs, is sent once to each worker, and tasks of a few
members each follow. Draws in files are not sent: every worker maps the files itself. A match is
the same wherever it runs.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from onebasin.progress import Reporter
from onebasin.threads import available_cores, one_thread_for_products

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
SEQUENTIAL = 8  # up to this many members are matched one at a time
TASKS = 8  # for each worker of a cluster, so that a slow one does not keep the others waiting


class Workers:
    """Runs a function on many members, each on one core."""

    def __init__(self, members: int, report: Reporter, client: "Client | None" = None) -> None:
        self.parallel = members > SEQUENTIAL
        self.report = report
        self.client = client if self.parallel else None
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

    def spread(self, function: Callable[[int], T], items: Sequence[int], what: str) -> list[T]:
        """The same for a function that can be sent to the workers of a cluster, if there is one."""
        if self.client is None or len(items) <= SEQUENTIAL:
            return self.map(function, items, what)
        from distributed import as_completed
        from distributed.protocol.pickle import dumps

        workers = max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))
        size = -(-len(items) // (TASKS * workers))
        parts = [list(items[at : at + size]) for at in range(0, len(items), size)]
        # As bytes, so that what fails on arrival, such as a missing file, fails in the task.
        sent: Any = self.client.scatter(dumps(function), broadcast=True, hash=False)
        futures = [self.client.submit(_each, sent, part, pure=False) for part in parts]
        finished = 0
        for future in as_completed(futures):
            future.result()  # which raises what a worker raised
            finished += len(parts[futures.index(future)])
            self.report(what, finished, len(items))
        gathered: Any = self.client.gather(futures)
        return [result for part in gathered for result in part]


def _each(sent: bytes, items: Sequence[int]) -> list[Any]:
    """The task of a worker: some members, one at a time."""
    from distributed.protocol.pickle import loads

    function: Callable[[int], Any] = loads(sent)
    with one_thread_for_products():
        return [function(item) for item in items]
