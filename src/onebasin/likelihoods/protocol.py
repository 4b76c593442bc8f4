"""What fitting needs of a likelihood."""

from typing import ClassVar, Protocol, runtime_checkable

import jax
import numpy as np
from numpy.typing import ArrayLike


@runtime_checkable
class Likelihood(Protocol):
    """The contract of a likelihood: log p(y | outputs), a score, and checks.

    It is enough to fit, and to measure losses along paths. `Classification` and `Regression`
    add what a prediction is, for everything else.
    """

    name: ClassVar[str]
    classifies: ClassVar[bool]
    """Whether targets are classes, so that accuracy and class probabilities are defined."""
    score_name: ClassVar[str]
    """The name of the score."""

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """log p(y | outputs) of every prediction: [batch], or several for each example in turn."""
        ...

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The score of every prediction, shown beside the loss, of the same shape."""
        ...

    def targets(self, y: ArrayLike) -> np.ndarray:
        """The targets in the type the likelihood needs; targets of the wrong kind are refused."""
        ...

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        """Refuse outputs of a `shape` [batch, ...] that does not match the targets."""
        ...
