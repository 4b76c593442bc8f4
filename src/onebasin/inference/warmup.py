"""Warm-up of a sampler as a state that moves one transition at a time.

BlackJAX's window adaptation runs as one uninterrupted scan; a fit must be able to stop and resume
anywhere. So its parts (dual averaging, Welford's moments, Stan's schedule) are stepped here.

A step size that is given is grown into: where a fit begins the posterior can be far stiffer than
where it belongs, and a chain whose every trajectory is rejected never leaves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.adaptation.mass_matrix import MassMatrixAdaptationState, mass_matrix_adaptation
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule

from onebasin.inference.methods import HMC, NUTS
from onebasin.trees import PyTree


class Tuning(NamedTuple):
    """Step size and (diagonal) inverse mass in force, and what their adaptation carries."""

    step_size: jax.Array
    inverse_mass: jax.Array
    dual_averaging: DualAveragingAdaptationState
    moments: MassMatrixAdaptationState | None


class Warmup(NamedTuple):
    init: Callable[[jax.Array], Tuning]
    update: Callable[[Tuning, jax.Array, PyTree, jax.Array], Tuning]


def build_warmup(method: HMC | NUTS) -> Warmup:
    start, average, settle = dual_averaging_adaptation(method.target_acceptance)
    first, add, window_end = mass_matrix_adaptation(is_diagonal_matrix=True)
    schedule = build_schedule(method.warmup) if method.warmup else None
    growing = 1 if method.adapt_step_size else max(1, method.warmup // 2)

    def init(inverse_mass: jax.Array) -> Tuning:
        step_size = jnp.asarray(method.step_size / growing, inverse_mass.dtype)
        averaging = jax.tree.map(jnp.asarray, start(step_size))
        if not method.adapt_mass:
            return Tuning(step_size, inverse_mass, averaging, None)
        moments = jax.tree.map(jnp.asarray, first(inverse_mass.size, inverse_mass))
        return Tuning(step_size, inverse_mass, averaging, moments)

    def update(tuning: Tuning, n: jax.Array, position: PyTree, acceptance: jax.Array) -> Tuning:
        """The tuning after transition n of the warm-up; afterwards it stays as it is."""
        if schedule is None:
            return tuning
        stage, ends = schedule[jnp.minimum(n, method.warmup - 1)]
        moved = tuning
        if method.adapt_step_size:
            averaging = average(tuning.dual_averaging, acceptance)
            moved = moved._replace(
                dual_averaging=averaging, step_size=jnp.exp(averaging.log_step_size)
            )
        else:
            grown = jnp.minimum(1, (n + 2) / growing)
            moved = moved._replace(step_size=method.step_size * grown)
        if method.adapt_mass:
            moved = _adapt_mass(moved, position, stage == 1, ends == 1)
        if method.adapt_step_size:
            last = n == method.warmup - 1
            settled = settle(moved.dual_averaging)
            moved = moved._replace(step_size=jnp.where(last, settled, moved.step_size))
        moved = jax.tree.map(lambda new, old: new.astype(old.dtype), moved, tuning)
        during = n < method.warmup
        return jax.tree.map(lambda new, old: jnp.where(during, new, old), moved, tuning)

    def _adapt_mass(tuning: Tuning, position: PyTree, slow: Any, ends: Any) -> Tuning:
        moments = _choose(slow, add(tuning.moments, position), tuning.moments)
        closed = window_end(moments)
        restarted = start(settle(tuning.dual_averaging))
        fresh = tuning._replace(moments=closed, inverse_mass=closed.inverse_mass_matrix)
        if method.adapt_step_size:
            fresh = fresh._replace(
                dual_averaging=restarted, step_size=jnp.exp(restarted.log_step_size)
            )
        return _choose(ends, fresh, tuning._replace(moments=moments))

    return Warmup(init, update)


def _choose(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
