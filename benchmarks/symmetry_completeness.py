"""Is the continuous symmetry found all there is? The nullity of Jacobians, in double precision.

    python benchmarks/symmetry_completeness.py       # writes results/symmetry_completeness.json

Params can move without any output changing along the null space of the Jacobian of the outputs, at
random params, on many inputs. Its dimension is compared with the rank of the tangents of all
generators that `find_symmetry(kinds="all")` found. Every tangent is checked against the Jacobian.

What is missing is named: families of directions that are no part of the symmetry (below) are
restricted to those that the Jacobian sends to zero, and the rank that each adds is recorded. If
nothing is left over, the families are all that is missing.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from machine import describe, record
from mixing_networks import CASES, Case
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.symmetry.generators import generators
from onebasin.trees import leaves_by_path, with_leaves

NULL = 1e-13  # of the largest singular value; rounding in double precision is below 1e-14
CHUNK = 64  # inputs that are differentiated at a time


def jacobian(case: Case, params: Any, outputs: float) -> np.ndarray:
    """The derivatives of outputs on so many inputs that there are `outputs` × as many as params.

    The outputs of an input depend on no other input, so that each is differentiated by itself.
    """
    flat, unravel = ravel_pytree(params)
    per_input = np.asarray(case.apply(params, case.inputs(1))).size
    count = -(-(int(outputs * flat.size / per_input) + 20) // CHUNK) * CHUNK
    x = case.inputs(count)

    def output(flat: Any, one: Any) -> Any:
        return case.apply(unravel(flat), one[None]).reshape(-1)

    rows = jax.jit(jax.vmap(jax.jacrev(output), in_axes=(None, 0)))
    found = np.empty((count, per_input, flat.size))
    for start in range(0, count, CHUNK):
        found[start : start + CHUNK] = rows(flat, x[start : start + CHUNK])
    return found.reshape(-1, flat.size)


def flattened(params: Any, tangent: dict[str, np.ndarray]) -> np.ndarray:
    leaves = {name: np.zeros(np.shape(leaf)) for name, leaf in leaves_by_path(params).items()}
    return np.asarray(ravel_pytree(with_leaves(params, {**leaves, **tangent}))[0])


def rank(columns: list[np.ndarray]) -> int:
    if not columns:
        return 0
    stacked = np.stack(columns, axis=1)
    size = np.linalg.norm(stacked, axis=0)
    values = np.linalg.svd(stacked / np.where(size > 0, size, 1.0), compute_uv=False)
    return int((values > 1e-8 * values[0]).sum())


def coordinates(params: Any, name: str) -> Iterator[dict[str, np.ndarray]]:
    leaf = np.asarray(leaves_by_path(params)[name])
    for index in np.ndindex(leaf.shape):
        one = np.zeros(leaf.shape)
        one[index] = 1.0
        yield {name: one}


def vectors_added(params: Any, symmetry: Symmetry) -> Iterator[dict[str, np.ndarray]]:
    """One coordinate of every bias, shift and vector; a number added to a unit in every row.

    The rows of what is added to other arrays (positions), or set beside them (a class token), are
    vectors by themselves: the first position and the class token are summands of one token.
    """
    for name, leaf in leaves_by_path(params).items():
        if np.ndim(leaf) == 1:
            yield from coordinates(params, name)
    for group in symmetry.groups:
        for place in group.places:
            leaf = np.asarray(leaves_by_path(params)[place.leaf])
            if leaf.ndim == 1:
                continue
            if place.role in ("add", "other"):
                yield from coordinates(params, place.leaf)
            elif place.role == "incoming":
                for positions in place.positions:
                    one = np.zeros(leaf.shape)
                    np.moveaxis(one, place.axis, 0)[positions] = 1.0
                    yield {place.leaf: one}


def constants_over_units(params: Any, symmetry: Symmetry) -> Iterator[dict[str, np.ndarray]]:
    """The same number for all units (of a block) of a group, in one row of one leaf."""
    for group in symmetry.groups:
        own = symmetry.blocks.get(group.name)
        blocks = 1 if own is None else own.count
        for place in group.places:
            leaf = np.asarray(leaves_by_path(params)[place.leaf])
            moved = np.moveaxis(leaf, place.axis, 0)
            for block in np.split(np.arange(group.size), blocks):
                for index in np.ndindex(moved.shape[1:]):
                    one = np.zeros(leaf.shape)
                    positions = place.positions[block].reshape(-1)
                    np.moveaxis(one, place.axis, 0)[(positions, *index)] = 1.0
                    yield {place.leaf: one}


def fibres(params: Any, symmetry: Symmetry) -> Iterator[dict[str, np.ndarray]]:
    """Each unit of a leaf scaled for each index of another axis, or of each block, by itself."""
    del symmetry
    for name, value in leaves_by_path(params).items():
        leaf = np.asarray(value)
        single = [(i,) for i in range(leaf.ndim)]
        pairs = [(i, j) for i in range(leaf.ndim) for j in range(i)]
        for axes in [axes for axes in single + pairs if len(axes) < leaf.ndim]:
            for index in np.ndindex(*(leaf.shape[i] for i in axes)):
                kept = tuple(
                    index[axes.index(i)] if i in axes else slice(None) for i in range(leaf.ndim)
                )
                one = np.zeros(leaf.shape)
                one[kept] = leaf[kept]
                yield {name: one}


def every_weight(params: Any, symmetry: Symmetry) -> Iterator[dict[str, np.ndarray]]:
    """Single weights, which the outputs do not depend on at all."""
    del symmetry
    for name in leaves_by_path(params):
        yield from coordinates(params, name)


FAMILIES: dict[str, Callable[..., Iterator[dict[str, np.ndarray]]]] = {
    "weights without effect": every_weight,
    "vectors that later biases or other summands take up": vectors_added,
    "scales of single experts, blocks or lone units": fibres,
    "constants that a softmax or a normalisation removes": constants_over_units,
}


def null_combinations(slopes: np.ndarray, columns: np.ndarray, largest: float) -> np.ndarray:
    """An orthonormal basis of the span of columns that the Jacobian sends to zero."""
    columns = columns / np.linalg.norm(columns, axis=0)
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    span = left[:, values > 1e-10 * values[0]]
    _, values, basis = np.linalg.svd(slopes @ span, full_matrices=False)
    return span @ basis[values <= NULL * largest].T


def redrawn(params: Any, seed: int) -> Any:
    """Other random params: gains near what they are, all else around zero."""
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: np.ndarray) -> np.ndarray:
        is_gain = getattr(path[-1], "key", "") in ("gain", "scale")
        noise = np.sqrt(np.mean(leaf**2)) * rng.normal(size=leaf.shape)
        return leaf + 0.3 * noise if is_gain else noise

    return jax.tree_util.tree_map_with_path(draw, params)


def measured(name: str, outputs: float, draws: int) -> dict[str, Any]:
    """The nullity, the rank found, and the rank that each family of missing directions adds.

    At some params units are always active, or never, and the null space is larger than the
    symmetry of all params; so several are drawn, and those of the least nullity count.
    """
    began = time.perf_counter()
    case = CASES[name]()
    symmetry = find_symmetry(case.apply, case.params, case.inputs(4), kinds="all")
    tried = []
    for seed in range(draws):
        drawn = redrawn(case.params, seed) if seed else case.params
        own = jax.tree.map(np.asarray, symmetry.canonical(drawn))
        matrix = jacobian(case, own, outputs)
        rows = len(matrix)
        matrix = np.linalg.qr(matrix, mode="r")  # as long as the Jacobian in every direction
        spectrum = np.linalg.svd(matrix, compute_uv=False)
        count = int((spectrum <= NULL * spectrum[0]).sum())
        tried.append((count, seed, own, rows, matrix, spectrum))
    nullity, _, params, rows, slopes, values = min(tried, key=lambda one: one[:2])
    leaves = {leaf: np.asarray(value) for leaf, value in leaves_by_path(params).items()}
    tangents: list[np.ndarray] = []
    furthest = 0.0
    for _, tangent in generators(symmetry, leaves):
        flat = flattened(params, tangent)
        size = np.linalg.norm(flat)
        if size > 0:
            furthest = max(furthest, float(np.linalg.norm(slopes @ flat) / (size * values[0])))
            tangents.append(flat)
    found = rank(tangents)
    missing: dict[str, int] = {}
    so_far, candidates = found, list(tangents)
    for family, directions in FAMILIES.items():
        if so_far == nullity:
            break
        flats = [flattened(params, tangent) for tangent in directions(params, symmetry)]
        flats = [flat for flat in flats if flat.any()]
        if family == "weights without effect":  # alone, not in combination
            sizes = np.linalg.norm(slopes @ np.stack(flats, axis=1), axis=0)
            flats = [f for f, size in zip(flats, sizes, strict=True) if size <= NULL * values[0]]
        candidates += flats
        if not candidates:
            continue
        null = null_combinations(slopes, np.stack(candidates, axis=1), values[0])
        if (total := null.shape[1]) > so_far:
            missing[family] = total - so_far
            so_far = total
    kinds = [group.kind for group in symmetry.groups if group.kind != "permutation"]
    return {
        "parameters": int(slopes.shape[1]),
        "outputs": rows,
        "kinds": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "nullity": nullity,
        "nullities": [count for count, *_ in tried],
        "found": found,
        "missing": missing,
        "unexplained": nullity - so_far,
        "largest null singular value": float(values[-nullity] / values[0]) if nullity else None,
        "least other singular value": float(values[-nullity - 1] / values[0]),
        "largest slope along a generator": furthest,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--draws", type=int, default=4, help="random params to try")
    parser.add_argument("--outputs", type=float, default=3.0, help="rows for each parameter")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in arguments.cases:
        row = measured(name, arguments.outputs, arguments.draws)
        sys.stdout.write(f"{name}: {row}\n")
        sys.stdout.flush()
        record("symmetry_completeness", {name: row, "machine": describe()})


if __name__ == "__main__":
    main()
