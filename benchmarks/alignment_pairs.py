"""Pairs of posteriors for the alignment benchmarks: fitted independently, never planted.

    python benchmarks/alignment_pairs.py --cache FOLDER mlp512 resnet16

Each pair is two variational fits by `onebasin.fit` from different starts and data orders, with
budgets that fit a small machine (the recorded accuracy shows how far they came). A pair that is
already in the folder is loaded.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from onebasin.data import load_dataset
from onebasin.inference.fit import fit
from onebasin.inference.methods import VI
from onebasin.networks import MLP, ResNet20
from onebasin.posterior import load, read_header, save
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry, find_symmetry


@dataclass(frozen=True)
class Budget:
    images: int
    epochs: int
    batch_size: int
    learning_rate: float = 1e-3


BUDGETS = {
    "mlp512": Budget(10_000, 10, 250),
    "mlp1024": Budget(15_000, 8, 250),
    "mlp2048": Budget(10_000, 3, 500, 2e-3),
    "mlp4096": Budget(8_000, 2, 400, 2e-3),
    "resnet16": Budget(3_000, 2, 100, 3e-3),
    "resnet32": Budget(2_500, 1, 100, 3e-3),
    "resnet64": Budget(800, 1, 50, 3e-3),
}


@dataclass(frozen=True)
class Pair:
    """Two posteriors of one network, its symmetry, and how well each fits."""

    name: str
    posteriors: tuple
    symmetry: Symmetry
    accuracies: tuple[float, float]
    seconds: float


def problem_of(name: str) -> Problem:
    budget = BUDGETS[name]
    if name.startswith("mlp"):
        width = int(name[3:])
        data = load_dataset("mnist", limit=(budget.images, 2_000))
        return Problem.from_network(
            MLP(widths=(width,) * 3, num_classes=10), data, prior_variance=0.01
        )
    data = load_dataset("cifar10", limit=(budget.images, 500))
    return Problem.from_network(ResNet20(width=int(name[6:])), data, prior_variance=0.01)


def make_pair(name: str, cache: Path) -> Pair:
    files = [cache / f"{name}-{run}.safetensors" for run in range(2)]
    problem = problem_of(name)
    params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), problem.shapes)
    symmetry = find_symmetry(problem.apply, params, jnp.asarray(problem.x[:2]))
    if not all(file.exists() for file in files):
        budget = BUDGETS[name]
        method = VI(
            epochs=budget.epochs,
            batch_size=budget.batch_size,
            learning_rate=budget.learning_rate,
        )
        for run, file in enumerate(files):
            began = time.perf_counter()
            key = jax.random.fold_in(jax.random.key(2026), run)
            found = fit(problem, method, key=key, progress="silent").posterior
            seconds = time.perf_counter() - began
            test = problem.data.test
            hits = jnp.argmax(problem.apply(found.mean, jnp.asarray(test.x)), -1) == test.y
            save(
                file,
                found,
                network=problem.network,
                overwrite=True,
                accuracy=float(jnp.mean(hits)),
                seconds=seconds,
            )
            print(f"{file.name}: accuracy of the mean {float(jnp.mean(hits)):.3f}, {seconds:.0f} s")
    notes = [read_header(file).provenance for file in files]
    return Pair(
        name,
        tuple(load(file, like=params) for file in files),
        symmetry,
        (notes[0]["accuracy"], notes[1]["accuracy"]),
        sum(note["seconds"] for note in notes),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=list(BUDGETS))
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    for each in arguments.names:
        pair = make_pair(each, arguments.cache)
        print(each, pair.accuracies, f"{pair.seconds:.0f} s", pair.symmetry)
