"""The space that the files of a fit need, compared with what is free before the fit starts."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from onebasin.atomic import WriteError, free_bytes
from onebasin.inference.files import Files
from onebasin.inference.program import Program
from onebasin.trees import PyTree


def check_room(needed: Mapping[Path, int]) -> None:
    """Raise if the files, with the bytes that each still needs, do not fit on their disks."""
    disks: dict[int, list[Path]] = {}
    for path in needed:
        disks.setdefault(os.stat(path.parent).st_dev, []).append(path)
    for paths in disks.values():
        total, free = sum(needed[path] for path in paths), free_bytes(paths[0])
        if total > free:
            raise WriteError(
                f"{' and '.join(map(str, paths))} need {total:,} bytes and {free:,} are free; "
                "make room, or give another path"
            )


def bytes_needed(
    files: Files,
    program: Program,
    shapes: PyTree,
    states: PyTree,
    records: Mapping[str, np.dtype],
    running: PyTree | None = None,
) -> dict[Path, int]:
    """What the tensors in each file take in addition to what is on disk already."""
    needed: dict[Path, int] = {}
    weights, statistics = _bytes(shapes), _bytes(running)
    if files.checkpoint is not None:
        # The old checkpoint is kept until the new one is complete.
        needed[files.checkpoint] = _bytes(states) * (1 if files.checkpoint.exists() else 2)
    if program.draws is None:
        size = (program.posterior_trees * weights + statistics) * program.replicas
        return needed | dict.fromkeys(files.outs(), size)
    one_draw = weights + statistics + 4 + sum(dtype.itemsize for dtype in records.values())
    draws = program.replicas * program.draws.per_replica
    for run in range(files.runs or 1):
        path = files.draws(run)
        if path is not None and not path.exists():
            needed[path] = draws * one_draw
    return needed


def _bytes(shapes: PyTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
