"""The base of likelihoods whose targets are classes."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.likelihoods.checks import check_labels


class Classification:
    """A likelihood of classes: give `name` and `log_probs`, and all measures of classes apply.

    Targets are integer labels, one per prediction. A network may make several predictions for an
    example; their log probabilities follow each other, example by example. The predictive
    distribution is the average of the class probabilities over draws.
    """

    name: ClassVar[str]
    classifies: ClassVar[bool] = True
    score_name: ClassVar[str] = "accuracy"

    def log_probs(self, outputs: jax.Array) -> jax.Array:
        """Log class probabilities, [predictions, classes]."""
        raise NotImplementedError

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.take_along_axis(self.log_probs(outputs), y.reshape(-1, 1), axis=-1)[:, 0]

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """One if the most probable class is the label, else zero."""
        hits = jnp.argmax(self.log_probs(outputs), axis=-1) == y.reshape(-1)
        return hits.astype(outputs.dtype)

    def targets(self, y: ArrayLike) -> np.ndarray:
        """Integer labels, [n]."""
        return check_labels(y)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse outputs of this `shape` [batch, ...]; a class of your own need not."""
        del shape

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        del y
        self.check_shape(shape)
