"""Optimisers and learning-rate schedules by name, from Optax."""

from collections.abc import Callable
from typing import Any, Literal

import optax

OptimiserName = Literal["adam", "sgd"]
ScheduleName = Literal["cosine", "constant", "linear", "exponential"]


def direction(name: OptimiserName, momentum: float) -> optax.GradientTransformation:
    """What turns a gradient into a step of learning rate 1 (to be subtracted).

    For Adam `momentum` is β₁; for SGD it is the heavy-ball factor.
    """
    if name == "adam":
        return optax.scale_by_adam(b1=momentum)
    return optax.trace(decay=momentum) if momentum else optax.identity()


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
