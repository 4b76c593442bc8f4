"""What is observed given a network's outputs: log p(y | outputs), checked before any compute.

A likelihood is a small frozen value, so that it can be compared, hashed and written into a file.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.choices import LikelihoodName, check_choice

LOG_2PI = math.log(2 * math.pi)


@runtime_checkable
class Likelihood(Protocol):
    """log p(y | outputs), what is shown beside it, and which targets and outputs it takes."""

    name: ClassVar[str]
    classifies: ClassVar[bool]
    """Whether outputs are logits, so that accuracy and class probabilities are defined."""
    score_name: ClassVar[str]
    """The name of what `score` gives."""

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """log p(y | outputs) of every example, [batch]."""
        ...

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """What is shown beside the loss for every example, [batch]."""
        ...

    def targets(self, y: ArrayLike) -> np.ndarray:
        """The targets in the type the likelihood needs, or an error that says what is wrong."""
        ...

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        """Refuse outputs of a shape [batch, ...] that do not fit the targets."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Integer labels; outputs are logits [batch, classes].

    >>> Categorical()(jnp.zeros((1, 4)), jnp.array([2])).item()  # log ¼
    -1.3862943649291992
    """

    name: ClassVar[str] = "categorical"
    classifies: ClassVar[bool] = True
    score_name: ClassVar[str] = "accuracy"

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=-1)[:, 0]

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """One for a hit, zero for a miss."""
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
    """Real targets with independent noise of one standard deviation around the outputs.

    >>> Gaussian(noise_std=2.0)(jnp.zeros((1, 1)), jnp.zeros((1, 1))).item()  # -log 2√(2π)
    -1.6120857000350952
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
        """The squared error, averaged over the targets of an example."""
        return ((outputs.reshape(y.shape) - y) ** 2).reshape(len(y), -1).mean(-1)

    def targets(self, y: ArrayLike) -> np.ndarray:
        values = np.asarray(y)
        if not np.issubdtype(values.dtype, np.number) or not np.isfinite(values).all():
            raise ValueError("y must hold finite numbers for the Gaussian likelihood")
        return values.astype(np.float64 if values.dtype == np.float64 else np.float32)

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        if math.prod(shape[1:]) != math.prod(y.shape[1:]):
            raise ValueError(
                f"the network returns shape {shape} for targets of shape "
                f"{(shape[0], *y.shape[1:])}; give it one output per target"
            )


@dataclass(frozen=True)
class Custom:
    """A caller's own `log_likelihood(outputs, y) -> [batch]`."""

    function: Callable[[jax.Array, jax.Array], jax.Array]
    name: ClassVar[str] = "custom"
    classifies: ClassVar[bool] = False
    score_name: ClassVar[str] = "log_likelihood"

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return self.function(outputs, y)

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return self.function(outputs, y)

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
    """A likelihood from its name, from a value, or from a function of (outputs, y)."""
    if isinstance(given, Likelihood):
        return given
    if callable(given):
        return Custom(given)
    check_choice(given, LikelihoodName, "likelihood")
    return NAMED[given]()


def settings_of(likelihood: Likelihood) -> dict[str, Any]:
    """The likelihood as a file keeps it; a caller's function only by its name."""
    own = asdict(likelihood) if isinstance(likelihood, Categorical | Gaussian) else {}
    return {"name": likelihood.name, **own}


def check_output(outputs: Any, batch: int) -> tuple[int, ...]:
    """The shape of what a network returns, which must be one array, batch first."""
    shape = getattr(outputs, "shape", None)
    if shape is None or shape[:1] != (batch,):
        raise ValueError(
            f"apply(params, x) returned {jax.tree.map(lambda o: o.shape, outputs)} for a batch of "
            f"{batch}; it must return one array, batch first"
        )
    return shape


def check_logits(shape: tuple[int, ...]) -> int:
    """The number of classes of logits [batch, classes]."""
    if len(shape) != 2:
        raise ValueError(f"apply returned shape {shape}; logits need the shape [batch, classes]")
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
    """Refuse what is not a finite number above zero."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
