"""Every local worker on its own share of the cores.

XLA sizes its thread pools by the cores that a process may use when it starts, and no variable
limits all of them: small fits in two workers that may each use both cores take half as long again
(`benchmarks/sweep_workers.py`). So a worker is kept to its cores, which BLAS and our own threads
respect too.
"""

import os
import zlib
from typing import Any

from distributed import WorkerPlugin

from onebasin.threads import available_cores


class OwnCores(WorkerPlugin):
    """Keeps the workers of this machine apart, each before its first stage."""

    name = "onebasin-own-cores"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def setup(self, worker: Any) -> None:
        if not hasattr(os, "sched_setaffinity"):
            return  # macOS: the system decides
        cores = share(available_cores(), self.workers, number_of(worker.name))
        for thread in os.listdir("/proc/self/task"):  # Dask has started some already
            os.sched_setaffinity(int(thread), cores)


def share(cores: list[int], workers: int, number: int) -> list[int]:
    """The cores of one of several workers: as many for each, or one in turn if there are too few.

    >>> share([0, 1, 2, 3, 4], workers=2, number=1)
    [2, 3]
    >>> share([0, 1], workers=4, number=3)
    [1]
    """
    each = max(1, len(cores) // workers)
    first = number % workers * each % len(cores)
    return cores[first : first + each]


def number_of(name: Any) -> int:
    """Dask numbers the workers of a local cluster; one of another name gets any number."""
    text = str(name)
    return int(text) if text.isdecimal() else zlib.crc32(text.encode())
