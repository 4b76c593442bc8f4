"""Data sets and splits in memory."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


class DataFileError(ValueError):
    """A data file that exists but is damaged or wrong; the message names the file."""


@dataclass(frozen=True, eq=False)
class Split:
    """Examples `x` and their targets `y`, batch first.

    In the image data sets `x` is float32 in [0, 1] of shape [n, height, width, channels] and `y`
    holds int32 class labels [n]. Networks that take vectors flatten `x` themselves.

    >>> import numpy as np, onebasin as ob
    >>> split = ob.Split(np.zeros((5, 8, 8, 1)), np.arange(5))
    >>> split.first(2)
    Split(2 examples of shape (8, 8, 1))
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        if np.ndim(self.x) < 1 or np.ndim(self.y) < 1 or len(self.x) != len(self.y):
            raise ValueError(
                f"x has shape {np.shape(self.x)} and y {np.shape(self.y)}; give as many "
                "examples of both, along the first axis"
            )

    def __len__(self) -> int:
        return len(self.x)

    def first(self, count: int | None) -> "Split":
        """The first `count` examples; all of them if None."""
        return self if count is None else Split(self.x[:count], self.y[:count])

    def __repr__(self) -> str:
        return f"Split({len(self)} examples of shape {tuple(np.shape(self.x)[1:])})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training split, a test split and their source.

    `source` is "embedded", "memory" or the folder of the files. `available` counts the examples in
    the files (before any `limit`), `published` those of the published files; both are
    (train, test). `num_classes` is None for real targets. `record` says how data of your own were
    read; `fit` keeps it in the file of the posterior.

    >>> import onebasin as ob
    >>> ob.load_dataset("digits")
    Dataset('digits': 1442 train + 355 test examples of 8×8×1, 10 classes, from embedded)
    """

    name: str
    train: Split
    test: Split
    num_classes: int | None
    source: str = "memory"
    available: tuple[int, int] | None = None
    published: tuple[int, int] | None = None
    record: dict[str, Any] | None = None

    @property
    def note(self) -> str:
        """How the numbers of examples differ from the published ones, or ""."""
        return compare_counts(self.available, self.published)

    @property
    def num_outputs(self) -> int:
        """The number of outputs of a network for these targets: classes, or real numbers."""
        if (self.record or {}).get("likelihood") == "bernoulli":
            return 1  # one logit
        return self.num_classes or math.prod(np.shape(self.train.y)[1:])

    def __repr__(self) -> str:
        shape = "×".join(str(n) for n in np.shape(self.train.x)[1:])
        note = f"; {self.note}" if self.note else ""
        targets = f"{self.num_classes} classes" if self.num_classes else "real targets"
        return (
            f"Dataset({self.name!r}: {len(self.train)} train + {len(self.test)} test examples of "
            f"{shape}, {targets}, from {self.source}{note})"
        )


def compare_counts(available: tuple[int, int] | None, published: tuple[int, int] | None) -> str:
    """A clause that says how the numbers of examples differ, or ""."""
    if available is None or published is None or available == published:
        return ""
    return (
        f"the files hold {available[0]} + {available[1]} examples, "
        f"{published[0]} + {published[1]} were published"
    )
