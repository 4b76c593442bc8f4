"""What of a predictive is averaged over draws, and how the average is scored against targets.

For classes it is the class probabilities, scored by accuracy; for numbers the mean of the targets,
scored by the root mean squared error. A likelihood given as a function says neither.
"""

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.likelihoods import Classification, Likelihood, Regression

ScoreName: TypeAlias = Literal["accuracy", "rmse", ""]
"""The measure shown beside the loss; empty if the likelihood has none."""


def score_name(likelihood: Likelihood) -> ScoreName:
    if isinstance(likelihood, Classification):
        return "accuracy"
    return "rmse" if isinstance(likelihood, Regression) else ""


def expectation(likelihood: Likelihood, outputs: jax.Array) -> jax.Array:
    """Class probabilities, or the means of the targets, [batch, width]; the width may be 0."""
    if isinstance(likelihood, Classification):
        return jnp.exp(likelihood.log_probs(outputs))
    if isinstance(likelihood, Regression):
        return likelihood.mean(outputs.reshape(len(outputs), -1))
    return jnp.zeros((len(outputs), 0))


def width(likelihood: Likelihood, outputs: tuple[int, ...]) -> int:
    """The width of the expectation for outputs of this shape for one example."""
    one = jax.ShapeDtypeStruct((1, *outputs), jnp.float32)
    return jax.eval_shape(lambda f: expectation(likelihood, f), one).shape[-1]


def deviations(likelihood: Likelihood, expected: Any, y: Any) -> Any:
    """One score of every example: whether the class is right, or the squared error, [n].

    For NumPy and for JAX arrays.
    """
    if isinstance(likelihood, Classification):
        return expected.argmax(-1) == y.reshape(-1)
    if isinstance(likelihood, Regression):
        return ((expected - y.reshape(expected.shape)) ** 2).mean(-1)
    return expected.sum(-1) * float("nan")


def averaged(name: ScoreName, total: np.ndarray, count: int) -> np.ndarray:
    """The measure from the sum of the scores of single examples."""
    return np.sqrt(total / count) if name == "rmse" else total / count
