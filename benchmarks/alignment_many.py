"""Joint alignment of many draws, and the memory of aligning a very wide network.

    python benchmarks/alignment_many.py --cache FOLDER --out results/alignment_many.json
    python benchmarks/alignment_many.py --wide 8192 --out results/alignment_many.json

The draws come from the two posteriors of a trained pair of MLP 3×512, half from each, and each draw
is permuted at random. The wide network is aligned with a noisy, permuted copy of itself, in a
process that does nothing else, whose peak memory is recorded.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from alignment_pairs import make_pair
from onebasin.alignment import align, align_many
from onebasin.posterior import MeanField, Samples
from onebasin.symmetry import Symmetry, stack


def scattered(pair, count, seed=0):
    """`count` draws, half from each posterior, each under its own random permutation."""
    half = [count - count // 2, count // 2]
    parts = [
        q.sample(n, key=jax.random.fold_in(jax.random.key(seed), i))
        for i, (q, n) in enumerate(zip(pair.posteriors, half, strict=True))
        if n
    ]
    draws = Samples(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts))
    planted = [
        pair.symmetry.random(key=jax.random.fold_in(jax.random.key(seed + 1), i))
        for i in range(count)
    ]
    return pair.symmetry.act(stack(planted), draws), planted, half[0]


def many(pair, count, objective):
    draws, planted, first = scattered(pair, count)
    wall, cpu = time.perf_counter(), time.process_time()
    found = align_many(draws, symmetry=pair.symmetry, objective=objective)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    # The reference: the planted permutations undone, and the draws of the second posterior moved by
    # the permutation that aligns the two posteriors.
    q0, q1 = pair.posteriors
    bridge = align(q1, to=q0, symmetry=pair.symmetry).permutation
    back = [pair.symmetry.inverse(p) for p in planted]
    back[first:] = [pair.symmetry.compose(bridge, p) for p in back[first:]]
    return {
        "draws": count,
        "objective": objective,
        "seconds": wall,
        "cpu_seconds": cpu,
        "rounds": found.rounds,
        "converged": found.converged,
        "trace": list(found.trace),
        "spread_as_given": dispersion(draws),
        "spread_aligned": dispersion(found.posteriors),
        "spread_put_back_by_hand": dispersion(pair.symmetry.act(stack(back), draws)),
    }


def dispersion(draws):
    """Mean squared distance of the draws from their mean."""
    variances = jax.tree.map(lambda leaf: jnp.sum(jnp.var(leaf, axis=0)), draws.draws)
    return float(sum(jax.tree.leaves(variances)))


def wide(width):
    """An MLP with three hidden layers of `width` units, and a noisy permuted copy of itself."""
    rng = np.random.default_rng(0)
    sizes = [784, width, width, width, 10]

    def layer(a, b):
        kernel = rng.standard_normal((a, b), np.float32) / np.float32(np.sqrt(a))
        return {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(b)}

    mean = {f"Dense_{i}": layer(*sizes[i : i + 2]) for i in range(4)}
    std = jax.tree.map(lambda m: 0.01 * (1 + jnp.abs(m)), mean)
    q = MeanField(mean, std)
    symmetry = Symmetry.by_hand(
        mean,
        {
            f"Dense_{i}": [
                (f"Dense_{i}/kernel", 1),
                (f"Dense_{i}/bias", 0),
                (f"Dense_{i + 1}/kernel", 0),
            ]
            for i in range(3)
        },
    )
    planted = symmetry.random(key=jax.random.key(0))
    copy = symmetry.act(planted, q)

    def noisy(leaf):
        noise = rng.standard_normal(leaf.shape, np.float32) * np.float32(0.3 * np.std(leaf))
        return jnp.asarray(np.asarray(leaf) + noise)

    copy = MeanField(jax.tree.map(noisy, copy.mean), copy.std)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = align(copy, to=q, symmetry=symmetry, objective="w2")
    jax.block_until_ready(found.posterior)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "width": width,
        "seconds": found.seconds,
        "right": found.permutation == symmetry.inverse(planted),
        "peak_gib": peak / 2**20,
        "peak_before_aligning_gib": before / 2**20,
        "sweeps": found.sweeps,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--counts", type=int, nargs="*", default=[2, 10, 50, 200])
    parser.add_argument("--objectives", nargs="+", default=["w2", "log-density"])
    parser.add_argument("--wide", type=int)
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if arguments.wide:
        results[f"width {arguments.wide}"] = row = wide(arguments.wide)
        print(row)
    else:
        pair = make_pair("mlp512", arguments.cache)
        for count in arguments.counts:
            for objective in arguments.objectives:
                results[f"{count} draws, {objective}"] = row = many(pair, count, objective)
                print({k: v for k, v in row.items() if k != "trace"}, flush=True)
                arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
