"""A sweep of small fits by one worker, by two, and by four that are killed at random.

    python benchmarks/sweep_workers.py --folder FOLDER

One worker and two take turns, each time with a grid that has grown by a few repeats, so that other
work on the machine slows both alike. They share a compilation cache, which a first small run fills.
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

FIT = {"data": "digits", "depth": 1, "epochs": 400, "batch_size": 100}
BARRIER = {"points": 5, "num_samples": 16}
WIDTHS = [32, 64]
KILLS = 20


class Starts(WorkerPlugin):
    """Appends the key of every stage that a worker begins to a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def setup(self, worker: Any) -> None:
        del worker

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        del start
        if finish == "executing":
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{key}\n")


def grid(repeats: int) -> Grid:
    """Two fits for each width and repeat."""
    return grid_from({"fit": {**FIT, "width": WIDTHS}, "barrier": BARRIER, "repeats": repeats})


def table(folder: Path) -> bytes:
    return (folder / "table.csv").read_bytes()


def in_turns(folder: Path, repeats: int, turns: int) -> dict[int, list[float]]:
    """Seconds of every turn of one and of two workers; the grid grows from turn to turn."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(turns):
        for workers, taken in seconds.items():
            with connect(f"local:{workers}") as client:
                client.wait_for_workers(workers)
                began = time.perf_counter()
                run = Run(folder / str(workers), "sweep", quiet=True)
                run_sweep(grid(repeats * (turn + 1) // turns), run, client)
                taken.append(time.perf_counter() - began)
                print(f"turn {turn + 1}, {workers} workers: {taken[-1]:.1f} s", flush=True)
    return seconds


def with_kills(folder: Path, repeats: int) -> dict[str, Any]:
    """The whole grid by four workers, of which one is killed every few seconds."""
    folder.mkdir(parents=True)
    starts = folder / "starts.txt"
    every = grid(repeats)
    run = Run(folder / "run", "sweep", quiet=True)
    with connect("local:4") as client:
        client.wait_for_workers(4)
        client.register_plugin(Starts(str(starts)))
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
        pid = choose.choice(sorted(nanny.pid for nanny in nannies if nanny.pid is not None))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)


def measure(folder: Path, repeats: int, turns: int) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    os.environ[ENVIRONMENT] = str(folder / "compiled")
    os.environ.update(settings(os.environ))  # which the workers inherit
    with connect("local:1") as client:
        run_sweep(grid(1), Run(folder / "warm", "sweep", quiet=True), client)
    seconds = in_turns(folder, repeats, turns)
    killed = with_kills(folder / "killed", repeats)
    tables = [table(folder / name) for name in ("1", "2", "killed/run")]
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {
        "fits": 2 * len(WIDTHS) * repeats,
        "seconds_one_worker": sum(seconds[1]),
        "seconds_two_workers": sum(seconds[2]),
        "times_faster_with_two": sum(seconds[1]) / sum(seconds[2]),
        "times_faster_by_turn": ratios,
        "median_of_turns": statistics.median(ratios),
        **killed,
        "tables_equal": len(set(tables)) == 1,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--turns", type=int, default=4)
    arguments = parser.parse_args()
    found = measure(arguments.folder, arguments.repeats, arguments.turns)
    print(found)
    record("sweep_workers", {"machine": describe(), **found})
