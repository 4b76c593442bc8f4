"""Signs, scales and matrices of random networks, checked without the library's own action.

`false_kinds` folds gains and moves parameters by plain NumPy indexing and one matrix product for
each place, at parameters and inputs of its own, and compares the outputs in double precision.
"""

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from random_networks import Params, RandomNetwork, permuted, random_network

from onebasin.symmetry import Group, Symmetry, Transform, find_symmetry

MIXED = ("orthogonal", "invertible")


def along(array: np.ndarray, axis: int, positions: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The entries at positions [units, m] of an axis, multiplied by a matrix of the units."""
    moved = np.moveaxis(array.copy(), axis, 0)
    moved[positions] = np.einsum("ij,jm...->im...", matrix, moved[positions])
    return np.moveaxis(moved, 0, axis)


def transformed(params: Params, symmetry: Symmetry, transform: Transform) -> Params:
    """The transform by plain indexing and products with one matrix for each place."""
    moved = {name: np.array(leaf) for name, leaf in params.items()}
    for group in symmetry.groups:
        moved = permuted(moved, group, np.asarray(transform.permutation[group.name]))
        mixing = symmetry.mixings.get(group.name)
        for place in group.places if mixing is not None else ():
            matrix = matrix_at(
                symmetry, transform, group, (place.leaf, place.axis, place.occurrence)
            )
            moved[place.leaf] = along(moved[place.leaf], place.axis, place.positions, matrix)
    return moved


def matrix_at(
    symmetry: Symmetry, transform: Transform, group: Group, key: tuple[str, int, int]
) -> np.ndarray:
    """What multiplies the units of a group at one place, after they were permuted."""
    mixing, matrix = symmetry.mixings[group.name], np.eye(group.size)
    if mixing.signs is not None and mixing.signs[key] % 2:
        matrix = matrix @ np.diag(transform.signs[group.name])
    for pattern, own in zip(mixing.scales, transform.scales.get(group.name, ()), strict=True):
        matrix = matrix @ np.diag(own ** pattern[key])
    if mixing.matrices is not None and mixing.matrices[key]:
        blocks = transform.matrices[group.name]
        size = blocks.shape[1]
        for h, block in enumerate(blocks):
            rows = slice(h * size, (h + 1) * size)
            matrix[rows, rows] = block
        matrix = matrix if mixing.matrices[key] > 0 else np.linalg.inv(matrix).T
    return matrix


def folded(params: Params, symmetry: Symmetry) -> Params:
    """Gains made one, by plain products with what reads them."""
    moved = {name: np.array(leaf) for name, leaf in params.items()}
    for group in symmetry.groups:
        places = {(p.leaf, p.axis, p.occurrence): p for p in group.places}
        for key, pattern in symmetry.mixings[group.name].folded if group.kind in MIXED else ():
            gain = np.take(params[key[0]], places[key].positions[:, 0], axis=key[1]).reshape(-1)
            for other, exponent in pattern.entries:
                place = places[other]
                matrix = np.diag(gain ** (-exponent * pattern[key]))
                moved[other[0]] = along(moved[other[0]], place.axis, place.positions, matrix)
    return moved


def false_kinds(network: RandomNetwork, symmetry: Symmetry, seed: int) -> bool:
    """Whether a random transform, after folding gains, changes the outputs."""
    rng = np.random.default_rng([17, seed])
    params = {k: rng.normal(size=np.shape(v)) * 0.7 for k, v in network.params.items()}
    x = rng.normal(size=(5, *network.x.shape[1:]))
    reference = np.asarray(network.apply(params, x))
    transform = symmetry.random_transform(key=jax.random.key(seed))
    moved = transformed(folded(params, symmetry), symmetry, transform)
    scale = np.abs(reference).max() + np.ptp(reference) + 1e-12
    change = np.abs(np.asarray(network.apply(moved, x)) - reference).max()
    nudged = {k: v * (1 + 1e-15 * rng.choice([-1, 1], v.shape)) for k, v in moved.items()}
    rounding = np.abs(network.apply(nudged, x) - network.apply(moved, x)).max()
    return not change <= max(1e-8 * scale, 1e3 * rounding)


def attack(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Find the kinds of `count` random networks; how many of each, and which are false."""
    del folder
    kinds: dict[str, int] = {}
    defects = []
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            network = random_network(1_000_000 * seed + number)
            try:
                found = find_symmetry(network.apply, network.params, network.x, kinds="all")
            except ValueError as error:  # outputs too flat to check anything
                if "cannot" not in str(error) and "inconclusive" not in str(error):
                    defects.append(f"network {number}: {error}")
                continue
            for group in found.groups:
                kinds[group.kind] = kinds.get(group.kind, 0) + 1
            if false_kinds(network, found, number):
                defects.append(f"network {number}: {[(g.name, g.kind) for g in found.groups]}")
    return {"tried": count, "kinds": kinds, "defects": defects}
