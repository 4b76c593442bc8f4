"""A network at random parameters, where an element of a symmetry must not change the outputs."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks import Apply
from onebasin.symmetry.check import ROWS
from onebasin.symmetry.linear_action import LeafAction, multiplied_tree
from onebasin.symmetry.randomised import CannotRun, Outputs, Randomised
from onebasin.trees import PyTree, leaves_by_path

WITHOUT_DERIVATIVE = (TypeError, ValueError, NotImplementedError)
"""What JAX raises for a function that has no reverse-mode derivative."""
SETTINGS = 4  # of the parameters: at one alone, units may all be dead, or all linear


def trials(
    apply: Apply, params: PyTree, x: Any, state: PyTree | None, key: jax.Array | None = None
) -> list["Trial"]:
    """A network at several random settings of its parameters.

    The first is near its own, the others have its sizes and random signs; all are in double
    precision where the network accepts it.
    """
    # The result does not depend on it, only the values tried.
    seed = [0] if key is None else np.asarray(jax.random.key_data(key)).ravel().tolist()
    failure: CannotRun | None = None
    for double, rows in ((True, ROWS), (True, None), (False, None)):
        with jax.enable_x64(double):
            network = Randomised(apply, params, x, state, double=double, rows=rows, choices=True)
            if double and not network.accepts_operands():
                continue
            try:
                settled = [network.settle([*seed, i], afresh=i > 0) for i in range(SETTINGS)]
            except CannotRun as error:
                failure = error
                continue
            gradient = jax.jit(jax.grad(partial(_combined, network), allow_int=True))
            return [Trial(network, gradient, *found) for found in settled]
    raise ValueError(f"signs and scales cannot be checked: {failure}")


class Trial:
    """One random setting of a network's parameters, with its outputs there."""

    def __init__(
        self,
        network: Randomised,
        gradient: Callable[..., PyTree],
        params: PyTree,
        state: PyTree,
        reference: Outputs,
        tolerance: float,
    ) -> None:
        self.network, self._gradient, self.double = network, gradient, network.double
        self.params, self.state, self.reference = params, state, reference
        self.tolerance = tolerance
        self.leaves: dict[str, np.ndarray] = leaves_by_path(params)

    def change(self, actions: Mapping[str, LeafAction], params: PyTree | None = None) -> float:
        """How far the outputs are from those at the random parameters, relative to their range."""
        given = self.params if params is None else params
        with jax.enable_x64(self.double):
            moved = multiplied_tree(given, 0, dict(actions))
            return self.outputs(moved).distance(self.reference)

    def outputs(self, params: PyTree) -> Outputs:
        with jax.enable_x64(self.double):
            return self.network.run(params, self.state)

    @cached_property
    def effects(self) -> dict[str, np.ndarray] | None:
        """How much each weight moves some outputs, by |θ ∂f/∂θ|, of what moves them most.

        None for a network that has no derivative.
        """
        try:
            slopes = next(self.gradients()) if self.double else None
        except WITHOUT_DERIVATIVE:
            return None
        if slopes is None:
            return None
        found = {
            leaf: np.abs(slope * self.leaves[leaf])
            for leaf, slope in slopes.items()
            if np.issubdtype(slope.dtype, np.inexact)
        }
        largest = max((float(own.max(initial=0)) for own in found.values()), default=0.0)
        return {leaf: own / (largest or 1.0) for leaf, own in found.items()}

    def gradients(self) -> Iterator[dict[str, np.ndarray]]:
        """The gradients of random combinations of the outputs, by leaf, one after another."""
        rng = np.random.default_rng(0)
        with jax.enable_x64(self.double):
            shapes = jax.eval_shape(partial(_flat, self.network), self.params, self.state)
        while True:
            weights = [rng.standard_normal(leaf.size) for leaf in shapes]
            with jax.enable_x64(self.double):
                found = leaves_by_path(self._gradient(self.params, self.state, weights))
                yield {leaf: np.asarray(slope) for leaf, slope in found.items()}


def _combined(
    network: Randomised, params: PyTree, state: PyTree, weights: list[np.ndarray]
) -> jax.Array:
    pairs = zip(_flat(network, params, state), weights, strict=True)
    return sum((jnp.vdot(own, leaf) for leaf, own in pairs), start=jnp.zeros(()))


def _flat(network: Randomised, params: PyTree, state: PyTree) -> list[jax.Array]:
    found = []
    outputs, decisive = network.evaluated(*network.operands(params, state))
    for leaf in [*outputs, *decisive]:
        parts = (leaf.real, leaf.imag) if jnp.iscomplexobj(leaf) else (leaf,)
        found += [part.reshape(-1) for part in parts if jnp.issubdtype(part.dtype, jnp.floating)]
    return found
