"""Training before sampling: an opening of some epochs of Adam, so that a chain begins near a mode.

One step of the loop is one epoch here, which costs about as much as a full-batch gradient. So
progress, Ctrl-C and checkpoints work as in the sampling that follows.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from onebasin.inference import map_estimate
from onebasin.inference.map_estimate import MAPState
from onebasin.inference.methods import MAP
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.program import Info
from onebasin.inference.shards import WHOLE, Shards
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree

BATCH_SIZE = 500


class Opening(NamedTuple):
    """`init(key)` and `epoch(state, key, t, data)`, with the data in chunks."""

    init: Callable[[jax.Array], MAPState]
    epoch: Callable[[MAPState, jax.Array, jax.Array, Batch], tuple[MAPState, Info]]


def opening(problem: Problem, epochs: int, learning_rate: float, shards: Shards = WHOLE) -> Opening:
    """The steps of `MAP(epochs=epochs, learning_rate=learning_rate)` with the same key.

    Every device of a group does the same on all the data, which it gathers for each epoch.
    """
    method = MAP(epochs=epochs, learning_rate=learning_rate, batch_size=BATCH_SIZE)
    program = map_estimate.build(problem, method)
    per_epoch = Minibatches.of(problem, BATCH_SIZE).per_epoch

    def epoch(state: MAPState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[MAPState, Info]:
        flat = in_a_row(shards.joined(data), problem.num_examples)

        def one(carry: MAPState, s: jax.Array) -> tuple[PyTree, jax.Array]:
            after, info = program.step(carry, key, s, flat)
            return after, info["loss"]

        steps = t * per_epoch + jax.numpy.arange(per_epoch)
        state, losses = jax.lax.scan(one, state, steps)
        return state, {"loss": losses.mean()}

    return Opening(lambda key: program.init(key, program.data), epoch)


def in_a_row(data: Batch, examples: int) -> Batch:
    """Chunks [chunks, size, ...] as one batch without the padding, which is at the end."""
    x, y = (a.reshape(-1, *a.shape[2:]) for a in (data.x, data.y))
    return Batch(x[:examples], y[:examples])
