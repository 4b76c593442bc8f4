"""Train many networks from given weights and keep them as they were on the way.

`fit` starts where the problem says and returns the end. Studies of training need both to be
free: here the starts are given, and so are the steps after which all networks are read. The
gradient steps are those of `MAP`.
"""

from collections.abc import Sequence

import jax
import numpy as np

from onebasin.inference import map_estimate
from onebasin.inference.lanes import Lanes
from onebasin.inference.loop import compile_loop, default_chunk
from onebasin.inference.methods import MAP
from onebasin.problem import Problem
from onebasin.progress import Progress, reporting
from onebasin.trees import PyTree, check_same_shapes, num_parameters


def train(
    problem: Problem,
    method: MAP,
    starts: PyTree,
    *,
    keys: jax.Array,
    checkpoints: Sequence[int] | None = None,
    progress: Progress = "auto",
) -> list[PyTree]:
    """Params [networks, ...] after so many steps each, in one program.

    Args:
      method: epochs, batches, optimiser and learning rate.
      starts: params with a leading axis of networks.
      keys: one for each network: the order of its batches.
      checkpoints: numbers of steps, in rising order; by default the end alone. 0 is the start.
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
            f"checkpoints must rise from 0 to at most {program.steps} steps, got {steps}"
        )
    heavy = jax.default_backend() == "cpu" and program.seconds_per_step > 2e-3
    lanes = Lanes(count, in_turn=heavy)
    picks = np.minimum(np.arange(lanes.padded), count - 1)
    placed_keys, data = lanes.place_keys(keys), lanes.replicate(program.data)
    fresh = lanes.on_devices(lanes.each(program.init, (0, None)), split=(True, False))
    states = jax.jit(fresh)(placed_keys, data)
    # The optimisers' state at the start does not depend on the weights.
    states = states._replace(params=lanes.place(jax.tree.map(lambda leaf: leaf[picks], starts)))
    chunk = default_chunk(program, lanes, 4 * num_parameters(problem.shapes) * count)
    loop = compile_loop(program, lanes, states, placed_keys, data, chunk)
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
                        f"the loss was not finite within {stop} steps; likely {program.likely_cause}"
                    )
                done = stop
                report("training", done, steps[-1])
            found.append(lanes.real(states.params))
    return found


def steps_per_epoch(problem: Problem, method: MAP) -> int:
    """Gradient steps in one pass over the training data."""
    found = map_estimate.build(problem, method).steps_per_epoch
    assert found is not None
    return found
