"""Matching units by what they contribute to the network's outputs.

To first order a hidden unit adds z(x)·∂f/∂z(x) to the outputs f(x); in the last hidden layer this
is exactly its term w·φ(v·x + b) of the sum. Units of two draws are similar if their contributions
on data are, and matching maximises the score ⟨contribution, contribution⟩ over inputs and outputs.
Where draws are mostly noise from the prior this has three advantages. Weights on which the outputs
hardly depend hardly count. Incoming and outgoing weights count together, as a product, whereas
activations leave out the outgoing weights and matching by weights adds the two up. And rescaling a
homogeneous unit changes nothing.

Groups do not depend on each other here, so each group of each draw is one linear assignment.
"""

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.members import Members
from onebasin.networks import Apply
from onebasin.posterior import Samples
from onebasin.progress import Reporter
from onebasin.symmetry import Symmetry
from onebasin.symmetry.recording import Recorder
from onebasin.trees import PyTree, add_axis, take_entry

MEMORY = 1 << 30  # bytes that the contributions of all members may take
INPUTS = 500  # of the batch, at most


def contributions(
    members: Members, symmetry: Symmetry, apply: Apply, x: PyTree, report: Reporter
) -> tuple[Members, Symmetry]:
    """The contributions of the units of every member, as members, and their own symmetry."""
    params, state = members.point(0)
    one = take_entry(x, slice(1))
    recorder = Recorder(apply, params, one, symmetry, state)
    if recorder.unseen:
        raise ValueError(
            f"the contributions of group '{recorder.unseen[0]}' cannot be recorded, since no layer "
            "outside a loop reads it; use rebase='likelihood'"
        )

    @jax.jit
    def of_member(params: PyTree, state: PyTree, x: PyTree) -> dict[str, jax.Array]:
        by_example = jax.lax.map(
            lambda example: recorder.contributions(params, add_axis(example), state),
            x,
            batch_size=64,
        )  # [inputs, units, outputs]
        return {
            name: jnp.moveaxis(c, 0, 1).reshape(c.shape[1], -1) for name, c in by_example.items()
        }

    first = jax.eval_shape(of_member, params, state, one)
    each = 4 * len(members) * sum(int(np.prod(leaf.shape)) for leaf in first.values())
    inputs = max(1, min(INPUTS, MEMORY // each))
    x = jax.tree.map(lambda leaf: np.asarray(leaf[:inputs]), x)
    units: dict[str, np.ndarray] = {}
    for i in range(len(members)):
        for name, values in of_member(*members.point(i), x).items():
            store = units.setdefault(name, np.empty((len(members), *values.shape), values.dtype))
            store[i] = values
        report("contributions of draws", i + 1, len(members))
    own = Symmetry.by_hand(take_entry(units, 0), {name: [(name, 0)] for name in units})
    return Members.of_draws([Samples(units, np.zeros(len(members), np.int32))]), own
