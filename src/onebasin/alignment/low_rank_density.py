"""The log-density of a point under a Gaussian with a low-rank covariance, by its tangents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from onebasin.alignment.gaussian_target import Gaussian, GaussianTarget
from onebasin.alignment.moments import Moments, moments
from onebasin.alignment.objective import FeaturePair
from onebasin.posterior.low_rank import LowRank
from onebasin.symmetry import Permutation, Symmetry
from onebasin.trees import leaves_by_path


@dataclass(frozen=True)
class LowRankLogDensity:
    """−log q₀(Pθ) for a `LowRank` target, correlations and all; what moves is a point.

    The features are those of `GaussianTarget`: a slope, taken anew after each descent.
    """

    name: str = "low-rank-log-density"
    has_barycentre: bool = False
    relinearise: bool = True

    def features(
        self, q: Any, to: Any, symmetry: Symmetry, at: Permutation | None = None
    ) -> FeaturePair:
        """The features with the tangent taken at the permutation `at` (the identity if None)."""
        target, point = _target(to, symmetry), moments(q).mean
        indices = dict((at or symmetry.identity()).indices)
        _, latent = target.log_density(Moments(point, None), indices)
        first, second, _ = target.features(latent)
        cast = tuple({k: v.astype(point[k].dtype) for k, v in f.items()} for f in (first, second))
        return FeaturePair(symmetry, cast, (point, {leaf: x**2 for leaf, x in point.items()}))

    def measure(self, q: Any, to: Any, symmetry: Symmetry) -> float:
        target = _target(to, symmetry)
        still = dict(symmetry.identity().indices)
        density, _ = target.log_density(Moments(moments(q).mean, None), still)
        return -(density + target.constant())


def _target(to: Any, symmetry: Symmetry) -> GaussianTarget:
    if not isinstance(to, LowRank):
        raise ValueError(
            f"LowRankLogDensity needs a LowRank target, not a {type(to).__name__}; "
            "use objective='log-density' for a MeanField"
        )
    means, stds, factors = (
        {leaf: np.asarray(v, np.float64) for leaf, v in leaves_by_path(tree).items()}
        for tree in (to.mean, to.std, to.factors)
    )
    gaussian = Gaussian(
        {leaf: m.reshape(-1) for leaf, m in means.items()},
        {leaf: s.reshape(-1) ** 2 for leaf, s in stds.items()},
        {leaf: f.reshape(len(f), -1) for leaf, f in factors.items()},
    )
    shapes = {leaf: m.shape for leaf, m in means.items()}
    return GaussianTarget(gaussian, shapes, symmetry, np.dtype(np.float64))
