"""What the programs of all Markov chains share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference.full_batch import chunked
from onebasin.inference.map_estimate import MAPState
from onebasin.inference.methods import FullBatchMethod
from onebasin.inference.opening import opening
from onebasin.inference.program import DrawPlan, Info, Program, Summary, seconds_per_step
from onebasin.inference.shards import Shards
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters

REPORTS = ("loss", "transitions", "acceptance", "divergences", "step_size")


class Begun(NamedTuple):
    """A chain and the training that leads to its start."""

    mode: MAPState
    sampler: Any


def chain_program(
    problem: Problem,
    method: FullBatchMethod,
    shards: Shards,
    *,
    start: Callable[[PyTree, jax.Array, Batch], Any],
    step: Callable[[Any, jax.Array, jax.Array, Batch], tuple[Any, Info]],
    steps_per_transition: int = 1,
    gradients_per_step: int = 1,
    reports: tuple[str, ...] = REPORTS,
    summarise: Summary | None = None,
) -> Program:
    """One replica per chain; a state has the fields `chain` and `records`.

    `start(position, key, data)` is the state of a chain at a position: that of `problem.init`, or
    with `mode_epochs` a mode that an opening of as many steps of the loop leads to. Running
    statistics are held at those of the problem or of the mode.
    """
    gradient_flops = 3 * problem.flops * problem.num_examples
    gradient_seconds = seconds_per_step(gradient_flops, 2 * num_parameters(problem.shapes))
    epochs = method.mode_epochs

    def init(key: jax.Array, data: Batch) -> Any:
        return start(problem.init(subkey(key, "init")), key, data)

    train = opening(problem, max(epochs, 1), method.mode_rate, shards)

    def first(key: jax.Array, data: Batch) -> Begun:
        return Begun(train.init(key), init(key, data))

    def advance(state: Begun, key: jax.Array, t: jax.Array, data: Batch) -> tuple[Begun, Info]:
        def sample() -> tuple[Begun, Info]:
            held = data._replace(state=state.mode.state)
            chain, info = step(state.sampler, key, jnp.maximum(t - epochs, 0), held)
            return Begun(state.mode, chain), info

        like = jax.eval_shape(sample)[1]

        def learn() -> tuple[Begun, Info]:
            mode, info = train.epoch(state.mode, key, t, data)
            begin = lambda: start(mode.params, key, data._replace(state=mode.state))
            chain = jax.lax.cond(t == epochs - 1, begin, lambda: state.sampler)
            zeros = {name: jnp.zeros((), like[name].dtype) for name in like}
            return Begun(mode, chain), zeros | {"loss": info["loss"].astype(like["loss"].dtype)}

        return jax.lax.cond(t < epochs, learn, sample)

    def read(state: Any) -> PyTree:
        own = state.sampler if epochs else state
        return {"params": own.chain.position, "records": own.records}

    return Program(
        replicas=method.chains,
        uses_run_key=False,
        steps=epochs + (method.warmup + method.draws * method.thin) * steps_per_transition,
        data=chunked(problem, method.data_chunk, shards.count),
        splits_data=shards.count > 1,
        reports=reports,
        init=first if epochs else init,
        step=advance if epochs else step,
        seconds_per_step=gradients_per_step * gradient_seconds,
        likely_cause="starting weights on which the network overflows",
        measures_state=True,
        draws=DrawPlan(
            per_replica=method.draws,
            first=epochs + (method.warmup + method.thin) * steps_per_transition - 1,
            every=method.thin * steps_per_transition,
            read=read,
        ),
        summarise=summarise or summary,
    )


def report(problem: Problem, records: Info, step_size: jax.Array, ended: jax.Array) -> Info:
    """The reported scalars of a step; `ended` is 1 at the end of a transition and 0 before."""
    return {
        "loss": -records["log_density"] / problem.num_examples,
        "transitions": ended,
        "acceptance": ended * records["acceptance"],
        "divergences": ended * records["divergent"],
        "step_size": step_size,
    }


def summary(sums: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """Mean acceptance of the transitions that ended, means per step, and counts."""
    ended = sums["transitions"]
    counts = {name: sums[name] for name in ("leapfrog_steps",) if name in sums}
    return counts | {
        "loss": sums["loss"] / steps,
        "transitions": ended,
        "acceptance": sums["acceptance"] / np.maximum(ended, 1),
        "divergences": sums["divergences"],
        "step_size": sums["step_size"] / steps,
    }
