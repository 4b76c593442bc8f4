"""Matching units by what they do on data: activations as features."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import jax
import numpy as np

from onebasin.alignment.moments import Alignable, moments
from onebasin.alignment.objective import FeaturePair, ObjectiveLike
from onebasin.choices import DataObjective, ObjectiveName
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior, Samples
from onebasin.symmetry import Symmetry
from onebasin.symmetry.recording import record
from onebasin.trees import PyTree, with_leaves


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

    network: NetworkLike
    x: Any = field(repr=False)
    centred: bool = False
    correlation: bool = False
    record: Callable[..., dict[str, Any]] | None = None
    name: str = "activations"
    has_barycentre: bool = False
    relinearise: bool = False

    def features(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> FeaturePair:
        """The recorded units; groups do not touch each other, so one sweep solves it."""
        target, mover = self._units(to, symmetry), self._units(posterior, symmetry)
        places = {group.name: [(group.name, 0)] for group in symmetry.groups}
        return FeaturePair(Symmetry.by_hand(target, places), (target,), (mover,))

    def measure(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float:
        """Σ ‖z⁰ − z¹‖² over all groups, divided by the number of observations of each."""
        target, mover = self._units(to, symmetry), self._units(posterior, symmetry)
        total = 0.0
        for name, z in target.items():
            total += float(np.sum((z.astype(np.float64) - mover[name]) ** 2)) / z.shape[1]
        return total

    def _units(self, posterior: Any, symmetry: Symmetry) -> dict[str, np.ndarray]:
        params, state = _point(posterior)
        if self.record is None:
            units = record(apply_of(self.network), params, self.x, symmetry, state=state)
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


BY_DATA: tuple[DataObjective, ...] = get_args(DataObjective)
"""Names of objectives that need a network and inputs: plain inner products, and correlations."""


def objective_on(name: ObjectiveName, network: NetworkLike, x: Any) -> ObjectiveLike:
    """The objective of a name, with the network and the inputs if it is one of `BY_DATA`."""
    if name == "activations" or name == "correlations":
        return Activations(network, x, correlation=name == "correlations", name=name)
    return name


def _point(posterior: Any) -> tuple[PyTree, PyTree]:
    """The params whose activations stand for a posterior (its mean), and its state."""
    state = getattr(posterior, "state", None)
    if not isinstance(posterior, Posterior):
        return posterior, None
    if isinstance(posterior, Samples):
        if posterior.num_draws == 1:
            return posterior.draw(0), jax.tree.map(lambda leaf: leaf[0], state)
        state = jax.tree.map(lambda leaf: leaf.mean(0), state)
    return with_leaves(posterior.like, moments(posterior).mean), state
