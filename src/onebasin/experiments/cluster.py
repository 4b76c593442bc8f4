"""Stages on a Dask cluster: each is one task under its content key, run once its inputs are there.

A worker performs a stage exactly as a sequential run does, in the run folder, which all workers
must see. So a worker that is lost costs at most the time since its last checkpoint: the scheduler
gives the stage to another one, which resumes it, and the files are the same.

Fits are bit-identical to those of a sequential run if every device holds as many of them. Local
workers get as few devices as that allows, since every device of a CPU adds threads. Every worker
refuses a stage whose key it would compute differently (other data or other code).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebasin.experiments.record import check_same, versions
from onebasin.experiments.runner import Run
from onebasin.experiments.stage import Stage
from onebasin.experiments.yaml_files import read_yaml
from onebasin.progress import reporting

if TYPE_CHECKING:
    from distributed import Client, Future

LOCAL = "local:"
ADDRESSES = ("tcp://", "tls://", "ucx://", "ws://", "wss://")
NEEDED = "install it with pip install 'onebasin[cluster]'"


@contextmanager
def connect(cluster: str, devices: int | None = None) -> "Iterator[Client]":
    """A client of a cluster, closed on exit together with what it started.

    Args:
      cluster: "local:4" for four worker processes on this machine; the address of a scheduler,
        such as "tcp://host:8786"; or a YAML file for dask-jobqueue or dask-kubernetes:
        `class`, for example dask_jobqueue.SLURMCluster, `workers`, and its `options`.
      devices: JAX devices of every worker process on this machine, if it has no GPU
        (`fewest_devices` of the stages); by default as many as this process has.
    """
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise ImportError(f"--cluster needs dask.distributed; {NEEDED}") from None
    if cluster.startswith(LOCAL):
        from onebasin.experiments.local_cluster import local_cluster

        with local_cluster(_count(cluster), devices) as client:
            yield client
    elif cluster.startswith(ADDRESSES):
        try:
            client = distributed.Client(cluster, timeout="20s")
        except OSError as error:
            raise ConnectionError(
                f"no scheduler answers at {cluster}; start one with dask scheduler ({error})"
            ) from None
        with client:
            yield client
    else:
        with _described(distributed, Path(cluster)) as client:
            yield client


def _count(cluster: str) -> int:
    text = cluster.removeprefix(LOCAL)
    if not text.isdecimal() or not 0 < int(text) <= 1024:
        raise ValueError(f"--cluster {cluster} must give a number of workers, as in local:4")
    return int(text)


@contextmanager
def _described(distributed: Any, path: Path) -> "Iterator[Client]":
    """The cluster that a YAML file describes."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}; give local:N, the address of a scheduler, or a YAML file"
        )
    try:
        content = read_yaml(path)
        module, _, name = content["class"].rpartition(".")
        workers, options = int(content.get("workers", 1)), dict(content.get("options", {}))
        make = getattr(import_module(module), name)
    except (KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise ValueError(
            f"{path} must name a class of clusters, such as dask_jobqueue.SLURMCluster, that is "
            f"installed here, with its workers and options ({type(error).__name__}: {error})"
        ) from None
    with make(**options) as cluster, distributed.Client(cluster) as client:
        cluster.scale(workers)
        yield client


def submit(client: "Client", run: Run, stages: Sequence[Stage]) -> "dict[str, Future]":
    """Futures of stages and all that they need, by content key."""
    wanted = [s for last in stages for s in last.lineage()]
    folder = run.out.resolve()
    place = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    away = replace(run, out=folder, quiet=True)
    futures: dict[str, Future] = {}
    for stage in dict.fromkeys(wanted):
        if run.is_done(stage):
            continue
        needed = [f.stage.key for f in stage.inputs.values()]
        futures[stage.key] = client.submit(
            perform,
            *(stage, stage.key, away, versions()),
            *(futures[key] for key in needed if key in futures),
            key=f"{stage.key}-{place}",  # two run folders on one cluster are two tasks
            pure=True,
        )
    return futures


def perform(stage: Stage, key: str, run: Run, made_with: Mapping[str, str], *_needed: str) -> str:
    """Perform a stage on a worker and return its key."""
    check_same(run.out, dict(made_with), versions())
    stage = replace(stage)  # without the key that the client has computed
    if not stage.data_is_here or stage.key != key:
        raise ValueError(
            f"this worker would compute '{stage.title}' from other data or settings than the "
            "client; give all workers the same ONEBASIN_DATA and version"
        )
    if run.store is not None:
        run.out.mkdir(parents=True, exist_ok=True)
    if not run.out.is_dir():
        raise FileNotFoundError(
            f"a worker does not see {run.out}; give --store, or an --out that all workers share"
        )
    run.perform(stage)
    return key


def perform_all(client: "Client", run: Run, stages: Sequence[Stage]) -> None:
    """Perform stages on a cluster; Ctrl-C cancels them, and what was done is kept."""
    from distributed import as_completed

    titles = {s.key: s.title for last in stages for s in last.lineage()}
    futures = submit(client, run, stages)
    if not futures:
        return
    dashboard = f", dashboard at {client.dashboard_link}" if client.dashboard_link else ""
    run.say(f"  {len(futures)} stages on the cluster{dashboard}")
    keys = {future.key: key for key, future in futures.items()}
    try:
        with reporting("silent" if run.quiet else "auto") as report:
            report("stages", 0, len(futures), "starting")
            for done, future in enumerate(as_completed(list(futures.values())), 1):
                title = titles[keys[future.key]]
                if future.status != "finished":
                    raise failure(future, title)
                report("stages", done, len(futures), f"done: {title}")
    except BaseException:
        client.cancel(list(futures.values()))
        raise


def failure(future: "Future", title: str) -> Exception:
    """The error of a stage, named after it."""
    error: Any = future.exception()
    if type(error) in (ValueError, OSError, FileNotFoundError, ImportError, MemoryError):
        return type(error)(f"stage '{title}': {error}")
    if type(error).__name__ == "KilledWorker":
        return MemoryError(
            f"stage '{title}' lost too many workers; give each more memory, or run it alone"
        )
    if isinstance(error, Exception):
        return error
    return InterruptedError(f"stage '{title}' was cancelled; run the command again")
