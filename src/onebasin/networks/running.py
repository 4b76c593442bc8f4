"""Running statistics: how a network updates them, and how they are measured on data.

A normalisation layer keeps a mean and a variance of what it receives. In training it normalises by
those of the batch and moves the running ones towards them by its momentum; otherwise it normalises
by the running ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from onebasin.trees import PyTree, leaves_by_path

# Arguments by which modules are told to train, and their values in training.
TRAINING = {"train": True, "training": True, "is_training": True, "use_running_average": False}


@dataclass(frozen=True)
class RunningStatistics:
    """The functions by which the running statistics of a network change; adapters make them.

    Args:
      update: `update(params, x, state) -> (outputs, state)`, the network in training mode: outputs
        normalised by the batch, and the running statistics after it.
      observe: `observe(params, x, state) -> state`, the mean and variance over the batch of what
        every normalisation layer receives while all layers normalise by the `state` given, in a
        tree like it.
      pairs: the key paths of mean and variance of every layer in `state`.
    """

    update: Callable[[PyTree, jax.Array, PyTree], tuple[jax.Array, PyTree]]
    observe: Callable[[PyTree, jax.Array, PyTree], PyTree]
    pairs: tuple[tuple[str, str], ...]


def training_arguments(
    call_kwargs: Mapping[str, Any], names: Iterable[str], given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The keyword arguments of a call in training mode.

    Args:
      call_kwargs: those of a call in inference mode.
      names: what the module can be told by its call.
      given: the user's choice, in place of the usual names.
    """
    if given is not None:
        return {**call_kwargs, **given}
    known = {name: TRAINING[name] for name in (*call_kwargs, *names) if name in TRAINING}
    return {**call_kwargs, **known}


def inference_arguments(names: Iterable[str]) -> dict[str, Any]:
    """The keyword arguments of a call in inference mode, by the usual names."""
    return {name: not TRAINING[name] for name in names if name in TRAINING}


def batch_moments(x: jax.Array, feature_axes: int | Iterable[int]) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of every feature over all other axes, in single precision or better."""
    axes = [feature_axes] if isinstance(feature_axes, int) else list(feature_axes)
    kept = {axis % x.ndim for axis in axes}
    over = tuple(axis for axis in range(x.ndim) if axis not in kept)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return x.mean(over), x.var(over)


def sibling_pairs(state: PyTree, mean: str = "mean", var: str = "var") -> list[tuple[str, str]]:
    """The leaves named `mean` that have a neighbour named `var`."""
    names = set(leaves_by_path(state))
    found = []
    for name in sorted(names):
        *parents, last = name.split("/")
        other = "/".join([*parents, var])
        if last == mean and other in names:
            found.append((name, other))
    return found


def check_updated(name: str, before: PyTree, after: PyTree, remedy: str) -> None:
    """Refuse a call in training mode that replaces no statistic; arrays are compared as objects."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    if all(new is old for old, new in pairs):
        raise ValueError(
            f"{name} does not update its running statistics when it is called for training; "
            f"{remedy}"
        )
