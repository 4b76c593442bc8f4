"""The scale symmetry of positively homogeneous hidden units, and its canonical balance.

If a unit's nonlinearity satisfies φ(cz) = cφ(z) for c > 0 (ReLU, leaky ReLU, max pooling, the
identity), then multiplying what computes the unit (incoming weights and bias) by c and what reads
it by 1/c leaves the function unchanged. Which groups have this symmetry is found numerically: at
random parameters and in double precision, random factors must not change the outputs. Any unit of
a group can be permuted into any other, so one check covers the whole group.

Balancing scales every unit so that its incoming and outgoing weights have the same norm. Let t be
the logarithms of all factors. The sum of squares of all weights,

    Φ(t) = Σ_w w² exp(2 a_wᵀt),   a_w = +1 for units that w computes, −1 for units that w reads,

is convex, and ∂Φ/∂tᵤ = 2(‖in‖² − ‖out‖²). The balance is therefore the minimum of the sum of
squares: the point of the orbit with the highest density under an isotropic Gaussian prior. Along a
path of weights from the input (or a bias) to the output the a_w sum to zero, so in any direction
t ≠ 0 some weight grows and Φ → ∞. If every unit lies on such a path of nonzero weights, the balance
exists and is unique. The step cᵤ = √(‖out‖/‖in‖) solves for one unit exactly; the groups are
visited until nothing changes. With one hidden layer one visit suffices. Because the balance is
unique, it commutes with permutations, and balancing is idempotent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Kronecker, LowRankPrecision
from onebasin.posterior.protocol import Posterior
from onebasin.symmetry.find_kinds import find_mixings
from onebasin.symmetry.groups import Group
from onebasin.symmetry.kinds import Mixing, Pattern, key_of
from onebasin.symmetry.symmetry import Symmetry
from onebasin.symmetry.tracing import find_symmetry
from onebasin.symmetry.trial import trials
from onebasin.trees import PyTree, leaves_by_path, path_name

T = TypeVar("T")
Scales: TypeAlias = Mapping[str, np.ndarray]  # the factors of each group, [units] or [n, units]
MAX_VISITS = 1000
CLOSE = 1e-13  # the balance is reached when no |log c| of a visit to all groups exceeds this


@dataclass(frozen=True)
class Site:
    """An axis of a leaf along which the units of a group are scaled by c or by 1/c."""

    leaf: str
    axis: int
    length: int
    positions: np.ndarray
    exponent: int


@dataclass(frozen=True)
class ScaleSymmetry:
    """The groups of positively homogeneous units, which may be scaled; found by `find_scales`.

    Balancing is canonical: it undoes any scaling of the units and leaves the function unchanged.

    >>> params = {"w1": np.array([[2.0, 3.0]]), "w2": np.array([[8.0], [3.0]])}
    >>> relu_network = lambda params, x: jax.nn.relu(x @ params["w1"]) @ params["w2"]
    >>> symmetry = find_symmetry(relu_network, params, np.ones((4, 1)))
    >>> scales = find_scales(relu_network, params, np.ones((4, 1)), symmetry=symmetry)
    >>> scales
    ScaleSymmetry(groups scaled: 1, left out: 0)
    >>> balanced = scales.act(scales.balance(params), params)
    >>> balanced["w1"].tolist(), balanced["w2"].ravel().tolist()
    ([[4.0, 3.0]], [4.0, 3.0])
    """

    sites: Mapping[str, tuple[Site, ...]]
    """The axes along which each group is scaled."""
    left_out: Mapping[str, str]
    """The groups that are not scaled, each with the reason."""

    def __repr__(self) -> str:
        return f"ScaleSymmetry(groups scaled: {len(self.sites)}, left out: {len(self.left_out)})"

    def balance(self, params: PyTree) -> Scales:
        """The factors that balance one params tree."""
        return self._balance({k: np.asarray(leaf) for k, leaf in leaves_by_path(params).items()})

    def balance_all(self, members: Iterable[Mapping[str, np.ndarray]]) -> Scales:
        """The factors that balance each member, given by its leaves, stacked."""
        found = [self._balance(leaves) for leaves in members]
        return {name: np.stack([scales[name] for scales in found]) for name in self.sites}

    def act(self, scales: Scales, target: T) -> T:
        """Scale params or a posterior; factors [n, units] scale each draw by its own row."""
        along = self.along_axes(scales)
        if isinstance(target, Kronecker):
            raise ValueError(
                "a Kronecker posterior cannot be scaled; scale draws of it, or fit a Laplace with "
                "another structure"
            )
        if isinstance(target, LowRankPrecision):
            # Factors of a precision: θ' = cθ makes them F/c.
            dual = _scaled(self.along_axes(self.inverse(scales)), target.factors, 1)
            mean, std = (_scaled(along, tree, 0) for tree in (target.mean, target.std))
            return replace(target, mean=mean, std=std, factors=dual)
        if isinstance(target, Posterior):
            return target.relabel(lambda tree, lead: _scaled(along, tree, lead))
        return _scaled(along, target, 0)

    @staticmethod
    def inverse(scales: Scales) -> Scales:
        """The factors that undo the given ones."""
        return {name: 1 / factors for name, factors in scales.items()}

    def along_axes(self, scales: Scales) -> dict[str, list[tuple[int, np.ndarray]]]:
        """The scaled axes of each leaf, with a factor for every position, […, length]."""
        found: dict[str, dict[int, np.ndarray]] = {}
        for name, sites in self.sites.items():
            own = np.asarray(scales[name], np.float64)
            for site in sites:
                blank = np.ones((*own.shape[:-1], site.length))
                factors = found.setdefault(site.leaf, {}).setdefault(site.axis, blank)
                factors[..., site.positions] = own[..., None] ** site.exponent
        return {leaf: sorted(axes.items()) for leaf, axes in found.items()}

    def _balance(self, leaves: Mapping[str, np.ndarray]) -> Scales:
        scales = {name: np.ones(len(sites[0].positions)) for name, sites in self.sites.items()}
        squares = {}
        for leaf, axes in self.along_axes(scales).items():
            kept = [axis for axis, _ in axes]
            rest = tuple(i for i in range(leaves[leaf].ndim) if i not in kept)
            squares[leaf] = kept, np.sum(leaves[leaf].astype(np.float64) ** 2, axis=rest)
        for _ in range(MAX_VISITS):
            furthest = 0.0
            for name, sites in self.sites.items():
                incoming, outgoing = (
                    np.sum(
                        [_norms(s, *squares[s.leaf]) for s in sites if s.exponent == sign], axis=0
                    )
                    for sign in (1, -1)
                )  # ‖in‖² and ‖out‖² of every unit
                alive = (incoming > 0) & (outgoing > 0)  # a dead unit has no balance: it stays
                ratio = np.where(alive, outgoing, 1.0) / np.where(alive, incoming, 1.0)
                step = ratio**0.25
                scales[name] = scales[name] * step
                for site in sites:
                    _rescale(site, step, *squares[site.leaf])
                furthest = max(furthest, float(np.abs(np.log(step)).max()))
            if furthest <= CLOSE or len(self.sites) == 1:
                break
        return scales


def find_scales(
    apply: NetworkLike, params: PyTree, x: Any, *, symmetry: Symmetry, state: PyTree | None = None
) -> ScaleSymmetry:
    """Find, numerically, the groups of a network whose units are positively homogeneous.

    Args:
      apply: `apply(params, x)`, a `Network` or a `Problem`.
      params: the network's params; those tried are randomised around them.
      x: a batch of inputs.
      symmetry: the network's permutation symmetry, from `find_symmetry`.
      state: the running statistics, if the network has any.

    >>> import jax.numpy as jnp
    >>> def net(p, x):
    ...     return jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"]
    >>> p = {"w1": jnp.ones((2, 3)), "b1": jnp.ones(3), "w2": jnp.ones((3, 1))}
    >>> x = jnp.ones((4, 2))
    >>> scales = find_scales(net, p, x, symmetry=find_symmetry(net, p, x))
    >>> list(scales.sites), scales.left_out
    (['w1'], {})
    """
    function = apply_of(apply)
    if not symmetry.roles:
        traced = find_symmetry(function, params, x, state=state, check=False)
        symmetry = replace(symmetry, roles=traced.roles)
    with jax.numpy_dtype_promotion("standard"):
        tried = trials(function, params, x, state)
        return scales_of(replace(symmetry, mixings=find_mixings(symmetry, tried, ("scaled",))))


def scales_of(symmetry: Symmetry) -> ScaleSymmetry:
    """The scales of a symmetry found with `kinds`, of groups whose units are computed and read."""
    sites: dict[str, tuple[Site, ...]] = {}
    left_out: dict[str, str] = {}
    for group in symmetry.groups:
        mixing = symmetry.mixings.get(group.name, Mixing())
        found = [_sites(group, pattern, symmetry) for pattern in mixing.scales]
        usable = [own for own in found if {site.exponent for site in own} == {1, -1}]
        if group.quadratic:
            left_out[group.name] = "it has two places in one array"
        elif usable:
            sites[group.name] = usable[0]
        elif mixing.scales:
            left_out[group.name] = "its factors are not c and 1/c, so that nothing balances them"
        else:
            left_out[group.name] = "it is not homogeneous: scaling changes the outputs"
    return ScaleSymmetry(sites, left_out)


def _sites(group: Group, pattern: Pattern, symmetry: Symmetry) -> tuple[Site, ...]:
    return tuple(
        Site(place.leaf, place.axis, length, place.positions, exponent)
        for place in group.places
        if place.where == "params" and (exponent := pattern[key_of(place)])
        for length in [symmetry.layouts[place.leaf][place.axis].size]
    )


def _scaled(along: Mapping[str, list[tuple[int, np.ndarray]]], tree: PyTree, lead: int) -> PyTree:
    def leaf(path: Any, value: Any) -> Any:
        for axis, factors in along.get(path_name(path), ()):
            shape = [1] * value.ndim
            shape[axis + lead] = factors.shape[-1]
            if factors.ndim == 2:
                shape[0] = len(factors)
            value = value * factors.astype(value.dtype).reshape(shape)
        return value

    return jax.tree_util.tree_map_with_path(leaf, tree)


def _norms(site: Site, axes: list[int], squares: np.ndarray) -> np.ndarray:
    """Σw² of every unit at one site, from squares summed over all axes not in `axes`."""
    others = tuple(i for i, axis in enumerate(axes) if axis != site.axis)
    return squares.sum(axis=others)[site.positions].sum(axis=1)


def _rescale(site: Site, step: np.ndarray, axes: list[int], squares: np.ndarray) -> None:
    shape = [1] * squares.ndim
    shape[axes.index(site.axis)] = -1
    factors = np.ones(site.length)
    factors[site.positions] = step[:, None] ** (2 * site.exponent)
    squares *= factors.reshape(shape)
