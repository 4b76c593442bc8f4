"""Train many networks from given weights and return them after given numbers of steps.

`fit` starts from the problem's initialisation and returns the last weights. Studies of training
choose both. The gradient steps are those of `MAP`.
"""

from collections.abc import Sequence

import jax
import numpy as np

from onebasin.inference import map_estimate
from onebasin.inference.loop import compile_loop, default_chunk
from onebasin.inference.methods import MAP
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.replicas import Replicas
from onebasin.problem import Problem
from onebasin.progress import Progress, reporting
from onebasin.trees import PyTree, check_same_shapes


def train(
    problem: Problem,
    method: MAP,
    starts: PyTree,
    *,
    keys: jax.Array,
    checkpoints: Sequence[int] | None = None,
    progress: Progress = "auto",
) -> list[PyTree]:
    """The params [networks, ...] after each of the numbers of steps in `checkpoints`.

    Args:
      problem: the network, data and prior.
      method: epochs, batches, optimiser and learning rate.
      starts: params with a leading axis of networks.
      keys: one key per network, for the order of its batches.
      checkpoints: increasing numbers of steps, 0 for the start; by default the end alone.
      progress: how to show progress, or a function of (what, done, total).
    """
    check_same_shapes(problem.shapes, starts, "the starts", lead=1)
    count = jax.tree.leaves(starts)[0].shape[0]
    if keys.shape != (count,):
        raise ValueError(f"there are {count} starts and keys of shape {keys.shape}; give one each")
    program = map_estimate.build(problem, method)
    steps = [program.steps] if checkpoints is None else [int(step) for step in checkpoints]
    if not steps or steps != sorted(set(steps)) or steps[0] < 0 or steps[-1] > program.steps:
        raise ValueError(
            f"checkpoints must increase from 0 to at most {program.steps} steps, got {steps}"
        )
    replicas = Replicas.of(program, count)
    placed_keys, data = replicas.place(keys), replicas.place_data(program.data)
    states = replicas.initial_states(program, placed_keys, data)
    # The initial state of the optimiser does not depend on the weights.
    states = states._replace(params=replicas.place(starts))
    chunk = default_chunk(program, replicas, problem.shapes)
    loop = compile_loop(program, replicas, states, placed_keys, data, chunk)
    found, done = [], 0
    with reporting(progress) as report:
        for step in steps:
            while done < step:
                stop = min(done + chunk, step)
                states, chunk_report = loop.run(
                    states, placed_keys, data, np.int32(done), np.int32(stop)
                )
                if (np.asarray(chunk_report.first_bad) >= 0).any():
                    raise ValueError(
                        f"the loss is not finite within {stop} steps; likely {program.likely_cause}"
                    )
                done = stop
                report("training", done, steps[-1])
            found.append(replicas.to_host(states.params))
    return found


def steps_per_epoch(problem: Problem, method: MAP) -> int:
    """Gradient steps in one pass over the training data."""
    return Minibatches.of(problem, method.batch_size).per_epoch
