"""Examples as arrays, from a split, the training split of a data set, or a pair."""

from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike


@runtime_checkable
class HasExamples(Protocol):
    """Inputs and targets, such as a `Split`."""

    @property
    def x(self) -> ArrayLike: ...
    @property
    def y(self) -> ArrayLike: ...


@runtime_checkable
class HasTraining(Protocol):
    """Something with a training split, such as a `Dataset`."""

    @property
    def train(self) -> "Examples": ...


Examples: TypeAlias = HasExamples | tuple[ArrayLike, ArrayLike]
TrainingData: TypeAlias = HasTraining | Examples


def examples_of(data: Examples) -> tuple[np.ndarray, np.ndarray]:
    """x and y of a split or of a pair, checked to be equal in number."""
    if isinstance(data, HasExamples):
        x, y = data.x, data.y
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    else:
        remedy = " (pass its .train or .test)" if isinstance(data, HasTraining) else ""
        raise ValueError(
            f"data is a {type(data).__name__}; give a split with .x and .y or a pair (x, y){remedy}"
        )
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise ValueError(f"x has shape {x.shape} and y {y.shape}; give one target per example")
    if len(x) == 0:
        raise ValueError("there are no examples; give at least one")
    return x, y


def training_examples(data: TrainingData) -> tuple[np.ndarray, np.ndarray]:
    """x [n, ...] and y of a data set's training split, of a split or of a pair; x is finite."""
    x, y = examples_of(data.train if isinstance(data, HasTraining) else data)
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; it needs a batch axis and at least one more")
    if not np.isfinite(x).all():
        raise ValueError("x holds NaN or infinity; clean the inputs first")
    return x, y
