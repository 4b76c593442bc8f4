"""Warm-up of a sampler as a state that is updated after every transition.

BlackJAX's window adaptation runs as one uninterrupted scan, but a fit must be able to stop and
resume anywhere. So its parts (dual averaging, Welford's moments, Stan's schedule) are called here
one transition at a time.

A given step size that is not adapted grows to its value during the first half of the warm-up: at
the start of a fit the posterior can be far stiffer than in its bulk, and a chain whose every
trajectory is rejected never leaves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.adaptation.mass_matrix import MassMatrixAdaptationState, mass_matrix_adaptation
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule

from onebasin.inference.methods import ChainMethod
from onebasin.trees import PyTree


class Tuning(NamedTuple):
    """The current step size and diagonal inverse mass, and the state of their adaptation."""

    step_size: jax.Array
    inverse_mass: jax.Array
    dual_averaging: DualAveragingAdaptationState
    moments: MassMatrixAdaptationState | None


class Warmup(NamedTuple):
    init: Callable[[jax.Array], Tuning]
    update: Callable[[Tuning, jax.Array, PyTree, jax.Array], Tuning]


def build_warmup(method: ChainMethod) -> Warmup:
    start_averaging, average, averaged = dual_averaging_adaptation(method.target_acceptance)
    start_moments, add, close_window = mass_matrix_adaptation(is_diagonal_matrix=True)
    schedule = build_schedule(method.warmup) if method.warmup else None
    growing = 1 if method.adapt_step_size else max(1, method.warmup // 2)

    def init(inverse_mass: jax.Array) -> Tuning:
        step_size = jnp.asarray(method.step_size / growing, inverse_mass.dtype)
        averaging = jax.tree.map(jnp.asarray, start_averaging(step_size))
        if not method.adapt_mass:
            return Tuning(step_size, inverse_mass, averaging, None)
        moments = jax.tree.map(jnp.asarray, start_moments(inverse_mass.size, inverse_mass))
        return Tuning(step_size, inverse_mass, averaging, moments)

    def update(tuning: Tuning, n: jax.Array, position: PyTree, acceptance: jax.Array) -> Tuning:
        """The tuning after transition n; it is constant after the warm-up."""
        if schedule is None:
            return tuning
        stage, ends = schedule[jnp.minimum(n, method.warmup - 1)]
        new = tuning
        if method.adapt_step_size:
            averaging = average(tuning.dual_averaging, acceptance)
            new = new._replace(dual_averaging=averaging, step_size=jnp.exp(averaging.log_step_size))
        else:
            new = new._replace(step_size=method.step_size * jnp.minimum(1, (n + 2) / growing))
        if method.adapt_mass:
            new = adapt_mass(new, position, stage == 1, ends == 1)
        if method.adapt_step_size:
            last = n == method.warmup - 1
            final = averaged(new.dual_averaging)
            new = new._replace(step_size=jnp.where(last, final, new.step_size))
        new = jax.tree.map(lambda a, b: a.astype(b.dtype), new, tuning)
        return _where(n < method.warmup, new, tuning)

    def adapt_mass(tuning: Tuning, position: PyTree, slow: Any, ends: Any) -> Tuning:
        """Update the moments in a slow window; at its end use them and restart the averaging."""
        moments = _where(slow, add(tuning.moments, position), tuning.moments)
        closed = close_window(moments)
        restarted = start_averaging(averaged(tuning.dual_averaging))
        new = tuning._replace(moments=closed, inverse_mass=closed.inverse_mass_matrix)
        if method.adapt_step_size:
            new = new._replace(dual_averaging=restarted, step_size=jnp.exp(restarted.log_step_size))
        return _where(ends, new, tuning._replace(moments=moments))

    return Warmup(init, update)


def _where(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
