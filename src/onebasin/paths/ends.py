"""What all paths share: the interval, checks of the ends, and linear interpolation."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from onebasin.posterior import Posterior
from onebasin.trees import PyTree, check_same_shapes, shapes_by_path


def check_t(t: float) -> float:
    """Refuse a t outside [0, 1]."""
    value = float(t)
    if math.isnan(value) or not 0.0 <= value <= 1.0:
        raise ValueError(f"a path is defined for t in [0, 1], got t = {value:g}")
    return value


def check_ends(q0: Posterior, q1: Posterior) -> None:
    """Refuse ends that are not posteriors, or that are posteriors over different params."""
    for name, q in (("q0", q0), ("q1", q1)):
        if not isinstance(q, Posterior):
            raise ValueError(
                f"{name} is a {type(q).__name__}; give a posterior such as a MeanField or Samples "
                "at each end (for plain params use line)"
            )
    check_same_shapes(q0.like, q1.like, "q1 must have the params of q0 but")


def check_states(state0: PyTree | None, state1: PyTree | None) -> None:
    """Refuse ends if only one has running statistics, or if the statistics differ in shape."""
    if (state0 is None) != (state1 is None):
        which = "q0" if state1 is None else "q1"
        raise ValueError(
            f"only {which} has running statistics (state); give both ends theirs, or neither"
        )
    if state0 is not None and shapes_by_path(state0) != shapes_by_path(state1):
        raise ValueError(
            "the running statistics of q0 and q1 have different shapes; give both ends those of "
            "one network"
        )


def lerp(t: ArrayLike, start: PyTree, end: PyTree) -> PyTree:
    """(1−t)·start + t·end, leaf by leaf; exact at both ends. Integer leaves keep their start."""

    def leaf(a: ArrayLike, b: ArrayLike) -> jax.Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return a
        weight = jnp.asarray(t, a.dtype)
        return (1 - weight) * a + weight * b

    return jax.tree.map(leaf, start, end)
