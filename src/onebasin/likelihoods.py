"""Likelihoods: log p(y | outputs) of a network, with checks of targets and outputs.

A likelihood is a small frozen value that can be compared, hashed and written to a file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.choices import LikelihoodName, check_choice
from onebasin.trees import PyTree

LOG_2PI = math.log(2 * math.pi)


@runtime_checkable
class Likelihood(Protocol):
    """The contract of a likelihood: log p(y | outputs), a score, and checks."""

    name: ClassVar[str]
    classifies: ClassVar[bool]
    """Whether outputs are logits, so that accuracy and class probabilities are defined."""
    score_name: ClassVar[str]
    """The name of the score."""

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """log p(y | outputs) of every example, [batch]."""
        ...

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The score of every example, shown beside the loss, [batch]."""
        ...

    def targets(self, y: ArrayLike) -> np.ndarray:
        """The targets in the type the likelihood needs; targets of the wrong kind are refused."""
        ...

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        """Refuse outputs of a `shape` [batch, ...] that does not match the targets."""
        ...


@dataclass(frozen=True)
class Categorical:
    """log p(y | z) = log softmax(z)_y for integer labels y and logits z [batch, classes].

    >>> import jax.numpy as jnp, onebasin as ob
    >>> round(ob.likelihoods.Categorical()(jnp.zeros((1, 4)), jnp.array([2])).item(), 4)  # log ¼
    -1.3863
    """

    name: ClassVar[str] = "categorical"
    classifies: ClassVar[bool] = True
    score_name: ClassVar[str] = "accuracy"

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=-1)[:, 0]

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """One if the largest logit is that of the label, else zero."""
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)

    def targets(self, y: ArrayLike) -> np.ndarray:
        labels = np.asarray(y)
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"y has shape {labels.shape} and type {labels.dtype}; the categorical likelihood "
                "needs one integer label per example (for real targets give likelihood='gaussian')"
            )
        return labels.astype(np.int32)

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        check_classes(y, check_logits(shape))


@dataclass(frozen=True)
class Gaussian:
    """log p(y | f) = Σ log N(y; f, noise_std²) for real targets, summed over the outputs.

    Args:
      noise_std: the standard deviation of the observation noise.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> log_p = ob.likelihoods.Gaussian(noise_std=2.0)
    >>> round(log_p(jnp.zeros((1, 1)), jnp.zeros((1, 1))).item(), 4)  # −log 2√(2π)
    -1.6121
    """

    noise_std: float = 1.0
    name: ClassVar[str] = "gaussian"
    classifies: ClassVar[bool] = False
    score_name: ClassVar[str] = "squared_error"

    def __post_init__(self) -> None:
        check_positive(self.noise_std, "noise_std")

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        residual = (outputs.reshape(y.shape) - y) / self.noise_std
        log_density = -0.5 * (residual**2 + LOG_2PI) - math.log(self.noise_std)
        return log_density.reshape(len(y), -1).sum(-1)

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The squared error, averaged over the outputs."""
        return ((outputs.reshape(y.shape) - y) ** 2).reshape(len(y), -1).mean(-1)

    def targets(self, y: ArrayLike) -> np.ndarray:
        values = np.asarray(y)
        if not np.issubdtype(values.dtype, np.number) or not np.isfinite(values).all():
            raise ValueError("the Gaussian likelihood needs finite real targets; clean y first")
        return values.astype(np.float64 if values.dtype == np.float64 else np.float32)

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        if math.prod(shape[1:]) != math.prod(y.shape[1:]):
            raise ValueError(
                f"the network returns shape {shape} for targets of shape "
                f"{(shape[0], *y.shape[1:])}; give it one output per target"
            )


@dataclass(frozen=True)
class Custom:
    """A likelihood given as a function `log_likelihood(outputs, y) -> [batch]`.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> poisson = ob.likelihoods.Custom(lambda f, y: (y * f - jnp.exp(f))[:, 0])  # up to log y!
    >>> poisson(jnp.zeros((2, 1)), jnp.array([[0], [3]])).tolist()
    [-1.0, -1.0]
    """

    function: Callable[[jax.Array, jax.Array], jax.Array]
    name: ClassVar[str] = "custom"
    classifies: ClassVar[bool] = False
    score_name: ClassVar[str] = "log_likelihood"

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return self.function(outputs, y)

    score = __call__

    def targets(self, y: ArrayLike) -> np.ndarray:
        return np.asarray(y)

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        del shape, y


LikelihoodLike: TypeAlias = (
    Likelihood | LikelihoodName | Callable[[jax.Array, jax.Array], jax.Array]
)
NAMED: dict[str, type[Categorical] | type[Gaussian]] = {
    "categorical": Categorical,
    "gaussian": Gaussian,
}


def likelihood_of(given: LikelihoodLike) -> Likelihood:
    """A likelihood from a name, a likelihood, or a function of (outputs, y)."""
    if isinstance(given, Likelihood):
        return given
    if callable(given):
        return Custom(given)
    check_choice(given, LikelihoodName, "likelihood")
    return NAMED[given]()


def settings_of(likelihood: Likelihood) -> dict[str, Any]:
    """The likelihood as a JSON value: its name, and the plain fields of a dataclass.

    A custom function is recorded only as "custom".
    """
    names = [field.name for field in fields(likelihood)] if is_dataclass(likelihood) else []
    own = {name: getattr(likelihood, name) for name in names}
    plain = {
        name: value for name, value in own.items() if isinstance(value, bool | int | float | str)
    }
    return {"name": likelihood.name, **plain}


def check_output(outputs: PyTree, batch: int) -> tuple[int, ...]:
    """The shape of the outputs of a network, which must be one array, batch first."""
    shape = jax.tree.map(lambda leaf: leaf.shape, outputs)
    if not jax.tree_util.all_leaves([outputs]) or shape[:1] != (batch,):
        raise ValueError(
            f"apply(params, x) returned {shape} for a batch of {batch}; "
            "it must return one array, batch first"
        )
    return shape


def check_logits(shape: tuple[int, ...]) -> int:
    """The number of classes of logits [batch, classes]."""
    if len(shape) != 2:
        raise ValueError(f"apply returned shape {shape}; logits must have shape [batch, classes]")
    return shape[1]


def check_classes(y: ArrayLike, classes: int) -> np.ndarray:
    """Integer labels [n] below the number of classes, as int32."""
    labels = Categorical().targets(y)
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
