"""Checks of outputs, labels and options."""

import math

import jax
import numpy as np
from numpy.typing import ArrayLike

from onebasin.trees import PyTree


def check_output(outputs: PyTree, batch: int) -> tuple[int, ...]:
    """The shape of the outputs of a network, which must be one array, batch first."""
    shape = jax.tree.map(lambda leaf: leaf.shape, outputs)
    if not jax.tree_util.all_leaves([outputs]) or shape[:1] != (batch,):
        raise ValueError(
            f"apply(params, x) returned {shape} for a batch of {batch}; "
            "it must return one array, batch first"
        )
    return shape


def check_logits(shape: tuple[int, ...], classes: int = 2) -> int:
    """The number of classes of logits [batch, classes] or [batch, positions, classes].

    `classes` is how many the targets have.
    """
    if len(shape) not in (2, 3):
        raise ValueError(
            f"the network returns shape {shape}; logits must have shape [batch, classes], or "
            "[batch, positions, classes]"
        )
    if shape[-1] < 2 < classes:
        raise ValueError(
            f"the network returns shape {shape} for targets of {classes} classes; give it one "
            "output per class (or likelihood='gaussian', if the targets are amounts)"
        )
    if shape[-1] < 2:
        raise ValueError(
            f"the network returns shape {shape}; one logit per example needs "
            "likelihood='bernoulli', and real targets need likelihood='gaussian'"
        )
    return shape[-1]


def check_labels(y: ArrayLike, positions: tuple[int, ...] | None = ()) -> np.ndarray:
    """Integer labels [n], or [n, *positions], as int32; with None of either shape."""
    labels = np.asarray(y)
    fits = labels.ndim in (1, 2) if positions is None else labels.shape[1:] == positions
    if labels.ndim == 0 or not fits or not np.issubdtype(labels.dtype, np.integer):
        where = f" and for each of its {positions[0]} positions" if positions else ""
        raise ValueError(
            f"y has shape {labels.shape} and type {labels.dtype}; the categorical likelihood "
            f"needs one integer label per example{where} (for real targets give "
            "likelihood='gaussian')"
        )
    return labels.astype(np.int32)


def check_classes(y: ArrayLike, classes: int, positions: tuple[int, ...] = ()) -> np.ndarray:
    """Integer labels [n] or [n, *positions] below the number of classes, as int32."""
    labels = check_labels(y, positions)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the labels range from {low} to {high}, but there are {classes} outputs "
            f"(labels 0 to {classes - 1}); fix the labels or the network"
        )
    return labels


def check_positive(value: object, name: str) -> None:
    """Refuse a value that is not a positive, finite number."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
