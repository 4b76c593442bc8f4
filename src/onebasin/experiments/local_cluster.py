"""Worker processes on this machine, each on its own share of the cores.

XLA sizes its thread pools by the cores that a process may use when it starts, and no variable
limits all of them: small fits in two workers that may each use both cores take half as long again
(`benchmarks/sweep_workers.py`). So a worker is kept to its cores, which BLAS and our own threads
respect too.
"""

import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax
from dask import config
from distributed import Client, LocalCluster, WorkerPlugin

from onebasin.threads import available_cores

LOSSES = 100  # workers that a stage may lose before it is given up: fits resume, so they are cheap
WATCHED = 2.0  # seconds
THREAD_VARIABLES = (
    "NPROC",  # some threads of XLA
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@contextmanager
def local_cluster(workers: int, devices: int | None = None) -> Iterator[Client]:
    """So many workers, with so many devices each; by default as many as this process has."""
    threads = str(max(1, len(available_cores()) // workers))
    environment: dict[str, str] = dict.fromkeys(THREAD_VARIABLES, threads)
    environment["JAX_PLATFORMS"] = jax.default_backend()
    if jax.default_backend() == "cpu":
        environment["JAX_NUM_CPU_DEVICES"] = str(devices or len(jax.devices()))
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        environment["JAX_ENABLE_X64"] = "1"
    settings = {
        "distributed.scheduler.allowed-failures": LOSSES,
        # A worker that is killed must not take the others' finished stages with it.
        "distributed.comm.timeouts.connect": "30s",
        "distributed.nanny.environ": environment,
        "distributed.nanny.pre-spawn-environ": environment,
        "distributed.admin.system-monitor.gil.enabled": False,
    }
    with (
        config.set(settings),
        _variables(environment),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # JAX holds its memory; pausing a worker would not free any
            dashboard_address="127.0.0.1:0",
            silence_logs=50,  # the loss of a worker is expected and handled
        ) as cluster,
        Client(cluster) as client,
        _replaced(cluster),
    ):
        client.register_plugin(OwnCores(workers))
        yield client


@contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """The variables of workers in this process, which they inherit; restored on exit.

    Dask prefers a variable of this process to its own setting, and leaves its settings behind here.
    """
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _replaced(cluster: Any) -> Iterator[None]:
    """Start workers again that are lost for good.

    Dask starts a worker again that dies while it works, and gives it up if it dies while it starts;
    it would then wait for ever for a cluster without workers.
    """
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(WATCHED) and cluster.status.name == "running":
            cluster.scale(len(cluster.worker_spec))

    watcher = threading.Thread(target=watch, name="onebasin-workers", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


class OwnCores(WorkerPlugin):
    """Keeps the workers of this machine apart, each before its first stage."""

    name = "onebasin-own-cores"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def setup(self, worker: Any) -> None:
        if not os.path.isdir("/proc/self/task"):
            return  # macOS: the system decides
        cores = share(available_cores(), self.workers, number_of(worker.name))
        for thread in os.listdir("/proc/self/task"):  # Dask has started some already
            with suppress(OSError):  # one may just have ended, and some systems refuse
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
