"""Stochastic weight averaging, Gaussian (SWAG): the moments of an SGD trajectory.

Weights θ₁, θ₂, … are collected at a constant learning rate. With their mean m, their variance v of
every coordinate and the last K deviations dᵢ = θᵢ − mᵢ, where mᵢ is the mean of the first i, the
posterior is (Maddox et al. 2019, eq. 1)

    N(m, ½ diag(v) + ½ Σᵢ dᵢ dᵢᵀ / (K − 1)).

Mean and variance are updated with Welford's formula: the difference of the averages of θ² and θ
would lose small variances to rounding.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from onebasin.inference.map_estimate import posterior_loss
from onebasin.inference.methods import SWAG
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.optimisers import descend, direction, schedule
from onebasin.inference.program import Info, Program, seconds_per_step
from onebasin.keys import subkey
from onebasin.posterior import LowRank
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters, take_entry


class Collected(NamedTuple):
    """How often, mean and summed squares of the collected weights, and the last deviations."""

    times: jax.Array
    mean: PyTree
    squares: PyTree
    deviations: PyTree  # [rank, ...], overwritten in turn


class SWAGState(NamedTuple):
    params: PyTree
    optimiser: optax.OptState
    collected: Collected
    state: PyTree | None = None


def build(problem: Problem, method: SWAG) -> Program:
    batches = Minibatches.of(problem, method.batch_size)
    steps = method.epochs * batches.per_epoch
    first = round(method.start * steps)
    every = max(1, batches.per_epoch // method.collect_per_epoch)
    collected = (steps - first) // every
    if collected < method.rank:
        raise ValueError(
            f"SWAG collects weights {collected} times, fewer than the rank of {method.rank}; "
            "give more epochs, an earlier start, a larger collect_per_epoch or a smaller rank"
        )
    optimiser = direction(method.optimiser, method.momentum)
    loss = posterior_loss(problem)
    unit = problem.num_examples if method.learning_rate_on == "sum" else 1
    decay = schedule(method.schedule, first, method.warmup_epochs * batches.per_epoch)

    def rate(t: jax.Array) -> jax.Array:
        """The given course down to the rate of collection, and that rate from then on."""
        above = jnp.where(t < first, decay(t), 0.0)
        difference = method.learning_rate - method.collect_rate
        return jnp.asarray(unit * (method.collect_rate + difference * above))

    def init(key: jax.Array, data: Batch) -> SWAGState:
        del data
        params = problem.init(subkey(key, "init"))
        zeros = jax.tree.map(jnp.zeros_like, params)
        rows = jax.tree.map(lambda p: jnp.zeros((method.rank, *p.shape), p.dtype), params)
        nothing = Collected(jnp.int32(0), zeros, zeros, rows)
        return SWAGState(params, optimiser.init(params), nothing, problem.state)

    def collect(so_far: Collected, params: PyTree) -> Collected:
        count = so_far.times + 1
        before = jax.tree.map(jnp.subtract, params, so_far.mean)
        mean = jax.tree.map(lambda m, d: m + d / count.astype(m.dtype), so_far.mean, before)
        after = jax.tree.map(jnp.subtract, params, mean)
        squares = jax.tree.map(lambda s, a, b: s + a * b, so_far.squares, before, after)
        slot = so_far.times % method.rank
        rows = jax.tree.map(lambda r, d: r.at[slot].set(d), so_far.deviations, after)
        return Collected(count, mean, squares, rows)

    def step(state: SWAGState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[SWAGState, Info]:
        (batch,) = batches.take(data, key, t)
        batch = batch._replace(state=state.state)
        (_, (info, after)), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
        update, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
        params = descend(state.params, update, rate(t))
        since = t + 1 - first
        due = (since > 0) & (since % every == 0)
        so_far = jax.lax.cond(
            due, lambda: collect(state.collected, params), lambda: state.collected
        )
        return SWAGState(params, optimiser_state, so_far, after), info

    def finish(states: SWAGState) -> LowRank:
        return gaussian(take_entry(states.collected, 0))

    return batches.program(problem, method)(
        replicas=1,
        uses_run_key=True,
        reports=("loss", "nll", problem.log_likelihood.score_name),
        init=init,
        step=step,
        finish=finish,
        measures_state=True,
        posterior_trees=2 + method.rank,
        seconds_per_step=seconds_per_step(
            3 * problem.flops * batches.size, num_parameters(problem.shapes)
        ),
        likely_cause=f"a learning rate of {method.learning_rate:g} that is too high",
    )


def gaussian(collected: Collected) -> LowRank:
    """½ of the variances on the diagonal, ½ of the covariance of the last deviations."""
    count = jnp.asarray(collected.times)
    rank = jax.tree.leaves(collected.deviations)[0].shape[0]

    def std(squares: jax.Array) -> jax.Array:
        variance = squares / (2 * count.astype(squares.dtype))
        # A weight that never moved has no variance, but the std of a Gaussian is positive.
        return jnp.sqrt(jnp.maximum(variance, jnp.finfo(squares.dtype).tiny))

    factors = jax.tree.map(
        lambda d: jnp.asarray(d) / math.sqrt(2 * (rank - 1)), collected.deviations
    )
    return LowRank(
        jax.tree.map(jnp.asarray, collected.mean), jax.tree.map(std, collected.squares), factors
    )
