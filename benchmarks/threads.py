"""Alignment with products on all cores and on one, by width: the reason for `threads.SMALL`.

    python benchmarks/threads.py [--busy N] [--widths 128 512 1024 2048]

`--busy N` runs N processes beside it that do nothing but compute. Prints seconds, least and median.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from unittest import mock

import jax
import numpy as np

import onebasin as ob
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


def measured(width: int) -> dict[str, list[float]]:
    params, noisy, symmetry = pair(width)
    seconds: dict[str, list[float]] = {"all cores": [], "one core": []}
    for _ in range(ROUNDS):
        for name, small in (("all cores", 0), ("one core", 2**31)):
            with mock.patch.object(threads, "SMALL", small):
                began = time.perf_counter()
                ob.align(noisy, to=params, symmetry=symmetry, objective="l2")
                seconds[name].append(time.perf_counter() - began)
    return {n: [round(min(s), 4), round(statistics.median(s), 4)] for n, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512, 1024, 2048])
    arguments = parser.parse_args()
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)
    ]
    try:
        for width in arguments.widths:
            sys.stdout.write(f"{width}: {json.dumps(measured(width))}\n")
            sys.stdout.flush()
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    main()
