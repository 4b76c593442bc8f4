"""Planted elements of symmetries with signs, scales, rotations and invertible maps, and noise.

    python benchmarks/kinds_planted.py            # writes results/kinds_planted.json

For each network and seed a random element moves the params, and `align` brings them back. Without
noise a copy counts as recovered if every unit is; with Gaussian noise of 0.1 of each array's
standard deviation on the copy, the share of units is recorded. The element found after the planted
one should be the identity: a unit is right if this leaves its weights, at all places of its group,
where they were, within half of their norm (a thousandth without noise).
"""

import argparse
import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from machine import describe, record
from mixing_networks import Case, experts, gpt, mlp, vit
from onebasin.alignment import align
from onebasin.symmetry import Symmetry, Transform, find_symmetry
from onebasin.trees import leaves_by_path

NOISE = 0.1
CASES = {
    "MLP, tanh: signs": partial(mlp, jnp.tanh, (8, 32, 32, 8)),
    "MLP, ReLU: scales": partial(mlp, jax.nn.relu, (8, 32, 32, 8)),
    "GPT: heads and dimensions": partial(gpt, "rms", width=16, heads=4, blocks=2),
    "GPT, RMSNorm: all": partial(gpt, "rms", width=16, heads=4, blocks=2),
    "GPT, LayerNorm: all": partial(gpt, "layer", width=16, heads=4, blocks=2),
    "ViT: all": partial(vit, width=16, heads=4),
    "experts": partial(experts, count=6, width=8, hidden=12),
}
PERMUTATIONS_ONLY = "GPT: heads and dimensions"


def noisy(params: Any, noise: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: a + noise * np.std(a) * rng.normal(size=a.shape), params)


def right_units(symmetry: Symmetry, back: Transform, params: Any, within: float) -> tuple[int, int]:
    """How many units an element leaves where they are, of how many."""
    before, after = leaves_by_path(params), leaves_by_path(symmetry.act(back, params))
    right = total = 0
    for group in symmetry.groups:
        moved, size = np.zeros(group.size), np.zeros(group.size)
        for place in group.places:
            rows = place.rows(np.asarray(before[place.leaf]))
            moved += np.sum((place.rows(np.asarray(after[place.leaf])) - rows) ** 2, axis=1)
            size += np.sum(rows**2, axis=1)
        right += int((moved <= within**2 * size).sum())
        total += group.size
    return right, total


def planted(case: Case, symmetry: Symmetry, seeds: int, noise: float) -> dict[str, Any]:
    params = symmetry.canonical(case.params)
    began, exact, right, total = time.perf_counter(), 0, 0, 0
    for seed in range(seeds):
        element = symmetry.random_transform(key=jax.random.key(seed))
        copy = symmetry.act(element, noisy(params, noise, seed))
        found = align(copy, to=params, symmetry=symmetry, objective="l2")
        back = symmetry.compose(symmetry.as_transform(found.transform), element)
        own, units = right_units(symmetry, back, params, 0.5 if noise else 1e-3)
        exact, right, total = exact + (own == units), right + own, total + units
    return {
        "recovered": exact,
        "of": seeds,
        "units right": right / total,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in arguments.cases:
        case = CASES[name]()
        symmetry = find_symmetry(case.apply, case.params, case.inputs(4), kinds="all")
        if name == PERMUTATIONS_ONLY:
            symmetry = symmetry.permutations
        kinds = [group.kind for group in symmetry.groups]
        row = {
            "kinds": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
            "exact": planted(case, symmetry, arguments.seeds, 0.0),
            "noise": planted(case, symmetry, arguments.seeds, NOISE),
        }
        sys.stdout.write(f"{name}: {row}\n")
        sys.stdout.flush()
        record("kinds_planted", {name: row, "machine": describe()})


if __name__ == "__main__":
    main()
