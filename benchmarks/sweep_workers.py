"""A sweep of small fits by one worker, by two, and by four that are killed at random.

    python benchmarks/sweep_workers.py --folder FOLDER

The three runs have folders of their own and share a compilation cache, which a first small run
fills. The record has their times as ratios, the number of kills, and whether the tables are equal.
"""

import argparse
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from machine import describe, record
from onebasin.experiments.cluster import connect
from onebasin.experiments.grid import Grid, grid_from
from onebasin.experiments.runner import Run
from onebasin.experiments.sweep import run_sweep

FIT = {"data": "digits", "depth": 1, "epochs": 200, "batch_size": 100}
BARRIER = {"points": 5, "num_samples": 16}
WIDTHS = [16, 32]
KILLS = 20


def grid(repeats: int) -> Grid:
    """Two fits for each width and repeat."""
    return grid_from({"fit": {**FIT, "width": WIDTHS}, "barrier": BARRIER, "repeats": repeats})


def sweep(folder: Path, repeats: int, workers: int, kills: int = 0) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    run = Run(folder, "sweep", quiet=True)
    with connect(f"local:{workers}") as client:
        client.wait_for_workers(workers)
        stop, killed = threading.Event(), []
        killer = threading.Thread(target=_kill, args=(client, kills, stop, killed))
        began = time.perf_counter()
        killer.start()
        run_sweep(grid(repeats), run, client)
        seconds = time.perf_counter() - began
        stop.set()
        killer.join()
    table = (folder / "table.csv").read_bytes()
    return {"seconds": seconds, "kills": len(killed), "table": table}


def _kill(client: Any, kills: int, stop: threading.Event, killed: list[int]) -> None:
    """Kill a random worker every few seconds."""
    choose = random.Random(0)
    while len(killed) < kills and not stop.wait(choose.uniform(1, 4)):
        try:
            pids = client.run(os.getpid, on_error="ignore")
            pid = choose.choice(sorted(pids.values()))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        except (OSError, IndexError, TypeError):
            continue  # the workers are just being replaced


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    sweep(folder / "warm", 1, 1)
    one = sweep(folder / "one", repeats, 1)
    two = sweep(folder / "two", repeats, 2)
    killed = sweep(folder / "killed", repeats, 4, KILLS)
    return {
        "fits": 2 * len(WIDTHS) * repeats,
        "seconds_one_worker": one["seconds"],
        "seconds_two_workers": two["seconds"],
        "times_faster_with_two": one["seconds"] / two["seconds"],
        "kills": killed["kills"],
        "tables_equal": one["table"] == two["table"] == killed["table"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=16)
    arguments = parser.parse_args()
    found = measure(arguments.folder, arguments.repeats)
    print(found)
    record("sweep_workers", {"machine": describe(), **found})
