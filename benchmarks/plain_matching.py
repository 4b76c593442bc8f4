"""A plain version of the published matching algorithm: the baseline of the alignment benchmarks.

Coordinate descent as in Git Re-Basin (l2) and Rossi et al. (w2): start at the identity;
in every sweep visit the groups in a fresh random order; for each, sum the score matrices
of all its places with every other axis already permuted, solve the assignment with SciPy, and keep
the result if it raises the score by more than 1e-12; stop after a sweep in which nothing moved.
Nothing is reused between visits. This file must not be optimised.
"""

import time
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from onebasin.symmetry import Permutation, Symmetry
from onebasin.trees import leaves_by_path


@dataclass(frozen=True)
class PlainRun:
    """The permutation found and, after every visit, the seconds so far and the score."""

    permutation: Permutation
    trace: tuple[tuple[float, float], ...]
    sweeps: int
    seconds: float


def features(posterior, objective):
    """What the published scores multiply: the means (l2), or means and standard deviations (w2)."""
    mean, std = posterior.moments()
    trees = {"l2": [mean], "w2": [mean, std]}[objective]
    return [{k: np.asarray(v) for k, v in leaves_by_path(t).items()} for t in trees]


def total_score(axes, targets, movers, indices):
    """Σ ⟨target, moved⟩ over all leaves in float64; not part of the algorithm's time."""
    total = 0.0
    for target, mover in zip(targets, movers, strict=True):
        for leaf in target:
            moved = _permuted(axes, mover[leaf], leaf, indices, skip=None)
            total += float(np.vdot(target[leaf].astype(np.float64), moved.astype(np.float64)))
    return total


def plain_match(
    symmetry: Symmetry, q, to, objective, *, seed: int | list[int] = 0, start=None, max_sweeps=100
) -> PlainRun:
    targets, movers = features(to, objective), features(q, objective)
    axes = axes_of_leaves(symmetry)
    if start is None:
        start = symmetry.identity()
    indices = {name: np.array(start[name]) for name in start.names}
    rng = np.random.default_rng(seed)
    spent, trace = 0.0, [(0.0, total_score(axes, targets, movers, indices))]
    sweeps = 0
    for _ in range(max_sweeps):
        sweeps += 1
        progress = False
        for g in rng.permutation(len(symmetry.groups)):
            group = symmetry.groups[g]
            began = time.perf_counter()
            scores = np.zeros((group.size, group.size))
            for place in group.places:
                if place.where != "params":
                    continue
                for target, mover in zip(targets, movers, strict=True):
                    moved = _permuted(axes, mover[place.leaf], place.leaf, indices, group.name)
                    scores += place.rows(target[place.leaf]) @ place.rows(moved).T
            old = scores[np.arange(group.size), indices[group.name]].sum()
            _, found = linear_sum_assignment(scores, maximize=True)
            new = scores[np.arange(group.size), found].sum()
            if new > old + 1e-12:
                indices[group.name] = found
                progress = True
            spent += time.perf_counter() - began
            trace.append((spent, total_score(axes, targets, movers, indices)))
        if not progress:
            break
    return PlainRun(Permutation(indices), tuple(trace), sweeps, spent)


def axes_of_leaves(symmetry):
    """The (group, axis, positions) of every group on each leaf."""
    axes = {}
    for group in symmetry.groups:
        for place in group.places:
            if place.where == "params":
                axes.setdefault(place.leaf, []).append((group.name, place.axis, place.positions))
    return axes


def _permuted(axes, array, leaf, indices, skip):
    """One leaf with every axis permuted by its group, except the group `skip`."""
    for name, axis, positions in axes.get(leaf, ()):
        if name == skip:
            continue
        index = indices[name]
        if positions.shape != (array.shape[axis], 1):
            index = np.arange(array.shape[axis])
            index[positions.reshape(-1)] = positions[indices[name]].reshape(-1)
        array = np.take(array, index, axis=axis)
    return array
