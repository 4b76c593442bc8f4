"""How far permutations learned on the path lower the barrier, and what is left of it.

    python benchmarks/learned_alignment.py --cache FOLDER resnet16:0-1 resnet16:2-3 resnet32:0-1

A pair is two of the fits of `alignment_pairs.py`, by number; fits that the folder lacks are made.
Each row is one way to align the second with the first, on the geodesic and the repaired path, and
with --norms also with the norms of scale-free units kept, without and with repair. The barriers are
on test images, by E of the loss of the predictive, and of the networks of the mean parameters
(without noise). Only training images are learned from. Rows that the record has are not measured
again, unless --again names them; rows of other fits, as their digests say, are dropped.

A posterior file of one's own can be measured, too: a name of `FILES` and --files, as in

    onebasin fit vi --data cifar10 --network resnet20 --width 16 --prior-variance 0.01 \
        --batch-size 64 --epochs 14 --runs 2 --seed 0 --out warm.safetensors
    python benchmarks/learned_alignment.py --files warm-0.safetensors warm-1.safetensors \
        --data cifar10 --samples 32 cifar10-resnet16-warm
"""

import argparse
import json
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax

from alignment_pairs import fitted, make_pair, problem_of
from machine import RESULTS, describe, record
from onebasin.alignment import Activations, PathLoss, align
from onebasin.data import Dataset, load_dataset
from onebasin.evaluation.profiles import Profile, profile
from onebasin.networks.described import DescribedNetwork
from onebasin.paths import geodesic, keep_norms, repair
from onebasin.posterior import Posterior, load, read_header
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry, find_symmetry

POINTS, IMAGES = 5, 500  # points on the path; images whose statistics a repair restores
WAYS = ("as fitted", "w2", "after", "all sites", "learned", "learned, norms kept")


@dataclass(frozen=True)
class Task:
    """Two posteriors, and what is needed to align and measure them."""

    q0: Posterior
    q1: Posterior
    problem: Problem
    symmetry: Symmetry
    fits: list[str]
    """Digests of the two files."""


def digests(files: Iterable[Path]) -> list[str]:
    return [sha256(file.read_bytes()).hexdigest()[:16] for file in files]


def task_of(name: str, cache: Path) -> Task:
    network, _, runs = name.partition(":")
    first, second = (int(run) for run in (runs or "0-1").split("-"))
    pair = make_pair(network, cache, (first, second))
    q0, q1 = pair.posteriors
    fits = digests(fitted(network, run, cache) for run in (first, second))
    return Task(q0, q1, problem_of(network), pair.symmetry, fits)


def task_of_files(files: list[Path], data: Any) -> Task:
    q0, q1 = (load(file) for file in files)
    header = read_header(files[0])
    network = DescribedNetwork.from_config(header.network, files[0], header.params_shapes())
    params = q0.moments()[0]
    problem = Problem(network.apply, lambda key: params, load_dataset(data))  # noqa: ARG005
    return Task(q0, q1, problem, find_symmetry(problem), digests(files))


def measure(task: Task, way: str, samples: int, steps: int, norms: bool) -> dict[str, Any]:
    began, used = time.perf_counter(), time.process_time()
    images = task.problem.x[:IMAGES]
    units = Activations(task.problem, images, correlation=True)
    objective = {
        "w2": "w2",
        "after": Activations(task.problem, images, correlation=True, sites="after"),
        "all sites": units,
        "learned": PathLoss(task.problem, steps=steps),
        "learned, norms kept": PathLoss(task.problem, steps=steps, keep_norms=True),
    }.get(way)
    q1, row = task.q1, {}
    if objective is not None:
        found = align(
            q1, to=task.q0, symmetry=task.symmetry, objective=objective, key=jax.random.key(0)
        )
        q1 = found.posterior
        row = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - used,
            "starts": {start.name: start.score for start in found.starts},
            "trace": list(found.trace) if way.startswith("learned") else [],
        }
    plain = geodesic(task.q0, q1)
    paths: dict[str, Any] = {
        "repaired": repair(plain, task.problem, images, symmetry=task.symmetry)
    }
    if norms:
        kept = keep_norms(plain, task.problem, task.problem.x[:8], symmetry=task.symmetry)
        if kept.kept:
            paths["norms kept"] = kept
            paths["both"] = repair(kept, task.problem, images, symmetry=task.symmetry)
    assert isinstance(task.problem.data, Dataset)
    known: Profile | None = None
    for name, path in paths.items():
        profiled = profile(
            path,
            task.problem,
            task.problem.data.test,
            key=jax.random.key(0),
            points=POINTS,
            num_samples=samples,
            plain=known,
        )
        if known is None:
            known = profiled.plain
            assert known is not None
            row["plain"] = _barrier(known)
            row["accuracy_of_ends"] = [float(known.accuracy[0]), float(known.accuracy[-1])]
        row[name] = _barrier(profiled)
    row["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return row


def _barrier(found: Profile) -> dict[str, float]:
    return {
        "barrier": found.barrier,
        "stderr": found.barrier_stderr,
        "t": found.barrier_t,
        "mean_network": found.mean_barrier,
        "lowest_accuracy": float(found.accuracy.min()),
    }


def rows_of(record: Path, name: str, task: Task) -> dict[str, Any]:
    """The recorded rows of a pair that were measured with these fits."""
    found = json.loads(record.read_text()).get(name, {}) if record.exists() else {}
    return found["rows"] if found.get("fits") == task.fits else {}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("names", nargs="+", help="pairs such as resnet16:0-1")
    parser.add_argument("--cache", type=Path, help="folder of the fits")
    parser.add_argument("--files", type=Path, nargs=2, help="two posterior files instead")
    parser.add_argument("--data", default="cifar10", help="the data set of --files")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--norms", action="store_true", help="also keep the norms of units")
    parser.add_argument("--again", action="store_true", help="measure rows that are recorded")
    arguments = parser.parse_args()
    if arguments.files is None and arguments.cache is None:
        parser.error("give --cache, or two posterior files with --files")
    path = RESULTS / "learned_alignment.json"
    for each in arguments.names:
        if arguments.files is not None:
            task = task_of_files(arguments.files, arguments.data)
        else:
            task = task_of(each, arguments.cache)
        for way in arguments.ways:
            if way in rows_of(path, each, task) and not arguments.again:
                continue
            row = measure(task, way, arguments.samples, arguments.steps, arguments.norms)
            rows = rows_of(path, each, task) | {way: row}
            sizes = {"points": POINTS, "samples": arguments.samples, "images_to_match": IMAGES}
            pair = {"sizes": sizes, "machine": describe(), "fits": task.fits, "rows": rows}
            record("learned_alignment", {each: pair})
            print(each, way, {k: v for k, v in row.items() if k != "trace"}, flush=True)
