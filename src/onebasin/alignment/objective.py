"""What alignment maximises: inner products of features of the target and of the mover.

An objective is a value, `Objective(name, target, mover, distance)`: two functions that turn a
posterior into trees shaped like its params, and the distance it stands for. With features
f⁰ₖ of the target and f¹ₖ of the mover, the score of a permutation P is

    score(P) = Σₖ ⟨f⁰ₖ, P f¹ₖ⟩

and every distance below is a constant minus a multiple of it. m and s are mean and deviation:

| name          | features of the target | of the mover  | distance                               |
|---------------|------------------------|---------------|----------------------------------------|
| `w2`          | m₀; s₀                 | m₁; s₁        | W₂² = ‖m₀−Pm₁‖² + ‖s₀−Ps₁‖²            |
| `l2`          | m₀                     | m₁            | ‖m₀−Pm₁‖²                              |
| `kl`          | m₀/s₀²; −1/2s₀²        | m₁; s₁²+m₁²   | KL(P#q₁ ‖ q₀)                          |
| `reverse-kl`  | m₀; −(s₀²+m₀²)/2       | m₁/s₁²; 1/s₁² | KL(q₀ ‖ P#q₁)                          |
| `kl-reduced`  | m₀/s₀²; −1/2s₀²        | m₁; m₁²       | Σ(m₀−Pm₁)²/s₀², the appendix's form    |
| `log-density` | m₀/s₀²; −1/2s₀²        | m₁; m₁²       | −log q₀(Pm₁)                           |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from onebasin.alignment.moments import Alignable, Moments, moments
from onebasin.choices import WeightObjective
from onebasin.symmetry import Symmetry

Features = tuple[Mapping[str, np.ndarray], ...]  # one mapping from leaf to array per feature


@dataclass(frozen=True)
class FeaturePair:
    """Features of both sides, and the symmetry whose places they are scored at."""

    symmetry: Symmetry
    target: Features
    mover: Features


@runtime_checkable
class AlignmentObjective(Protocol):
    """What `align` needs of an objective; `Objective` and `Activations` are such."""

    @property
    def name(self) -> str: ...
    @property
    def has_barycentre(self) -> bool:
        """Whether features are the same on both sides, so that their mean is a barycentre."""
        ...

    @property
    def relinearise(self) -> bool:
        """Whether the features are a slope, to be taken anew after each descent."""
        ...

    def features(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> FeaturePair:
        """What is multiplied: the features of both sides."""
        ...

    def measure(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float:
        """The distance of a posterior, as it lies, from another."""
        ...


ObjectiveLike: TypeAlias = AlignmentObjective | WeightObjective


@dataclass(frozen=True)
class Objective:
    """Feature maps of target and mover, and the distance the score stands for.

    A new objective is one such value:

    >>> signs = Objective(
    ...     "signs",
    ...     target=lambda q: ({k: np.sign(m) for k, m in q.mean.items()},),
    ...     mover=lambda q: ({k: np.sign(m) for k, m in q.mean.items()},),
    ... )
    """

    name: str
    target: Callable[[Moments], Features]
    mover: Callable[[Moments], Features]
    distance: Callable[[Moments, Moments], float] | None = None  # (target, moved mover)
    has_barycentre: bool = False
    """Whether features are the same on both sides, so that their mean is a barycentre."""
    relinearise: bool = False
    """Whether the features are a slope, to be taken anew after each descent."""

    def features(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> FeaturePair:
        """The features of `posterior` (the mover) and `to` (the target), checked."""
        known, goal = moments(posterior), moments(to)
        target, mover = self.target(goal), self.mover(known)
        count = min(len(target), len(mover))
        if len(target) != len(mover) and known.std is not None and goal.std is not None:
            raise ValueError(
                f"objective '{self.name}' has {len(target)} features of the target and "
                f"{len(mover)} of the mover; they are multiplied one by one, so give as many"
            )
        # A single point has no deviations: what would multiply them is left out.
        return FeaturePair(symmetry, target[:count], mover[:count])

    def measure(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float:
        """The distance of `posterior`, as it lies, from `to`."""
        mover, target = moments(posterior), moments(to)
        if self.distance is not None:
            return self.distance(target, mover)
        del symmetry
        return -_dot(self.target(target), self.mover(mover))


def _each(function: Callable[..., np.ndarray], *trees: Mapping[str, np.ndarray]):
    return {leaf: function(*(tree[leaf] for tree in trees)) for leaf in trees[0]}


def _total(function: Callable[..., np.ndarray], *trees: Mapping[str, np.ndarray]) -> float:
    """Σ over all coordinates, summed in float64 a block at a time."""
    total = 0.0
    for leaf in trees[0]:
        flat = [tree[leaf].reshape(-1) for tree in trees]
        for start in range(0, flat[0].size, 1 << 16):
            parts = (f[start : start + (1 << 16)].astype(np.float64) for f in flat)
            total += float(np.sum(function(*parts)))
    return total


def _dot(a: Features, b: Features) -> float:
    return sum(_total(np.multiply, x, y) for x, y in zip(a, b, strict=True))


def _square_distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x - y) ** 2


def _w2(target: Moments, q: Moments) -> float:
    return _total(_square_distance, target.mean, q.mean) + _total(
        _square_distance, target.std_or_zeros(), q.std_or_zeros()
    )


def _kl(q: Moments, p: Moments) -> float:
    """KL(q ‖ p) of two factorised Gaussians."""

    def terms(mq, sq, mp, sp):
        return np.log(sp / sq) + (sq**2 + (mq - mp) ** 2) / (2 * sp**2) - 0.5

    return _total(
        terms, q.mean, q.positive_std("kl", "mover"), p.mean, p.positive_std("kl", "target")
    )


def _mahalanobis(target: Moments, q: Moments) -> float:
    std = target.positive_std("kl-reduced", "target")
    return _total(lambda m, s, x: ((x - m) / s) ** 2, target.mean, std, q.mean)


def _negative_log_density(target: Moments, q: Moments) -> float:
    def terms(m, s, x):
        return 0.5 * ((x - m) / s) ** 2 + np.log(s) + 0.5 * np.log(2 * np.pi)

    return _total(terms, target.mean, target.positive_std("log-density", "target"), q.mean)


def _precision_features(name: str) -> Callable[[Moments], Features]:
    def features(q: Moments) -> Features:
        std = q.positive_std(name, "target")
        return (
            _each(lambda m, s: m / s**2, q.mean, std),
            _each(lambda s: -0.5 / s**2, std),
        )

    return features


def _reverse_precision_features(q: Moments) -> Features:
    std = q.positive_std("reverse-kl", "mover")
    return _each(lambda m, s: m / s**2, q.mean, std), _each(lambda s: 1 / s**2, std)


W2 = Objective(
    "w2",
    target=lambda q: (q.mean, q.std_or_zeros()) if q.std is not None else (q.mean,),
    mover=lambda q: (q.mean, q.std_or_zeros()) if q.std is not None else (q.mean,),
    distance=_w2,
    has_barycentre=True,
)
L2 = Objective(
    "l2",
    target=lambda q: (q.mean,),
    mover=lambda q: (q.mean,),
    distance=lambda target, q: _total(_square_distance, target.mean, q.mean),
    has_barycentre=True,
)
KL = Objective(
    "kl",
    target=_precision_features("kl"),
    mover=lambda q: (
        q.mean,
        _each(lambda m, s: s**2 + m**2, q.mean, q.positive_std("kl", "mover")),
    ),
    distance=lambda target, q: _kl(q, target),
)
# KL(q₀ ‖ P#q₁) = Σ log(Ps₁/s₀) + (s₀² + (m₀ − Pm₁)²) / 2(Ps₁)² − ½; the term m₁²/2s₁² only
# depends on which coordinates there are, not where they go.
REVERSE_KL = Objective(
    "reverse-kl",
    target=lambda q: (
        q.mean,
        _each(lambda m, s: -0.5 * (s**2 + m**2), q.mean, q.positive_std("reverse-kl", "target")),
    ),
    mover=_reverse_precision_features,
    distance=lambda target, q: _kl(target, q),
)
KL_REDUCED = Objective(
    "kl-reduced",
    target=_precision_features("kl-reduced"),
    mover=lambda q: (q.mean, _each(np.square, q.mean)),
    distance=_mahalanobis,
)
LOG_DENSITY = Objective(
    "log-density",
    target=_precision_features("log-density"),
    mover=lambda q: (q.mean, _each(np.square, q.mean)),
    distance=_negative_log_density,
)

OBJECTIVES = {o.name: o for o in (W2, L2, KL, REVERSE_KL, KL_REDUCED, LOG_DENSITY)}


def objective_named(objective: ObjectiveLike) -> AlignmentObjective:
    """An objective by name; a value that already is one is given back."""
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
