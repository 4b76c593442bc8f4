"""Optimisers and learning-rate schedules by name, from Optax."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from onebasin.trees import PyTree

SECOND, EPSILON = 0.999, 1e-8  # Adam's β₂ and ε
OptimiserName = Literal["adam", "sgd"]
ScheduleName = Literal["cosine", "constant", "linear", "exponential"]


def direction(name: OptimiserName, momentum: float) -> optax.GradientTransformation:
    """What turns a gradient into a step of learning rate 1 (to be subtracted).

    For Adam `momentum` is β₁; for SGD it is the heavy-ball factor.
    """
    if name == "adam":
        return optax.scale_by_adam(b1=momentum, b2=SECOND, eps=EPSILON)
    return optax.trace(decay=momentum)


def last_direction(state: Any, momentum: float) -> PyTree:
    """The direction that the update which left this state gave; zero before the first.

    A loop that takes its step at the start of the next iteration reads the moments before it
    writes them, and then XLA updates them in place; otherwise it copies them in every step.
    """
    if isinstance(state, optax.TraceState):
        return state.trace
    assert isinstance(state, optax.ScaleByAdamState)
    count = jnp.maximum(state.count, 1)
    first, second = 1 - momentum**count, 1 - SECOND**count
    return jax.tree.map(
        lambda m, v: (m / first) / (jnp.sqrt(v / second) + EPSILON), state.mu, state.nu
    )


def schedule(name: ScheduleName, steps: int, warmup_steps: int = 0) -> Callable[..., Any]:
    """The factor in [0, 1] on the learning rate at each step."""
    after = max(steps - warmup_steps, 1)
    shapes = {
        "cosine": lambda: optax.cosine_decay_schedule(1.0, after),
        "constant": lambda: optax.constant_schedule(1.0),
        "linear": lambda: optax.linear_schedule(1.0, 0.0, after),
        "exponential": lambda: optax.exponential_decay(1.0, after, 1e-2),
    }
    shape = shapes[name]()
    if not warmup_steps:
        return shape
    rise = optax.linear_schedule(0.0, 1.0, warmup_steps)
    return optax.join_schedules([rise, shape], [warmup_steps])
