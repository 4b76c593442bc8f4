"""The cost of a transformer of ViT-Base size: tracing it, and aligning a shuffled copy.

    python benchmarks/transformer_costs.py --out results/transformer_costs.json

Targets: tracing in under 10 s; aligning 86 million parameters in under 10 minutes and 8 GiB on two
cores. The copy is shuffled by a random permutation of every group, with own orders inside heads
or without, and has noise of 0.1 of the spread of every array.
"""

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onebasin.alignment import align
from onebasin.networks import ViT
from onebasin.networks.described import DescribedNetwork
from onebasin.symmetry import find_symmetry
from onebasin.trees import PyTree, num_parameters, path_name

BASE = ViT(patch=16, width=768, depth=12, heads=12, num_classes=1000)
IMAGE = (224, 224, 3)
NOISE = 0.1  # of the spread of every array


def drawn(shapes: PyTree, seed: int) -> PyTree:
    """Every leaf random, with the spread that LeCun's initialisation gives it."""

    def draw(path: Any, leaf: Any) -> np.ndarray:
        rng = np.random.default_rng([seed, *path_name(path).encode()])
        fan_in = leaf.shape[0] if len(leaf.shape) > 1 else 100
        return rng.standard_normal(leaf.shape, np.float32) / np.float32(fan_in**0.5)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def timed(function: Any) -> tuple[Any, dict[str, float]]:
    """What it returns; seconds of the clock and of all cores, and the peak of memory so far."""
    clock, work = time.perf_counter(), time.process_time()
    found = function()
    seconds = {
        "seconds": time.perf_counter() - clock,
        "cpu_seconds": time.process_time() - work,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--depth", type=int, default=BASE.depth)
    parser.add_argument("--width", type=int, default=BASE.width)
    given = parser.parse_args()
    network = DescribedNetwork.of_module(BASE.clone(depth=given.depth, width=given.width), IMAGE)
    shapes = network.shapes
    symmetry, tracing = timed(lambda: find_symmetry(network, shapes, network.x, check=False))
    target = drawn(shapes, 0)
    planted = symmetry.random(key=jax.random.key(1))
    noise = drawn(shapes, 1)
    jax.tree.map(lambda n, leaf: np.multiply(n, NOISE * leaf.std() / n.std(), out=n), noise, target)
    moved = symmetry.act(
        planted, jax.tree.map(lambda leaf, n: np.add(leaf, n, out=n), target, noise)
    )
    found, aligning = timed(lambda: align(moved, to=target, symmetry=symmetry, objective="l2"))
    right = sum(
        int((planted[group.name][found.permutation[group.name]] == np.arange(group.size)).sum())
        for group in symmetry.groups
    )
    units = sum(group.size for group in symmetry.groups)
    record = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "jax": jax.__version__,
        "vit-base": {
            "depth": given.depth,
            "width": given.width,
            "parameters": num_parameters(shapes),
            "groups": len(symmetry.groups),
            "units": units,
            "trace": tracing,
            "align": aligning,
            "recovered_units": right,
            "converged": found.converged,
            "load": os.getloadavg()[0],
        },
        "targets": {"trace seconds": 10.0, "align seconds": 600.0, "peak_gib": 8.0},
    }
    text = json.dumps(record, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
