"""What a data set is, once it has been read."""

from dataclasses import dataclass, field

import numpy as np


class DataFileError(ValueError):
    """A data file that is there but cannot be right; the message names the file."""


@dataclass(frozen=True, eq=False)
class Split:
    """Examples `x` (batch first) and what goes with them, `y`.

    For the image sets `x` is float32 in [0, 1] with shape [n, height, width, channels], and `y`
    holds int32 class labels with shape [n]. Networks that want vectors flatten `x` themselves.
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        if np.ndim(self.x) < 1 or np.ndim(self.y) < 1 or len(self.x) != len(self.y):
            raise ValueError(
                f"x and y must hold the same number of examples along their first axis, "
                f"got shapes {np.shape(self.x)} and {np.shape(self.y)}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def first(self, count: int | None) -> "Split":
        """The first `count` examples (all of them for None)."""
        return self if count is None else Split(self.x[:count], self.y[:count])

    def __repr__(self) -> str:
        return f"Split({len(self)} examples of shape {tuple(np.shape(self.x)[1:])})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, and where they came from.

    `source` is "embedded" or the folder the files were read from. `available` counts the examples
    in those files (before any `limit`), `published` those in the files as published; both are
    (train, test), and `note` says in words whether they differ.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    source: str = "memory"
    available: tuple[int, int] | None = field(default=None)
    published: tuple[int, int] | None = field(default=None)

    @property
    def note(self) -> str:
        """Whether the files hold another number of examples than was published ("" if not)."""
        return compare_counts(self.available, self.published)

    def __repr__(self) -> str:
        shape = "×".join(str(n) for n in np.shape(self.train.x)[1:])
        note = f"; {self.note}" if self.note else ""
        return (
            f"Dataset({self.name!r}: {len(self.train)} train + {len(self.test)} test examples of "
            f"{shape}, {self.num_classes} classes, from {self.source}{note})"
        )


def compare_counts(available: tuple[int, int] | None, published: tuple[int, int] | None) -> str:
    """One clause on how the numbers of examples differ from the published ones, or ""."""
    if available is None or published is None or available == published:
        return ""
    return (
        f"the files hold {available[0]} + {available[1]} examples, "
        f"{published[0]} + {published[1]} were published"
    )
