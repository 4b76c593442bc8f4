"""The log-density of a point under a Gaussian with a low-rank covariance, by its tangents.

With D = diag(std²), C = I + FᵀD⁻¹F and r = Pθ − mean,

    log q(Pθ) = −½ rᵀD⁻¹r + ½ uᵀC⁻¹u + const,   u = FᵀD⁻¹r.

The second term couples all coordinates, so it is not a sum of features. But it is convex in
Pθ: its tangent at the present permutation, ⟨g, Pθ⟩ with g = D⁻¹F C⁻¹u, lies below it. So
raising the first term plus the tangent raises the density itself at least as much; then the
tangent is taken anew.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from onebasin.alignment.moments import moments
from onebasin.alignment.objective import FeaturePair
from onebasin.posterior.low_rank import LowRank
from onebasin.symmetry import Permutation, Symmetry
from onebasin.symmetry.action import move_tree
from onebasin.trees import leaves_by_path


@dataclass(frozen=True)
class LowRankLogDensity:
    """−log q₀(Pθ) for a `LowRank` target, correlations and all; the mover is a point."""

    name: str = "low-rank-log-density"
    sums: bool = False
    relinearise: bool = True

    def problem(
        self, q: Any, to: Any, symmetry: Symmetry, at: Permutation | None = None
    ) -> FeaturePair:
        """The features with the tangent taken at the permutation `at` (the identity if None)."""
        target = _parts(to)
        point = moments(q).mean
        lies = move_tree(dict(point), 0, symmetry.layouts, (at or symmetry.identity()).indices)
        slope = _slope(target, lies)
        first = {leaf: m / s**2 + slope[leaf] for leaf, (m, s, _) in target.items()}
        second = {leaf: -0.5 / s**2 for leaf, (_, s, _) in target.items()}
        kind = {leaf: point[leaf].dtype for leaf in point}
        return FeaturePair(
            symmetry,
            tuple({k: v.astype(kind[k]) for k, v in f.items()} for f in (first, second)),
            (point, {leaf: x**2 for leaf, x in point.items()}),
        )

    def measure(self, q: Any, to: Any, symmetry: Symmetry) -> float:
        del symmetry
        target, point = _parts(to), moments(q).mean
        gram, projected = _low_rank_sums(target, point)
        total = 0.0
        for leaf, (m, s, _) in target.items():
            scaled = (point[leaf] - m) / s
            total += float(np.sum(0.5 * scaled**2 + np.log(s) + 0.5 * np.log(2 * np.pi)))
        total += 0.5 * float(np.linalg.slogdet(gram)[1])
        return total - 0.5 * float(projected @ np.linalg.solve(gram, projected))


Parts = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def _parts(to: Any) -> Parts:
    if not isinstance(to, LowRank):
        raise ValueError(
            f"LowRankLogDensity needs a LowRank target, not a {type(to).__name__}; "
            "use objective='log-density' for a MeanField"
        )
    means, stds, factors = (
        {leaf: np.asarray(v, np.float64) for leaf, v in leaves_by_path(tree).items()}
        for tree in (to.mean, to.std, to.factors)
    )
    return {leaf: (means[leaf], stds[leaf], factors[leaf]) for leaf in means}


def _low_rank_sums(target: Parts, point: Any) -> tuple[np.ndarray, np.ndarray]:
    """C = I + FᵀD⁻¹F and u = FᵀD⁻¹r."""
    rank = len(next(iter(target.values()))[2])
    gram, projected = np.eye(rank), np.zeros(rank)
    for leaf, (m, s, f) in target.items():
        scaled = (f / s).reshape(rank, -1)
        gram += scaled @ scaled.T
        projected += scaled @ ((point[leaf] - m) / s).reshape(-1)
    return gram, projected


def _slope(target: Parts, point: Any) -> dict[str, np.ndarray]:
    gram, projected = _low_rank_sums(target, point)
    weights = np.linalg.solve(gram, projected)
    return {leaf: np.tensordot(weights, f, axes=1) / s**2 for leaf, (_, s, f) in target.items()}
