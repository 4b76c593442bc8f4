"""The posterior mode by minibatch gradients, and ensembles of modes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from onebasin.inference.methods import MAP, Ensemble
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.optimisers import direction, schedule
from onebasin.inference.program import Info, Program, seconds_per_step, training_data
from onebasin.keys import subkey
from onebasin.posterior import Samples
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters


class MAPState(NamedTuple):
    params: PyTree
    optimiser: Any


def build(problem: Problem, method: MAP | Ensemble) -> Program:
    """One lane per member; a member is what `MAP` with the same key gives."""
    members = method.members if isinstance(method, Ensemble) else 1
    batches = Minibatches.of(problem, method.batch_size)
    steps = method.epochs * batches.per_epoch
    optimiser = direction(method.optimiser, method.momentum)
    course = schedule(method.schedule, steps, method.warmup_epochs * batches.per_epoch)
    examples = problem.num_examples
    base = method.learning_rate * (examples if method.learning_rate_on == "sum" else 1)

    def init(key: jax.Array, data: Batch) -> MAPState:
        del data
        params = problem.init(subkey(key, "init"))
        return MAPState(params, optimiser.init(params))

    def loss(params: PyTree, batch: Batch) -> tuple[jax.Array, Info]:
        log_posterior, aux = problem.log_posterior(params, batch)
        value = -log_posterior / examples
        return value, {"loss": value, **aux}

    def step(state: MAPState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[MAPState, Info]:
        (batch,) = batches.take(data, key, t)
        (_, info), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
        move, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
        rate = jnp.asarray(base * course(t))
        params = jax.tree.map(lambda p, u: p - rate.astype(p.dtype) * u, state.params, move)
        return MAPState(params, optimiser_state), info

    def finish(states: MAPState, draws: PyTree | None) -> Samples:
        del draws
        return Samples(states.params, jnp.arange(members, dtype=jnp.int32))

    return Program(
        lanes=members,
        own_key=isinstance(method, MAP),
        reports=("loss", "nll", problem.log_likelihood.score_name),
        steps=steps,
        data=training_data(problem),
        init=init,
        step=step,
        finish=finish,
        seconds_per_step=seconds_per_step(
            3 * problem.flops * batches.size, num_parameters(problem.shapes)
        ),
        steps_per_epoch=batches.per_epoch,
        likely_cause=f"a learning rate of {method.learning_rate:g} that is too high",
    )
