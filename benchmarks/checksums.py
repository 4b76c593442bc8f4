"""What checksums cost: reading a file of draws with them, and the same file without.

    python benchmarks/checksums.py [--gigabytes 1] [--rounds 5]

Every round reads both files twice: from the disk (the kernel is asked to drop its copy first) and
from the page cache. Also timed: mapping the draws, which checks nothing, and `verify_tensors`,
which checks mapped draws on request. On a machine that does other work, the time of a read is
mostly waiting, so the computing time of the process is kept beside it: the bytes come through the
kernel, whose copying counts as computing. Writes results/checksums.json.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

import onebasin as ob
from machine import RESULTS, describe
from onebasin.tensor_files import INTEGRITY, NoChecksumsWarning, verify_tensors

SHAPES = {"first": (784, 512), "second": (512, 512), "last": (512, 10)}


def write_files(folder: Path, size: float) -> tuple[Path, Path]:
    """A file of draws of about `size` bytes, and the same as the first format had it."""
    each = sum(4 * int(np.prod(shape)) for shape in SHAPES.values())
    count = round(size / each)
    rng = np.random.default_rng(0)
    draws = {n: rng.standard_normal((count, *s), np.float32) for n, s in SHAPES.items()}
    path = ob.save(folder / "draws.safetensors", ob.Samples(draws))
    plain = folder / "plain.safetensors"
    with safe_open(path, framework="numpy") as file:
        header = {k: v for k, v in file.metadata().items() if k != INTEGRITY}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, plain, {**header, "version": "1"})
    return path, plain


def forget(path: Path) -> None:
    """Ask the kernel to drop its copy of a file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_of(work: Callable[[], Any]) -> tuple[float, float]:
    """Time that passed, and time that this process computed."""
    began, computing = time.perf_counter(), time.process_time()
    jax.block_until_ready(jax.tree.leaves(work()))
    return time.perf_counter() - began, time.process_time() - computing


def rounds_of(path: Path, plain: Path, rounds: int) -> Iterator[dict[str, tuple[float, float]]]:
    """Seconds of every kind of reading, in each round."""
    for number in range(rounds + 1):
        found = {}
        for name, file in (("without", plain), ("with", path)):
            for place in ("disk", "cache"):
                if place == "disk":
                    forget(file)
                taken = seconds_of(lambda file=file: ob.load(file).draws)
                found[f"{place}, {name}"] = taken
        found["mapped"] = seconds_of(lambda: ob.load(path, mapped=True))
        found["verified"] = seconds_of(lambda: verify_tensors(path).shapes)
        print(number, {name: [round(s, 3) for s in pair] for name, pair in found.items()})
        if number:  # the first one warms up
            yield found


def record_of(size: int, rounds: list[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Medians over rounds, of the time that passed and of the time spent computing."""
    load = [round(value, 1) for value in os.getloadavg()]
    record: dict[str, Any] = {"machine": describe(), "load": load, "bytes": size}
    for number, kind in enumerate(("seconds", "computing seconds")):
        each = {name: [round(own[name][number], 4) for own in rounds] for name in rounds[0]}
        median = {name: statistics.median(all_) for name, all_ in each.items()}
        shares = {
            place: round(median[f"{place}, with"] / median[f"{place}, without"] - 1, 4)
            for place in ("disk", "cache")
        }
        record[kind] = {"each": each, "median": median, "share of checksums": shares}
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files are made")
    parser.add_argument("--out", type=Path, default=RESULTS / "checksums.json")
    given = parser.parse_args()
    warnings.simplefilter("ignore", NoChecksumsWarning)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path, plain = write_files(Path(folder), 1e9 * given.gigabytes)
        size = path.stat().st_size
        rounds = []
        for found in rounds_of(path, plain, given.rounds):
            rounds.append(found)
            record = record_of(size, rounds)
            given.out.write_text(json.dumps(record, indent=1) + "\n")
            print({k: v["share of checksums"] for k, v in record.items() if "seconds" in k})


if __name__ == "__main__":
    main()
