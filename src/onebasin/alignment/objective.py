"""What alignment maximises: inner products of features of the target and of the mover.

With features f⁰ₖ of the target and f¹ₖ of the mover, the score of a permutation P is

    score(P) = Σₖ ⟨f⁰ₖ, P f¹ₖ⟩

and every distance below is a constant minus a multiple of it. Means are m, standard deviations s:

| name          | features of the target | of the mover  | distance                               |
|---------------|------------------------|---------------|----------------------------------------|
| `w2`          | m₀; s₀                 | m₁; s₁        | W₂² = ‖m₀−Pm₁‖² + ‖s₀−Ps₁‖²            |
| `l2`          | m₀                     | m₁            | ‖m₀−Pm₁‖²                              |
| `kl`          | m₀/s₀²; −1/2s₀²        | m₁; s₁²+m₁²   | KL(P#q₁ ‖ q₀)                          |
| `reverse-kl`  | m₀; −(s₀²+m₀²)/2       | m₁/s₁²; 1/s₁² | KL(q₀ ‖ P#q₁)                          |
| `kl-reduced`  | m₀/s₀²; −1/2s₀²        | m₁; m₁²       | Σ(m₀−Pm₁)²/s₀² (Rossi et al., appendix)|
| `log-density` | m₀/s₀²; −1/2s₀²        | m₁; m₁²       | −log q₀(Pm₁)                           |
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from onebasin.alignment.moments import Alignable, Leaves, Moments, moments
from onebasin.choices import WeightObjective
from onebasin.symmetry import Permutation, Symmetry

Features: TypeAlias = tuple[Leaves, ...]
BLOCK = 1 << 16  # coordinates converted to float64 at a time


@dataclass(frozen=True)
class FeaturePair:
    """Features of the target and of the mover, and the symmetry of the arrays they hold."""

    symmetry: Symmetry
    target: Features
    mover: Features
    distance: Callable[[Permutation], float] | None = None
    """The distance of the permuted mover from the target, where the features imply it and the
    objective would need another pass over data."""


@runtime_checkable
class AlignmentObjective(Protocol):
    """What `align` needs of an objective, as documented for `Objective`, which is one."""

    @property
    def name(self) -> str: ...
    @property
    def has_barycentre(self) -> bool: ...
    @property
    def relinearise(self) -> bool: ...
    def features(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> FeaturePair: ...
    def measure(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float: ...


class TangentObjective(AlignmentObjective, Protocol):
    """An objective with `relinearise`: its features are a tangent at the permutation `at`."""

    def features(
        self, posterior: Alignable, to: Alignable, symmetry: Symmetry, at: Permutation | None = None
    ) -> FeaturePair: ...


ObjectiveLike: TypeAlias = AlignmentObjective | WeightObjective


@dataclass(frozen=True)
class Objective:
    """An alignment objective: the score Σₖ ⟨targetₖ(q₀), P moverₖ(q₁)⟩ and its distance.

    The feature maps take `Moments` (`mean` and `std` as NumPy arrays by leaf) and return a tuple of
    dictionaries that hold one array of the leaf's shape for each leaf.

    >>> import onebasin as ob
    >>> def signs(q):
    ...     return ({leaf: np.sign(mean) for leaf, mean in q.mean.items()},)
    >>> objective = ob.Objective("signs", target=signs, mover=signs)
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(2)}, {"units": [("w", 0)]})
    >>> q0, q1 = {"w": np.array([1.0, -1.0])}, {"w": np.array([-2.0, 3.0])}
    >>> ob.align(q1, to=q0, symmetry=symmetry, objective=objective).posterior["w"]
    array([ 3., -2.])

    Args:
      name: the name of the objective in results and messages.
      target: the features of the target.
      mover: the features of the posterior that is permuted.
      distance: the distance of the moved mover from the target, a function of (target, mover);
        minus the score if None.
      has_barycentre: whether both feature maps are the same, so that the mean of features is a
        barycentre, which `align_many` needs.
      relinearise: whether the features are a tangent, to be updated after each descent.
    """

    name: str
    target: Callable[[Moments], Features]
    mover: Callable[[Moments], Features]
    distance: Callable[[Moments, Moments], float] | None = None
    has_barycentre: bool = False
    relinearise: bool = False

    def __repr__(self) -> str:
        return f"Objective({self.name!r})"

    def features(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> FeaturePair:
        """The features of `posterior` (the mover) and `to` (the target), checked."""
        known, goal = moments(posterior), moments(to)
        target, mover = self.target(goal), self.mover(known)
        count = min(len(target), len(mover))
        if len(target) != len(mover) and known.std is not None and goal.std is not None:
            raise ValueError(
                f"objective '{self.name}' has {len(target)} features of the target and "
                f"{len(mover)} of the mover; return the same number of features on both sides"
            )
        # A point has no standard deviations: the features they would multiply are left out.
        return FeaturePair(symmetry, target[:count], mover[:count])

    def measure(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float:
        """The distance of `posterior`, as given, from `to`."""
        del symmetry
        mover, target = moments(posterior), moments(to)
        if self.distance is not None:
            return self.distance(target, mover)
        features = zip(self.target(target), self.mover(mover), strict=True)
        return -sum(_total(np.multiply, a, b) for a, b in features)


def _each(function: Callable[..., np.ndarray], *trees: Leaves) -> dict[str, np.ndarray]:
    return {leaf: function(*(tree[leaf] for tree in trees)) for leaf in trees[0]}


def _total(function: Callable[..., np.ndarray], *trees: Leaves) -> float:
    """The sum of the function over all coordinates, in float64."""
    total = 0.0
    for leaf in trees[0]:
        flat = [tree[leaf].reshape(-1) for tree in trees]
        for start in range(0, flat[0].size, BLOCK):
            parts = (f[start : start + BLOCK].astype(np.float64) for f in flat)
            total += float(np.sum(function(*parts)))
    return total


def _square_distance(a: Leaves, b: Leaves) -> float:
    return _total(lambda x, y: (x - y) ** 2, a, b)


def _l2(target: Moments, q: Moments) -> float:
    return _square_distance(target.mean, q.mean)


def _w2(target: Moments, q: Moments) -> float:
    return _l2(target, q) + _square_distance(target.std_or_zeros(), q.std_or_zeros())


def _kl(q: Moments, p: Moments) -> float:
    """KL(q ‖ p) of two factorised Gaussians."""

    def terms(mq: np.ndarray, sq: np.ndarray, mp: np.ndarray, sp: np.ndarray) -> np.ndarray:
        return np.log(sp / sq) + (sq**2 + (mq - mp) ** 2) / (2 * sp**2) - 0.5

    return _total(
        terms, q.mean, q.positive_std("kl", "mover"), p.mean, p.positive_std("kl", "target")
    )


def _reversed_kl(target: Moments, q: Moments) -> float:
    return _kl(q, target)


def _mahalanobis(target: Moments, q: Moments) -> float:
    std = target.positive_std("kl-reduced", "target")
    return _total(lambda m, s, x: ((x - m) / s) ** 2, target.mean, std, q.mean)


def _log_loss(target: Moments, q: Moments) -> float:
    def terms(m: np.ndarray, s: np.ndarray, x: np.ndarray) -> np.ndarray:
        return 0.5 * ((x - m) / s) ** 2 + np.log(s) + 0.5 * np.log(2 * np.pi)

    return _total(terms, target.mean, target.positive_std("log-density", "target"), q.mean)


def _moments(q: Moments) -> Features:
    return (q.mean,) if q.std is None else (q.mean, q.std)


def _means(q: Moments) -> Features:
    return (q.mean,)


def _squares(q: Moments) -> Features:
    return q.mean, _each(np.square, q.mean)


def _second_moments(name: str, side: str, factor: float, q: Moments) -> Features:
    std = q.positive_std(name, side)
    return q.mean, _each(lambda m, s: factor * (s**2 + m**2), q.mean, std)


def _precisions(name: str, side: str, factor: float, q: Moments) -> Features:
    std = q.positive_std(name, side)
    return _each(lambda m, s: m / s**2, q.mean, std), _each(lambda s: factor / s**2, std)


W2 = Objective("w2", _moments, _moments, _w2, has_barycentre=True)
L2 = Objective("l2", _means, _means, _l2, has_barycentre=True)
KL = Objective(
    "kl",
    partial(_precisions, "kl", "target", -0.5),
    partial(_second_moments, "kl", "mover", 1.0),
    _reversed_kl,
)
# KL(q₀ ‖ P#q₁) = Σ log(Ps₁/s₀) + (s₀² + (m₀ − Pm₁)²) / 2(Ps₁)² − ½; P permutes the terms of
# Σ m₁²/2s₁² and leaves their sum as it is.
REVERSE_KL = Objective(
    "reverse-kl",
    partial(_second_moments, "reverse-kl", "target", -0.5),
    partial(_precisions, "reverse-kl", "mover", 1.0),
    _kl,
)
KL_REDUCED = Objective(
    "kl-reduced", partial(_precisions, "kl-reduced", "target", -0.5), _squares, _mahalanobis
)
LOG_DENSITY = Objective(
    "log-density", partial(_precisions, "log-density", "target", -0.5), _squares, _log_loss
)

OBJECTIVES = {o.name: o for o in (W2, L2, KL, REVERSE_KL, KL_REDUCED, LOG_DENSITY)}


def objective_named(objective: ObjectiveLike) -> AlignmentObjective:
    """The objective of a name; an objective is returned as it is."""
    if isinstance(objective, str):
        if objective not in OBJECTIVES:
            raise ValueError(
                f"there is no objective '{objective}'; use one of {', '.join(OBJECTIVES)}, "
                "or give an Objective or Activations(network, x)"
            )
        return OBJECTIVES[objective]
    if not isinstance(objective, AlignmentObjective):
        raise ValueError(
            f"a {type(objective).__name__} is not an objective; give a name, an Objective or "
            "Activations(network, x)"
        )
    return objective
