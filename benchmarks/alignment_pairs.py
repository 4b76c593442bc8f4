"""Pairs of posteriors for the alignment benchmarks: fitted independently, never planted.

    python benchmarks/alignment_pairs.py --cache FOLDER mlp512 resnet16

Each pair is two variational fits from different starts and data orders, with budgets that fit a
small machine (the recorded accuracy shows how far they came): MLPs by `onebasin.fit`, ResNets by
the few lines below, which do the same step by step, so that two dozen steps need not wait for a
whole loop to compile. A pair that is already in the folder is loaded.
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from onebasin.data import load_dataset
from onebasin.inference.fit import fit
from onebasin.inference.methods import VI
from onebasin.networks import MLP, ResNet20
from onebasin.posterior import MeanField, load, read_header, save
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
    "resnet16": Budget(3_000, 1, 50, 3e-3),
    "resnet32": Budget(1_250, 1, 50, 3e-3),
    "resnet64": Budget(400, 1, 25, 3e-3),
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


def train_resnet(problem: Problem, budget: Budget, runs: int) -> list[MeanField]:
    """Mean-field VI with one sample per step, the same compiled step for all runs."""
    prior = 0.01
    optimiser = optax.adam(budget.learning_rate)

    def loss(q, x, y, key):
        mean, log_std = q
        leaves, tree = jax.tree.flatten(mean)
        keys = jax.random.split(key, len(leaves))
        noise = [jax.random.normal(k, m.shape) for k, m in zip(keys, leaves, strict=True)]
        theta = jax.tree.map(
            lambda m, s, e: m + jnp.exp(s) * e, mean, log_std, jax.tree.unflatten(tree, noise)
        )
        fit = optax.softmax_cross_entropy_with_integer_labels(problem.apply(theta, x), y).mean()
        kl = jax.tree.map(
            lambda m, s: jnp.sum((m**2 + jnp.exp(2 * s)) / (2 * prior) - s), mean, log_std
        )
        return fit + sum(jax.tree.leaves(kl)) / problem.num_examples

    @jax.jit
    def step(q, state, x, y, key):
        update, state = optimiser.update(jax.grad(loss)(q, x, y, key), state)
        # The deviations have little time to move: ten times the step of the means.
        update = (update[0], jax.tree.map(lambda u: 10 * u, update[1]))
        return optax.apply_updates(q, update), state

    found = []
    for run in range(runs):
        key = jax.random.fold_in(jax.random.key(2026), run)
        mean = jax.jit(problem.init)(key)
        q = (mean, jax.tree.map(lambda m: jnp.full(m.shape, math.log(0.01)), mean))
        state = optimiser.init(q)
        rng = np.random.default_rng(run)
        for i in range(budget.epochs * budget.images // budget.batch_size):
            rows = rng.integers(0, problem.num_examples, budget.batch_size)
            q, state = step(q, state, problem.x[rows], problem.y[rows], jax.random.fold_in(key, i))
        found.append(MeanField(q[0], jax.tree.map(jnp.exp, q[1])))
    return found


def make_pair(name: str, cache: Path) -> Pair:
    files = [cache / f"{name}-{run}.safetensors" for run in range(2)]
    problem = problem_of(name)
    params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), problem.shapes)
    symmetry = find_symmetry(problem.apply, params, jnp.asarray(problem.x[:2]))
    if not all(file.exists() for file in files):
        budget = BUDGETS[name]
        began = time.perf_counter()
        if name.startswith("resnet"):
            found = train_resnet(problem, budget, len(files))
        else:
            method = VI(
                epochs=budget.epochs,
                batch_size=budget.batch_size,
                learning_rate=budget.learning_rate,
            )
            keys = [jax.random.fold_in(jax.random.key(2026), run) for run in range(len(files))]
            found = [fit(problem, method, key=k, progress="silent").posterior for k in keys]
        seconds = (time.perf_counter() - began) / len(files)
        apply = jax.jit(problem.apply)
        test = problem.data.test
        for q, file in zip(found, files, strict=True):
            accuracy = float(jnp.mean(jnp.argmax(apply(q.mean, test.x), -1) == test.y))
            save(
                file,
                q,
                network=problem.network,
                overwrite=True,
                accuracy=accuracy,
                seconds=seconds,
            )
            print(f"{file.name}: accuracy of the mean {accuracy:.3f}, {seconds:.0f} s", flush=True)
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
