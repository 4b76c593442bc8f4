"""Matching units by what they compute on data: activations as features."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args

import jax
import numpy as np
from jax.typing import ArrayLike

from onebasin.alignment.moments import Alignable, moments, state_of
from onebasin.alignment.objective import FeaturePair, ObjectiveLike
from onebasin.alignment.sites import PairMoments, Point, UnitSites, Which, normalised
from onebasin.choices import DataObjective, ObjectiveName
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior, Samples
from onebasin.symmetry import Permutation, Symmetry
from onebasin.trees import PyTree, take_entry, with_leaves

Record = Callable[[PyTree, PyTree, Symmetry, PyTree | None], Mapping[str, ArrayLike]]


@dataclass(frozen=True)
class Activations:
    """The objective that matches hidden units by their activations on data.

    The score of each group is Σᵢ ⟨z⁰ᵢ, z¹_P(i)⟩, where z holds a unit's activations on all inputs,
    recorded at the posterior means. Groups do not depend on each other. The inputs are run in
    batches, so there may be any number of them.

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
      x: inputs, an array or a tree of arrays with the examples first.
      centred: whether to subtract each unit's mean over the inputs.
      correlation: whether to also scale each unit to unit variance, so that all units count alike.
        Xiao et al. use neither: plain inner products.
      sites: "after" records units after the nonlinearity, as published. "all" records them at every
        site where they appear: after the nonlinearity, and before it in every layer that makes
        them (once for each block of a residual stream); all sites of a group count alike. None
        means "all" for correlations and "after" otherwise.
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
    sites: Which | None = None
    record: Record | None = None
    name: str = "activations"
    has_barycentre: bool = False
    relinearise: bool = False
    _compiled: "list[UnitSites]" = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.sites not in (None, "all", "after"):
            raise ValueError(f"sites is 'all', 'after' or None, not {self.sites!r}")

    def __repr__(self) -> str:
        kind = ", correlation" if self.correlation else ", centred" if self.centred else ""
        return f"Activations({self.name!r}{kind})"

    def features(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> FeaturePair:
        """The products of all pairs of units; groups do not depend on each other.

        With Sᵢⱼ = ⟨z⁰ᵢ, z¹ⱼ⟩, the rows of S are features of the target, and those of the identity
        matrix features of the mover: their inner products are the entries of S.
        """
        if symmetry.blocks:
            raise ValueError(
                "activations compare single units, and some of this symmetry move in blocks; find "
                "it with own_orders=False, or align with an objective on weights"
            )
        products = self._products(posterior, to, symmetry)
        scores = {name: found.cross for name, found in products.items()}
        units = {name: np.eye(len(cross), dtype=cross.dtype) for name, cross in scores.items()}
        places = {group.name: [(group.name, 0)] for group in symmetry.groups}

        def distance(permutation: Permutation) -> float:
            return sum(p.distance(permutation[name]) for name, p in products.items())

        arrays = Symmetry.by_hand(scores, places)
        return FeaturePair(arrays, (scores,), (units,), distance)

    def measure(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float:
        """Σ ‖z⁰ − z¹‖² over all groups, divided by the number of observations of each.

        With several sites of equal weight, each unit has norm one at each, and it is the mean over
        the sites.
        """
        distance = self.features(posterior, to, symmetry).distance
        assert distance is not None
        return distance(symmetry.identity())

    def _products(
        self, posterior: Alignable, to: Alignable, symmetry: Symmetry
    ) -> dict[str, "_Products"]:
        mover, target = point_of(posterior), point_of(to)
        if self.record is not None:
            units = [self.record(p, self.x, symmetry, state) for p, state in (target, mover)]
            moments = {
                g.name: [PairMoments.of(*(np.asarray(side[g.name]) for side in units))]
                for g in symmetry.groups
            }
        else:
            moments = self._sites_of(symmetry, target).moments(target, mover)
        combine = self._equal_sites if self._which == "all" else self._pooled
        return {name: combine(parts) for name, parts in moments.items()}

    def can_see(self, posterior: Alignable, symmetry: Symmetry) -> bool:
        """Whether the units of every group can be recorded."""
        try:
            return self.record is not None or bool(
                self._sites_of(symmetry, point_of(posterior)).found
            )
        except ValueError:
            return False

    @property
    def _which(self) -> Which:
        if self.record is not None:
            return "after"
        return self.sites or ("all" if self.correlation else "after")

    def _sites_of(self, symmetry: Symmetry, point: Point) -> UnitSites:
        """The sites of the network, compiled when this objective is first used."""
        for known in self._compiled:
            if known.symmetry is symmetry:
                return known
        self._compiled.append(
            UnitSites(apply_of(self.network), point, self.x, symmetry, self._which)
        )
        return self._compiled[-1]

    def _pooled(self, parts: list[PairMoments]) -> "_Products":
        """The products over the observations of all sites together."""
        (whole,) = parts
        cross, a, b = whole.products(centred=self.centred or self.correlation)
        if self.correlation:
            cross, a, b = normalised(cross, a, b)
            cross, a, b = whole.count * cross, whole.count * a, whole.count * b
        return _Products(cross, a, b, 1 / whole.count)

    def _equal_sites(self, parts: list[PairMoments]) -> "_Products":
        """The mean over the sites of products scaled to the same size at each."""
        total: list[np.ndarray] = []
        for part in parts:
            cross, a, b = part.products(centred=self.centred or self.correlation)
            if self.correlation:
                scaled = normalised(cross, a, b)
            else:
                size = np.sqrt(max(a.sum(), 1e-300)), np.sqrt(max(b.sum(), 1e-300))
                scaled = cross / (size[0] * size[1]), a / size[0] ** 2, b / size[1] ** 2
                scaled = tuple(len(a) * each for each in scaled)
            each = [s / len(parts) for s in scaled]
            total = [t + s for t, s in zip(total, each, strict=True)] if total else each
        return _Products(total[0], total[1], total[2], 1.0)


@dataclass(frozen=True)
class _Products:
    """⟨z⁰ᵢ, z¹ⱼ⟩ of every pair of units, and ‖z⁰ᵢ‖² and ‖z¹ⱼ‖²."""

    cross: np.ndarray
    target: np.ndarray
    mover: np.ndarray
    scale: float

    def distance(self, index: np.ndarray) -> float:
        """Σ ‖z⁰ᵢ − z¹_index(i)‖², scaled."""
        rows = np.arange(len(index))
        squares = self.target.sum() + self.mover.sum() - 2 * self.cross[rows, index].sum()
        return self.scale * max(float(squares), 0.0)


BY_DATA: tuple[DataObjective, ...] = get_args(DataObjective)
"""Names of objectives that need a network and inputs: plain inner products, and correlations."""


def objective_on(
    name: ObjectiveName, network: NetworkLike, x: PyTree, sites: Which | None = None
) -> ObjectiveLike:
    """The objective of a name, with the network and the inputs if it is one of `BY_DATA`."""
    if name == "activations" or name == "correlations":
        correlation = name == "correlations"
        return Activations(network, x, correlation=correlation, sites=sites, name=name)
    return name


def point_of(posterior: Alignable) -> Point:
    """The params at which activations are recorded (the posterior mean), and the state."""
    if not isinstance(posterior, Posterior):
        return posterior, None
    state = state_of(posterior)
    if isinstance(posterior, Samples):
        if posterior.num_draws == 1:
            return posterior.draw(0), take_entry(state, 0)
        state = jax.tree.map(lambda leaf: leaf.mean(0), state)
    return with_leaves(posterior.like, moments(posterior).mean), state
