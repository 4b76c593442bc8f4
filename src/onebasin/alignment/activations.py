"""Matching units by what they compute on data: activations as features."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import jax
import numpy as np
from jax.typing import ArrayLike

from onebasin.alignment.moments import Alignable, moments, state_of
from onebasin.alignment.objective import FeaturePair, ObjectiveLike
from onebasin.choices import DataObjective, ObjectiveName
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior, Samples
from onebasin.symmetry import Symmetry
from onebasin.symmetry.recording import record
from onebasin.trees import PyTree, take_entry, with_leaves

Record = Callable[[PyTree, PyTree, Symmetry, PyTree | None], Mapping[str, ArrayLike]]


@dataclass(frozen=True)
class Activations:
    """The objective that matches hidden units by their activations on a batch.

    The score of each group is Σᵢ ⟨z⁰ᵢ, z¹_P(i)⟩, where z holds a unit's activations on all inputs,
    recorded after the nonlinearity at the posterior means. Groups do not depend on each other.

    >>> import onebasin as ob, jax.numpy as jnp
    >>> net = lambda params, x: jnp.tanh(x @ params["w1"]) @ params["w2"]
    >>> params = {"w1": jnp.eye(2), "w2": jnp.ones((2, 1))}
    >>> x = jnp.array([[1.0, 3.0], [2.0, -1.0]])
    >>> symmetry = ob.find_symmetry(net, params, x)
    >>> swapped = {"w1": params["w1"][:, ::-1], "w2": params["w2"][::-1]}
    >>> found = ob.align(swapped, to=params, symmetry=symmetry, objective=ob.Activations(net, x))
    >>> found.posterior["w1"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]

    Args:
      network: the network's function, a `Network` or a `Problem`.
      x: a batch of inputs.
      centred: whether to subtract each unit's mean over the batch.
      correlation: whether to also scale each unit to unit variance, so that all units count alike.
        Xiao et al. use neither: plain inner products.
      record: a function of (params, x, symmetry, state) that returns an array [units, observations]
        for each group, in place of tracing the network.
      name: the name of the objective in results and messages.
      has_barycentre: False, since `align_many` does not take activations.
      relinearise: False, since the features are not a tangent.
    """

    network: NetworkLike
    x: PyTree
    centred: bool = False
    correlation: bool = False
    record: Record | None = None
    name: str = "activations"
    has_barycentre: bool = False
    relinearise: bool = False

    def __repr__(self) -> str:
        kind = ", correlation" if self.correlation else ", centred" if self.centred else ""
        return f"Activations({self.name!r}{kind})"

    def features(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> FeaturePair:
        """The recorded units; groups do not depend on each other, so one sweep is enough."""
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

    def _units(self, posterior: Alignable, symmetry: Symmetry) -> dict[str, np.ndarray]:
        params, state = _point(posterior)
        if self.record is None:
            units = record(apply_of(self.network), params, self.x, symmetry, state=state)
        else:
            units = self.record(params, self.x, symmetry, state)
        return {group.name: self._scaled(units[group.name]) for group in symmetry.groups}

    def _scaled(self, units: ArrayLike) -> np.ndarray:
        z = np.asarray(units)
        if self.centred or self.correlation:
            z = z - z.mean(axis=1, keepdims=True)
        if self.correlation:
            norm = np.linalg.norm(z, axis=1, keepdims=True)
            z = z * (np.sqrt(z.shape[1]) / np.where(norm > 0, norm, 1))  # a dead unit stays zero
        return z


BY_DATA: tuple[DataObjective, ...] = get_args(DataObjective)
"""Names of objectives that need a network and inputs: plain inner products, and correlations."""


def objective_on(name: ObjectiveName, network: NetworkLike, x: PyTree) -> ObjectiveLike:
    """The objective of a name, with the network and the inputs if it is one of `BY_DATA`."""
    if name == "activations" or name == "correlations":
        return Activations(network, x, correlation=name == "correlations", name=name)
    return name


def _point(posterior: Alignable) -> tuple[PyTree, PyTree | None]:
    """The params at which activations are recorded (the posterior mean), and the state."""
    if not isinstance(posterior, Posterior):
        return posterior, None
    state = state_of(posterior)
    if isinstance(posterior, Samples):
        if posterior.num_draws == 1:
            return posterior.draw(0), take_entry(state, 0)
        state = jax.tree.map(lambda leaf: leaf.mean(0), state)
    return with_leaves(posterior.like, moments(posterior).mean), state
