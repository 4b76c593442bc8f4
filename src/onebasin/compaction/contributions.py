"""Matching units by what they contribute to the network's outputs.

A hidden unit adds z(x)·∂f/∂z(x) to the outputs f(x), to first order; for a last hidden layer this
is its very term w·φ(v·x + b) of the sum. Two units of two draws are alike if they contribute
alike on data, and the score ⟨contribution, contribution⟩ over inputs and outputs is what
coordinate matching maximises. Three things speak for it where draws are mostly the prior's
noise. Weights on which the outputs hardly depend hardly count. Incoming and outgoing weights count
together, as a product, where activations alone leave the outgoing ones out and weights alone add
the two up. And it does not change when a homogeneous unit is rescaled.

Groups do not depend on each other here, so each is one linear assignment for each draw.
"""

from typing import Any

import jax
import numpy as np

from onebasin.alignment.members import Members
from onebasin.alignment.scores import Indices
from onebasin.compaction.rebasing import Rebase, align_jointly
from onebasin.networks import Apply
from onebasin.posterior import Samples
from onebasin.progress import Reporter
from onebasin.symmetry import Symmetry
from onebasin.symmetry.recording import Recorder
from onebasin.trees import PyTree

MEMORY = 1 << 30  # bytes that the contributions of all members may take
INPUTS = 500  # of the batch, at most


def to_contributions(
    members: Members,
    symmetry: Symmetry,
    apply: Apply | None,
    x: Any,
    rebase: Rebase,
    report: Reporter,
) -> tuple[list[Indices], bool]:
    """Every member to the mean contributions of the others, in turn, until none moves."""
    if apply is None or x is None:
        raise ValueError("rebase='contributions' needs network and x, to see what units do")
    params, state = members.point(0)
    one = jax.tree.map(lambda leaf: leaf[:1], x)
    recorder = Recorder(apply, params, one, symmetry, state)
    if recorder.unseen:
        raise ValueError(
            f"what group '{recorder.unseen[0]}' contributes cannot be seen: no layer outside a "
            "loop reads it; use rebase='likelihood'"
        )

    @jax.jit
    def contributions(params: PyTree, state: PyTree, x: Any) -> dict[str, jax.Array]:
        def of_example(example: Any) -> dict[str, jax.Array]:
            batch = jax.tree.map(lambda leaf: leaf[None], example)
            return recorder.contributions(params, batch, state)

        by_example = jax.lax.map(of_example, x, batch_size=64)  # [inputs, units, outputs]
        return jax.tree.map(
            lambda c: jax.numpy.moveaxis(c, 0, 1).reshape(c.shape[1], -1), by_example
        )

    first = jax.eval_shape(contributions, params, state, one)
    each = 4 * len(members) * sum(int(np.prod(leaf.shape)) for leaf in first.values())
    inputs = max(1, min(INPUTS, MEMORY // each))
    x = jax.tree.map(lambda leaf: np.asarray(leaf[:inputs]), x)
    units: dict[str, np.ndarray] = {}
    for i in range(len(members)):
        for name, values in contributions(*members.point(i), x).items():
            store = units.setdefault(name, np.empty((len(members), *values.shape), values.dtype))
            store[i] = values
        report("contributions of draws", i + 1, len(members))
    own = Symmetry.by_hand(
        {name: values[0] for name, values in units.items()}, {n: [(n, 0)] for n in units}
    )
    return align_jointly(Members.of_draws([Samples(units)]), own, "l2", rebase, report)
