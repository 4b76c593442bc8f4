"""The mode of the posterior by minibatch gradients, and ensembles of modes."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from onebasin.inference.methods import MAP, Ensemble
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.optimisers import descend, direction
from onebasin.inference.program import Info, Program, seconds_per_step
from onebasin.inference.shards import WHOLE, Shards
from onebasin.keys import subkey
from onebasin.posterior import Samples
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters


class MAPState(NamedTuple):
    params: PyTree
    optimiser: optax.OptState
    state: PyTree | None = None


def build(problem: Problem, method: MAP | Ensemble, shards: Shards = WHOLE) -> Program:
    """One replica per member; a member equals the `MAP` fit with the same key."""
    members = method.members if isinstance(method, Ensemble) else 1
    batches = Minibatches.of(problem, method.batch_size)
    batches.check_shares(shards)
    optimiser = direction(method.optimiser, method.momentum)
    learning_rate = batches.learning_rate(method, method.learning_rate, method.schedule)
    loss = posterior_loss(problem)

    def init(key: jax.Array, data: Batch) -> MAPState:
        del data
        params = problem.init(subkey(key, "init"))
        return MAPState(params, optimiser.init(params), problem.state)

    def step(state: MAPState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[MAPState, Info]:
        (batch,) = batches.take(data, key, t, shards=shards)
        batch = batch._replace(state=state.state)
        (_, (info, after)), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
        info, gradient = shards.mean((info, gradient))
        update, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
        params = descend(state.params, update, learning_rate(t))
        return MAPState(params, optimiser_state, after), info

    def finish(states: MAPState) -> Samples:
        return Samples(states.params, jnp.arange(members, dtype=jnp.int32), states.state)

    flops = 3 * problem.flops * batches.size
    return batches.program(problem, method)(
        replicas=members,
        uses_run_key=isinstance(method, MAP),
        reports=("loss", "nll", problem.log_likelihood.score_name),
        init=init,
        step=step,
        finish=finish,
        seconds_per_step=seconds_per_step(flops, num_parameters(problem.shapes)),
        likely_cause=f"a learning rate of {method.learning_rate:g} that is too high",
    )


def posterior_loss(
    problem: Problem,
) -> Callable[[PyTree, Batch], tuple[jax.Array, tuple[Info, PyTree | None]]]:
    """(params, batch) → −log posterior per example; what a step reports, and the new statistics.

    The batch holds the running statistics, if the network has any.
    """

    def loss(params: PyTree, batch: Batch) -> tuple[jax.Array, tuple[Info, PyTree | None]]:
        log_likelihood, aux, state = problem.training_log_likelihood(params, batch)
        scale = problem.num_examples / len(batch.x)
        value = -(scale * log_likelihood + problem.log_prior(params)) / problem.num_examples
        return value, ({"loss": value, **aux}, state)

    return loss
