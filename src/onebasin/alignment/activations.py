"""Matching units by what they do on data: activations as features."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from onebasin.alignment.moments import moments
from onebasin.alignment.objective import FeaturePair
from onebasin.symmetry import Symmetry
from onebasin.trees import Tree, leaf_paths


@dataclass(frozen=True)
class Activations:
    """Inner products of hidden activations on a batch, ⟨z⁰, z¹⟩ for each group on its own.

    The units of every group are recorded after their nonlinearity, at the posterior means,
    by running the traced network: no hooks are written. `centred` takes each unit's mean
    over the batch away; `correlation` also scales each unit to unit norm, so that loud units
    do not count for more. Neither is what Xiao et al. use (plain inner products).

    `record(params, x, symmetry, state)` → {group: [units, observations]} may be given in
    place of tracing.
    """

    apply: Callable[..., Any]
    x: Any = field(repr=False)
    centred: bool = False
    correlation: bool = False
    record: Callable[..., dict[str, Any]] | None = None
    name: str = "activations"
    sums: bool = False
    relinearise: bool = False

    def problem(self, q: Any, to: Any, symmetry: Symmetry) -> FeaturePair:
        """The recorded units; groups do not touch each other, so one sweep solves it."""
        target, mover = self._units(to, symmetry), self._units(q, symmetry)
        places = {group.name: [(group.name, 0)] for group in symmetry.groups}
        return FeaturePair(Symmetry.by_hand(target, places), (target,), (mover,))

    def measure(self, q: Any, to: Any, symmetry: Symmetry) -> float:
        """Σ ‖z⁰ − z¹‖² over all groups, divided by the number of observations of each."""
        target, mover = self._units(to, symmetry), self._units(q, symmetry)
        total = 0.0
        for name, z in target.items():
            total += float(np.sum((z.astype(np.float64) - mover[name]) ** 2)) / z.shape[1]
        return total

    def _units(self, posterior: Any, symmetry: Symmetry) -> dict[str, np.ndarray]:
        params, state = _point(posterior)
        if self.record is None:
            from onebasin.symmetry.recording import record

            units = record(self.apply, params, self.x, symmetry, state=state)
        else:
            units = self.record(params, self.x, symmetry, state)
        return {group.name: self._scaled(units[group.name]) for group in symmetry.groups}

    def _scaled(self, units: Any) -> np.ndarray:
        z = np.asarray(units)
        if self.centred or self.correlation:
            z = z - z.mean(axis=1, keepdims=True)
        if self.correlation:
            norm = np.linalg.norm(z, axis=1, keepdims=True)
            z = z * (np.sqrt(z.shape[1]) / np.where(norm > 0, norm, 1))  # a dead unit stays zero
        return z


BY_DATA = ("activations", "correlations")
"""Names of objectives that need a network and inputs: plain inner products, and correlations."""


def objective_on(name: str, apply: Callable[..., Any], x: Any) -> Any:
    """The objective of a name, with the network and the inputs if it is one of `BY_DATA`."""
    if name not in BY_DATA:
        return name
    return Activations(apply, x, correlation=name == "correlations", name=name)


def _point(posterior: Any) -> tuple[Tree, Tree]:
    """The params whose activations stand for a posterior (its mean), and its state."""
    state = getattr(posterior, "state", None)
    if not hasattr(posterior, "moments"):
        return posterior, None
    if hasattr(posterior, "num_draws"):
        if posterior.num_draws == 1:
            return posterior.draw(0), jax.tree.map(lambda leaf: leaf[0], state)
        state = jax.tree.map(lambda leaf: leaf.mean(0), state)
    mean = moments(posterior).mean
    tree = jax.tree.structure(posterior.like)
    return jax.tree.unflatten(tree, [mean[leaf] for leaf in leaf_paths(posterior.like)]), state
