"""Alignment over a symmetry with signs, scales and matrices: starts, descent, and the best end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from onebasin.alignment.descent import Trace
from onebasin.alignment.mixed_descent import MixedDescent
from onebasin.alignment.moments import Alignable, moments
from onebasin.symmetry import Permutation, Symmetry, Transform

MEASURES = ("w2", "l2")  # square distances, which any linear map can be judged by


@dataclass(frozen=True)
class MixedEnd:
    """Where descent from one start ended."""

    name: str
    transform: Transform
    score: float
    trace: Trace
    sweeps: int
    converged: bool
    seconds: float


def check_mixed(objective: str) -> None:
    """Refuse objectives that are for permutations only."""
    if objective not in MEASURES:
        raise ValueError(
            f"objective '{objective}' is for permutations, and this symmetry has signs, scales or "
            "matrices; use 'w2' or 'l2', or align with symmetry.permutations"
        )


def align_mixed(
    posterior: Alignable,
    to: Alignable,
    symmetry: Symmetry,
    objective: str,
    starts: Sequence[str | Permutation | Transform],
    permutations: Callable[[], Permutation],
    max_sweeps: int,
    key: jax.Array | None,
) -> list[MixedEnd]:
    """The ends of descent from all starts; "auto" is a forward pass and the best permutation."""
    mine, theirs = moments(posterior), moments(to)
    spread = objective == "w2" and not (mine.std is None and theirs.std is None)
    sides = [[dict(q.mean), *([dict(q.std_or_zeros())] if spread else [])] for q in (theirs, mine)]
    squares = [
        sum(float(np.sum(np.square(a, dtype=np.float64))) for tree in side for a in tree.values())
        for side in sides
    ]
    offset = 0.5 * sum(squares)
    expanded = [
        name for start in starts for name in (("forward", "w2") if start == "auto" else (start,))
    ]
    ends = []
    for number, start in enumerate(expanded):
        began = time.perf_counter()
        where: Permutation | Transform = symmetry.identity()
        if isinstance(start, Permutation | Transform):
            where = start
        elif start == "random":
            assert key is not None  # checked with the starts
            where = symmetry.random_transform(key=jax.random.fold_in(key, number))
        elif start == "w2":
            where = permutations()
        whole = symmetry.as_transform(where)
        moved = moments(symmetry.act(whole, posterior)) if start != "forward" else mine
        arrays = [dict(moved.mean), *([dict(moved.std_or_zeros())] if spread else [])]
        descent = MixedDescent(symmetry, sides[0], arrays, whole, Trace(began=began))
        if start == "forward":
            descent.forward()
        sweeps, converged = descent.descend(max_sweeps, sum(squares), offset)
        name = start if isinstance(start, str) else "given"
        score = offset - 0.5 * descent.distance
        spent = time.perf_counter() - began
        ends.append(
            MixedEnd(
                "permutations" if name == "w2" else name,
                descent.transform,
                score,
                descent.trace,
                sweeps,
                converged,
                spent,
            )
        )
    return ends
