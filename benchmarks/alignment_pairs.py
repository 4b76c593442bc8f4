"""Pairs of independently fitted posteriors for the alignment benchmarks.

    python benchmarks/alignment_pairs.py --cache FOLDER mlp512 resnet16

Each pair is two variational fits with different initial values and data orders, with budgets for a
small machine (the accuracy is recorded): MLPs on MNIST, ResNets on the embedded 8×8 digits, where a
gradient costs a sixteenth of one on CIFAR-10 while the weights, which are all that alignment sees,
are as many. With so few images the KL term would dominate the likelihood of a ResNet, so it is
fitted at a low temperature. A pair that is already in the folder is loaded.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from onebasin.data import Dataset, load_dataset
from onebasin.inference.fitting import fit
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
    "resnet16": Budget(1_442, 30, 103, 3e-3),
    "resnet32": Budget(1_442, 20, 103, 3e-3),
    "resnet64": Budget(1_442, 10, 103, 2e-3),
}


@dataclass(frozen=True)
class Pair:
    """Two posteriors of one network, its symmetry, and the accuracy of each."""

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
    network = ResNet20(width=int(name[6:]))
    return Problem.from_network(
        network, load_dataset("digits"), prior_variance=0.01, temperature=0.01
    )


def fitted(name: str, run: int, cache: Path) -> Path:
    """The file of one fit, made if the folder lacks it."""
    file = cache / f"{name}-{run}.safetensors"
    if file.exists():
        return file
    cache.mkdir(parents=True, exist_ok=True)
    problem, budget = problem_of(name), BUDGETS[name]
    method = VI(
        epochs=budget.epochs,
        batch_size=budget.batch_size,
        learning_rate=budget.learning_rate,
        initial_std=0.01,
    )
    began = time.perf_counter()
    q = fit(problem, method, key=jax.random.fold_in(jax.random.key(2026), run)).posterior
    seconds = time.perf_counter() - began
    assert isinstance(problem.data, Dataset)
    test = problem.data.test
    outputs = jax.jit(problem.apply)(q.moments()[0], test.x)
    accuracy = float(jnp.mean(jnp.argmax(outputs, -1) == test.y))
    save(file, q, network=problem.network, accuracy=accuracy, seconds=seconds)
    print(f"{file.name}: accuracy of the mean {accuracy:.3f}, {seconds:.0f} s", flush=True)
    return file


def make_pair(name: str, cache: Path, runs: tuple[int, int] = (0, 1)) -> Pair:
    files = [fitted(name, run, cache) for run in runs]
    problem = problem_of(name)
    params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), problem.shapes)
    symmetry = find_symmetry(problem.apply, params, jnp.asarray(problem.x[:2]))
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
    for each in arguments.names:
        pair = make_pair(each, arguments.cache)
        print(each, pair.accuracies, f"{pair.seconds:.0f} s", pair.symmetry)
