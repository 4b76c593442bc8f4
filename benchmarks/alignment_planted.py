"""Planted permutations, noise on the copy, and exhaustive optima.

    python benchmarks/alignment_planted.py --cache FOLDER --out results/alignment_planted.json

100 seeds for each of MLP 3×512 and ResNet20, untrained and trained (the first of a cached pair):
the aligned copy must equal the original to the bit. With Gaussian noise of 0.3 of each array's
standard deviation on the copy: the share of units that are matched correctly, among those whose
outgoing norm is above their layer's median, and among all.
"""

import argparse
import json
import time
from itertools import permutations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from alignment_pairs import make_pair, problem_of
from onebasin.alignment import FrankWolfe, align
from onebasin.alignment.objective import W2
from onebasin.alignment.scores import ScoreTable
from onebasin.posterior import MeanField
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.trees import leaves_by_path

NOISE = 0.3
CASES = ("mlp512 untrained", "resnet16 untrained", "mlp512 trained", "resnet16 trained")


def case(name, cache):
    """A posterior and its symmetry: before training, or the first of a trained pair."""
    network, state = name.split()
    if state == "trained":
        pair = make_pair(network, cache)
        return pair.posteriors[0], pair.symmetry
    problem = problem_of(network)
    params = jax.jit(problem.init)(jax.random.key(0))
    std = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.01), params)
    symmetry = find_symmetry(problem.apply, params, jnp.asarray(problem.x[:2]))
    return MeanField(params, std), symmetry


def equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def planted(q, symmetry, seeds, objective):
    exact, began = 0, time.perf_counter()
    for seed in range(seeds):
        copy = symmetry.act(symmetry.random(key=jax.random.key(seed)), q)
        found = align(copy, to=q, symmetry=symmetry, objective=objective)
        exact += equal(found.posterior, q)
    return {"exact": exact, "of": seeds, "seconds": time.perf_counter() - began}


def outgoing_norms(q, symmetry):
    """The norm of the outgoing weights of each unit.

    These are all kernels that read the group; vectors (biases, norms) are not outgoing. Of a
    residual stream, every kernel that reads it counts.
    """
    leaves = leaves_by_path(q.mean)
    norms = {}
    for group in symmetry.groups:
        total = np.zeros(group.size)
        for place in group.places:
            array = np.asarray(leaves[place.leaf])
            # Flax kernels have their inputs on the second to last axis.
            if place.where == "params" and array.ndim > 1 and place.axis == array.ndim - 2:
                total += np.sum(place.rows(array).astype(np.float64) ** 2, axis=1)
        norms[group.name] = np.sqrt(total)
    return norms


def noisy(q, seed):
    rng = np.random.default_rng(seed)

    def disturbed(leaf):
        array = np.asarray(leaf)
        return jnp.asarray(array + NOISE * array.std() * rng.normal(size=array.shape), leaf.dtype)

    return MeanField(jax.tree.map(disturbed, q.mean), q.std)


def with_noise(q, symmetry, seeds, objective):
    norms = outgoing_norms(q, symmetry)
    strong_hits, strong, hits, units = 0, 0, 0, 0
    by_group = {group.name: [] for group in symmetry.groups}
    for seed in range(seeds):
        permutation = symmetry.random(key=jax.random.key(seed))
        copy = symmetry.act(permutation, noisy(q, seed))
        found = align(copy, to=q, symmetry=symmetry, objective=objective)
        truth = symmetry.inverse(permutation)
        for group in symmetry.groups:
            right = found.permutation[group.name] == truth[group.name]
            above = norms[group.name] > np.median(norms[group.name])
            strong_hits += int(right[above].sum())
            strong += int(above.sum())
            hits += int(right.sum())
            units += group.size
            by_group[group.name].append(float(right.mean()))
    return {
        "above_median_right": strong_hits / strong,
        "all_right": hits / units,
        "by_group": {name: float(np.mean(shares)) for name, shares in by_group.items()},
        "seeds": seeds,
    }


def coupled(width, seeds):
    """How many exhaustive optima are found for two coupled groups of unrelated posteriors."""
    starts = ("forward", "identity", *["random"] * 4)
    options = {
        "default": {},
        "6 starts": {"starts": starts},
        "6 starts, Frank-Wolfe": {"starts": starts, "search": FrankWolfe()},
    }
    found = dict.fromkeys(options, 0)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        shapes = {"a": (5, width), "b": (width, width), "c": (width, 3)}

        def tree(scale=1.0, rng=rng, shapes=shapes):
            return {k: scale * rng.normal(size=s) for k, s in shapes.items()}

        q, to = (
            MeanField(tree(), {k: np.exp(0.7 * v) for k, v in tree().items()}) for _ in range(2)
        )
        symmetry = Symmetry.by_hand(
            q.mean, {"one": [("a", 1), ("b", 0)], "two": [("b", 1), ("c", 0)]}
        )
        table = ScoreTable(W2.features(q, to, symmetry), symmetry.identity())
        best = -np.inf
        every = np.array(list(permutations(range(width))))
        for first in every:
            table.indices["one"] = first
            matrix = table.scores("two")
            sums = matrix[np.arange(width), every].sum(axis=1)
            best = max(best, table.total() + float(sums.max() - np.trace(matrix)))
        for name, option in options.items():
            end = align(q, to=to, symmetry=symmetry, key=jax.random.key(seed), **option)
            found[name] += end.score >= best - 1e-9 * abs(best)
    return {"width": width, "seeds": seeds, "found": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--noise-seeds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES)
    parser.add_argument("--coupled", action="store_true")
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if arguments.coupled:
        results["coupled"] = [coupled(width, 200) for width in (2, 3, 4)]
        print(results["coupled"], flush=True)
    for name in arguments.cases:
        q, symmetry = case(name, arguments.cache)
        for objective in ("w2", "l2"):
            row = {
                "planted": planted(q, symmetry, arguments.seeds, objective),
                "noise": with_noise(q, symmetry, arguments.noise_seeds, objective),
            }
            results[f"{name}, {objective}"] = row
            print(name, objective, row, flush=True)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
