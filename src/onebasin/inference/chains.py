"""What the programs of all Markov chains share."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from onebasin.inference.full_batch import chunked
from onebasin.inference.methods import HMC, NUTS
from onebasin.inference.program import DrawPlan, Info, Program, seconds_per_step
from onebasin.problem import Problem
from onebasin.trees import PyTree, num_parameters


def chain_program(
    problem: Problem,
    method: HMC | NUTS,
    *,
    init: Callable[[jax.Array, PyTree], Any],
    step: Callable[[Any, jax.Array, jax.Array, PyTree], tuple[Any, Info]],
    steps_per_transition: int = 1,
    gradients_per_step: int = 1,
) -> Program:
    """One replica per chain; a state has the fields `chain` and `records`."""
    gradient_flops = 3 * problem.flops * problem.num_examples
    gradient_seconds = seconds_per_step(gradient_flops, 2 * num_parameters(problem.shapes))
    return Program(
        replicas=method.chains,
        uses_run_key=False,
        steps=(method.warmup + method.draws * method.thin) * steps_per_transition,
        data=chunked(problem, method.data_chunk),
        reports=("loss", "transitions", "acceptance", "divergences", "step_size"),
        init=init,
        step=step,
        seconds_per_step=gradients_per_step * gradient_seconds,
        likely_cause="starting weights on which the network overflows",
        draws=DrawPlan(
            per_replica=method.draws,
            first=(method.warmup + method.thin) * steps_per_transition - 1,
            every=method.thin * steps_per_transition,
            read=lambda state: {"params": state.chain.position, "records": state.records},
        ),
        summarise=summarise,
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


def summarise(sums: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """Mean acceptance of the transitions that ended, number of divergences, means of the rest."""
    ended = sums["transitions"]
    return {
        "loss": sums["loss"] / steps,
        "transitions": ended,
        "acceptance": sums["acceptance"] / np.maximum(ended, 1),
        "divergences": sums["divergences"],
        "step_size": sums["step_size"] / steps,
    }
