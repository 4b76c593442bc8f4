"""Alignment with products on all cores and on one, by width: the reason for `threads.SMALL`.

    python benchmarks/threads.py [--busy N] [--widths 128 512 1024 2048]

`--busy N` runs N processes beside it that do nothing but compute. Writes results/threads.json.
"""

import argparse
import statistics
import subprocess
import sys
from functools import partial
from itertools import pairwise
from unittest import mock

import jax
import numpy as np

import onebasin as ob
from machine import describe, interleaved, record
from onebasin import threads

ROUNDS = 7


def pair(width: int):
    """Random weights of an MLP 784–3×width–10, and a noisy, permuted copy."""
    rng = np.random.default_rng(0)
    sizes = [784, width, width, width, 10]
    params = {
        f"layer{i}": {
            "w": rng.normal(size=(a, b)).astype(np.float32),
            "b": rng.normal(size=b).astype(np.float32),
        }
        for i, (a, b) in enumerate(pairwise(sizes))
    }
    places = {
        f"hidden{i}": [(f"layer{i}/w", 1), (f"layer{i}/b", 0), (f"layer{i + 1}/w", 0)]
        for i in range(3)
    }
    symmetry = ob.Symmetry.by_hand(params, places)
    moved = symmetry.act(symmetry.random(key=jax.random.key(1)), params)
    noisy = jax.tree.map(lambda a: a + 0.7 * rng.normal(size=a.shape).astype(np.float32), moved)
    return params, noisy, symmetry


SETTINGS = {"default": threads.SMALL, "all cores": 0, "one core": 2**31}


def measured(width: int) -> dict[str, dict[str, float]]:
    """Seconds of an alignment with every setting; within a round they take turns."""
    params, noisy, symmetry = pair(width)

    def run(small: int) -> None:
        with mock.patch.object(threads, "SMALL", small):
            ob.align(noisy, to=params, symmetry=symmetry, objective="l2")

    runs = {name: partial(run, small) for name, small in SETTINGS.items()}
    seconds = interleaved(runs, ROUNDS)
    one = seconds["one core"]
    return {
        name: {
            "least": min(own),
            "median": statistics.median(own),
            "median_ratio_to_one_core": statistics.median(
                a / b for a, b in zip(own, one, strict=True)
            ),
        }
        for name, own in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512, 1024, 2048])
    arguments = parser.parse_args()
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)
    ]
    found = {}
    try:
        for width in arguments.widths:
            found[str(width)] = measured(width)
            print(f"{width}: {found[str(width)]}", flush=True)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(record("threads", {f"{arguments.busy} busy loops": {**found, "machine": describe()}}))


if __name__ == "__main__":
    main()
