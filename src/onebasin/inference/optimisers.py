"""Optimisers and learning-rate schedules by name, from Optax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from onebasin.inference.methods import OptimiserName, ScheduleName
from onebasin.trees import PyTree

SECOND, EPSILON = 0.999, 1e-8  # Adam's β₂ and ε


def direction(name: OptimiserName, momentum: float) -> optax.GradientTransformation:
    """The transformation of a gradient into a step of learning rate 1, to be subtracted.

    `momentum` is β₁ of Adam, or the heavy-ball factor of SGD.
    """
    if name == "adam":
        return optax.scale_by_adam(b1=momentum, b2=SECOND, eps=EPSILON)
    return optax.trace(decay=momentum)


def last_direction(state: optax.OptState, momentum: float) -> PyTree:
    """The direction of the update that produced this state; zero before the first.

    A loop that takes its step at the start of the next iteration reads the moments before it
    writes them, so XLA updates them in place; otherwise it copies them at every step.
    """
    if isinstance(state, optax.TraceState):
        return state.trace
    assert isinstance(state, optax.ScaleByAdamState)
    count = jnp.maximum(state.count, 1)

    def of_leaf(mean: jax.Array, square: jax.Array) -> jax.Array:
        # With JAX_ENABLE_X64 a power of an integer is double and would make the direction so.
        dtype = jnp.promote_types(mean.dtype, jnp.float32)
        first, second = ((1 - decay**count).astype(dtype) for decay in (momentum, SECOND))
        return (mean / first) / (jnp.sqrt(square / second) + EPSILON)

    return jax.tree.map(of_leaf, state.mu, state.nu)


def descend(params: PyTree, direction: PyTree, rate: jax.Array) -> PyTree:
    """params − rate × direction, in the precision of params."""
    return jax.tree.map(lambda p, u: p - rate.astype(p.dtype) * u, params, direction)


def schedule(name: ScheduleName, steps: int, warmup_steps: int = 0) -> Callable[..., Any]:
    """t → the factor in [0, 1] on the learning rate at step t."""
    after = max(steps - warmup_steps, 1)
    decays = {
        "cosine": lambda: optax.cosine_decay_schedule(1.0, after),
        "constant": lambda: optax.constant_schedule(1.0),
        "linear": lambda: optax.linear_schedule(1.0, 0.0, after),
        "exponential": lambda: optax.exponential_decay(1.0, after, 1e-2),
    }
    decay = decays[name]()
    if not warmup_steps:
        return decay
    rise = optax.linear_schedule(0.0, 1.0, warmup_steps)
    return optax.join_schedules([rise, decay], [warmup_steps])
