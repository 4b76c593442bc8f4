"""A sweep of small fits by one worker, by two, and by four that are killed at random.

    python benchmarks/sweep_workers.py --folder FOLDER

One worker with one thread, two of them, and one worker with the threads of both cores take turns,
each time with a grid that has grown by a few repeats, so that other work on the machine slows all
alike. They share a compilation cache, which a first small run fills.
Then four workers run the whole grid while one of them is killed every few seconds. The record has
the times as ratios, the kills, how many stages were begun again, and whether the tables are equal.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import WorkerPlugin

from machine import describe, record
from onebasin.compilation_cache import ENVIRONMENT, settings
from onebasin.experiments.cluster import connect
from onebasin.experiments.grid import Grid, grid_from
from onebasin.experiments.runner import Run
from onebasin.experiments.sweep import run_sweep, stages_of

if TYPE_CHECKING:
    from distributed import Client

FIT = {"data": "digits", "depth": 1, "epochs": 1500, "batch_size": 100}
BARRIER = {"points": 5, "num_samples": 16}
WIDTHS = [32, 64]
KILLS = 20
# The workers of a cluster, whose number decides their threads, and how many of them are kept.
WAYS = {"one": ("local:2", 1), "two": ("local:2", 2), "one, both cores": ("local:1", 1)}


class Starts(WorkerPlugin):
    """Appends the key of every stage that a worker begins to a file.

    Dask also asks again for finished stages whose names a killed worker had in memory; these are
    found in the folder, and are not counted.
    """

    def __init__(self, path: str, stages: str, suffix: int) -> None:
        self.path, self.stages, self.suffix = path, stages, suffix

    def setup(self, worker: Any) -> None:
        del worker

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        del start
        done = os.path.exists(os.path.join(self.stages, str(key)[: -self.suffix], "result.json"))
        if finish == "executing" and not done:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{key}\n")


def grid(repeats: int) -> Grid:
    """Two fits for each width and repeat."""
    return grid_from({"fit": {**FIT, "width": WIDTHS}, "barrier": BARRIER, "repeats": repeats})


def table(folder: Path) -> bytes:
    return (folder / "table.csv").read_bytes()


def in_turns(folder: Path, repeats: int, turns: int) -> dict[str, list[float]]:
    """Seconds of every turn of every way; the grid grows from turn to turn."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(turns):
        for way, (cluster, kept) in WAYS.items():
            with connect(cluster, 1) as client:  # the stages are single fits
                _keep(client, kept)
                began = time.perf_counter()
                run = Run(folder / way, "sweep", quiet=True)
                run_sweep(grid(repeats * (turn + 1) // turns), run, client)
                seconds[way].append(time.perf_counter() - began)
                print(f"turn {turn + 1}, {way}: {seconds[way][-1]:.1f} s", flush=True)
    return seconds


def _keep(client: "Client", workers: int) -> None:
    """End workers until so many are left."""
    started: Any = client.cluster
    started.scale(workers)
    while len(client.scheduler_info()["workers"]) != workers:
        time.sleep(0.1)


def with_kills(folder: Path, repeats: int) -> dict[str, Any]:
    """The whole grid by four workers, of which one is killed every few seconds."""
    folder.mkdir(parents=True)
    starts = folder / "starts.txt"
    every = grid(repeats)
    run = Run(folder / "run", "sweep", quiet=True)
    with connect("local:4", 1) as client:
        client.wait_for_workers(4)
        client.register_plugin(Starts(str(starts), str(run.out / "stages"), len("-12345678")))
        stop, killed = threading.Event(), []
        killer = threading.Thread(target=_kill, args=(client, KILLS, stop, killed))
        killer.start()
        run_sweep(every, run, client)
        stop.set()
        killer.join()
    begun = Counter(starts.read_text().split())
    wanted = {s.key for last in stages_of(list(every.cells())) for s in last.lineage()}
    return {
        "kills": len(killed),
        "stages": len(wanted),
        "stages_begun_again": sum(begun.values()) - len(begun),
        "stages_lost": len(wanted - {path.name for path in (run.out / "stages").iterdir()}),
    }


def _kill(client: "Client", kills: int, stop: threading.Event, killed: list[int]) -> None:
    """Kill a random worker every few seconds."""
    choose = random.Random(0)
    while len(killed) < kills and not stop.wait(choose.uniform(2, 6)):
        nannies: Any = client.cluster.workers.values()  # pyright: ignore[reportOptionalMemberAccess]
        alive = sorted(nanny.pid for nanny in nannies if nanny.pid is not None)
        if not alive:  # all are being started again
            continue
        pid = choose.choice(alive)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)


def measure(folder: Path, repeats: int, turns: int, kills_only: bool) -> dict[str, Any]:
    if kills_only:
        shutil.rmtree(folder / "killed", ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    os.environ[ENVIRONMENT] = str(folder / "compiled")
    os.environ.update(settings(os.environ))  # which the workers inherit
    with connect("local:1", 1) as client:
        run_sweep(grid(1), Run(folder / "warm", "sweep", quiet=True), client)
    found = {} if kills_only else timed(folder, repeats, turns)
    found |= with_kills(folder / "killed", repeats)
    tables = [table(folder / name) for name in (*WAYS, "killed/run")]
    return {**found, "tables_equal": len(set(tables)) == 1}


def timed(folder: Path, repeats: int, turns: int) -> dict[str, Any]:
    seconds = in_turns(folder, repeats, turns)
    ratios = [one / two for one, two in zip(seconds["one"], seconds["two"], strict=True)]
    two = sum(seconds["two"])
    return {
        "fits": 2 * len(WIDTHS) * repeats,
        "seconds_one_worker": sum(seconds["one"]),
        "seconds_two_workers": two,
        "seconds_one_worker_on_both_cores": sum(seconds["one, both cores"]),
        "times_faster_with_two": sum(seconds["one"]) / two,
        "times_faster_than_one_on_both_cores": sum(seconds["one, both cores"]) / two,
        "times_faster_by_turn": ratios,
        "median_of_turns": statistics.median(ratios),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--kills", action="store_true", help="measure the kills again, and keep the times"
    )
    arguments = parser.parse_args()
    found = measure(arguments.folder, arguments.repeats, arguments.turns, arguments.kills)
    print(found)
    record("sweep_workers", {"machine": describe(), **found})
