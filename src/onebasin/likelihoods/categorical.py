"""Integer labels and one logit per class."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.likelihoods.checks import check_classes, check_labels, check_logits
from onebasin.likelihoods.classification import Classification


@dataclass(frozen=True)
class Categorical(Classification):
    """log p(y | z) = log softmax(z)_y for integer labels y and logits z [batch, classes].

    A network that predicts at several positions of an example, such as the next character of a
    sequence, has logits [batch, positions, classes] and labels [batch, positions]. Every position
    is then a prediction of its own: losses and measures are means over all of them.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> round(ob.likelihoods.Categorical()(jnp.zeros((1, 4)), jnp.array([2])).item(), 4)  # log ¼
    -1.3863
    """

    name: ClassVar[str] = "categorical"

    def log_probs(self, outputs: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(outputs).reshape(-1, outputs.shape[-1])

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """One if the largest logit is that of the label, else zero."""
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype).reshape(-1)

    def targets(self, y: ArrayLike) -> np.ndarray:
        """Integer labels, [n] or [n, positions]."""
        return check_labels(y, None)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        check_logits(shape)

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        classes = int(np.max(y, initial=0)) + 1
        check_classes(y, check_logits(shape, classes), shape[1:-1])
