"""Labels and likelihoods: log p(y | outputs) for each example, checked before any compute."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Categorical:
    """Integer labels; outputs are logits [batch, classes]."""

    classifies = True

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=-1)[:, 0]


@dataclass(frozen=True)
class Gaussian:
    """Real targets with independent noise of one standard deviation around the outputs."""

    noise_std: float = 1.0
    classifies = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_std) and self.noise_std > 0):
            raise ValueError(f"noise_std must be a positive number, got {self.noise_std!r}")

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        residual = (outputs.reshape(y.shape) - y) / self.noise_std
        density = -0.5 * (residual**2 + math.log(2 * math.pi)) - math.log(self.noise_std)
        return density.reshape(len(y), -1).sum(-1)


@dataclass(frozen=True)
class Custom:
    """A caller's `log_likelihood(outputs, y) -> [batch]`."""

    function: Callable[[jax.Array, jax.Array], jax.Array]
    classifies = False

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return self.function(outputs, y)


Likelihood = Categorical | Gaussian | Custom


def resolve(likelihood: Any) -> Likelihood:
    """A likelihood from its name, from one of the classes here, or from a function."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str) and likelihood in ("categorical", "gaussian"):
        return Categorical() if likelihood == "categorical" else Gaussian()
    if callable(likelihood):
        return Custom(cast(Callable[[jax.Array, jax.Array], jax.Array], likelihood))
    raise ValueError(
        f"there is no likelihood {likelihood!r}; give 'categorical', 'gaussian', "
        "Gaussian(noise_std=...) or a function of (outputs, y)"
    )


def examples(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """x and y from a split with .x and .y or a pair, checked to be as many."""
    if hasattr(data, "x") and hasattr(data, "y"):
        x, y = data.x, data.y
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    else:
        remedy = "name one of its splits, .train or .test" if hasattr(data, "test") else "see docs"
        raise ValueError(
            f"data is a {type(data).__name__}; give a split with .x and .y or a pair (x, y) "
            f"({remedy})"
        )
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise ValueError(f"x has shape {x.shape} and y {y.shape}; they must be as many examples")
    if len(x) == 0:
        raise ValueError("there is no example to evaluate on; give at least one")
    return x, y


def check_outputs(outputs: Any, batch: int) -> tuple[int, ...]:
    """The shape of what `apply` returns, which must be one array, batch first."""
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


def check_labels(y: np.ndarray, likelihood: Likelihood, shape: tuple[int, ...]) -> np.ndarray:
    """Refuse labels that do not fit the outputs."""
    if isinstance(likelihood, Categorical):
        return check_classes(y, check_logits(shape))
    if isinstance(likelihood, Gaussian) and math.prod(shape[1:]) != math.prod(y.shape[1:]):
        raise ValueError(
            f"the network gives outputs of shape {shape[1:]} and the targets have shape "
            f"{y.shape[1:]}; give it one output per target"
        )
    return y


def check_classes(y: Any, classes: int) -> np.ndarray:
    """Integer labels [n] below the number of classes, as int32."""
    y = np.asarray(y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"the labels have shape {y.shape} and type {y.dtype}; give one integer per example"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the labels reach from {low} to {high}, but there are {classes} outputs "
            f"(labels 0 to {classes - 1}); fix the labels or the network"
        )
    return y.astype(np.int32)
