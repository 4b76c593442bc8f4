"""A Gaussian as the target of a match: the permutation at which a member has the highest density.

With Σ = D + FᵀF and r = Pθ − m, the log-density is −½ rᵀD⁻¹r + ½ uᵀC⁻¹u + const, with u = FD⁻¹r and
C = I + FD⁻¹Fᵀ. The first term is an inner product of features. The second couples all coordinates,
but it is convex in Pθ, so its tangent at the present permutation is a lower bound: whatever raises
the first term plus the tangent raises the density by at least as much. The slope of the tangent is
D⁻¹Fᵀz with z = C⁻¹u, so a step pulls the member to its own reconstruction m + Fᵀz. Then the tangent
is taken at the new permutation. A move is kept only if the density itself rises, which guards
against rounding.

A posterior's own variances s² add −½ ⟨diag(Σ⁻¹), Ps²⟩, which is an inner product of features too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onebasin.alignment.members import match, moved
from onebasin.alignment.moments import Alignable, Leaves, Moments, moments
from onebasin.alignment.objective import FeaturePair, Features
from onebasin.alignment.scores import Indices
from onebasin.posterior import LowRank
from onebasin.symmetry import Permutation, Symmetry
from onebasin.trees import leaves_by_path

TANGENTS = 3  # taken of one member in one round; the next round continues from there


@dataclass(frozen=True)
class Gaussian:
    """N(mean, diag(variance) + Σ_r factors_r factors_rᵀ), by leaf and flattened."""

    mean: Leaves
    variance: Leaves
    factors: Leaves  # [rank, coordinates]

    @property
    def rank(self) -> int:
        return len(next(iter(self.factors.values())))


class GaussianTarget:
    """One Gaussian, prepared for matching members to it in the precision `dtype`."""

    def __init__(
        self,
        gaussian: Gaussian,
        shapes: Mapping[str, tuple[int, ...]],
        symmetry: Symmetry,
        dtype: np.dtype,
        inner: np.ndarray | None = None,
    ) -> None:
        self.symmetry, self.dtype = symmetry, dtype
        self.mean, self.std = gaussian.mean, {}
        self.loadings: dict[str, np.ndarray] = {}  # F D^-½
        for leaf, variance in gaussian.variance.items():
            self.std[leaf] = np.sqrt(variance)
            self.loadings[leaf] = gaussian.factors[leaf] / self.std[leaf].astype(dtype)
        if inner is None:  # C, which a fit has computed already
            inner = sum((f @ f.T for f in self.loadings.values()), start=np.eye(gaussian.rank))
        self.inverse = np.linalg.inv(inner)
        self.log_det = float(np.linalg.slogdet(inner)[1])
        self.first, self.second, self.own = {}, {}, {}
        for leaf, variance in gaussian.variance.items():
            loadings, shape = self.loadings[leaf], shapes[leaf]
            self.first[leaf] = (gaussian.mean[leaf] / variance).astype(dtype).reshape(shape)
            self.second[leaf] = (-0.5 / variance).astype(dtype).reshape(shape)
            explained = np.einsum(
                "rc,rc->c", loadings, self.inverse.astype(dtype) @ loadings, dtype=np.float64
            )
            precision = (1 - explained) / variance  # diag(Σ⁻¹)
            self.own[leaf] = (-0.5 * precision).astype(dtype).reshape(shape)

    def best_indices(self, member: Moments, start: Indices, max_sweeps: int) -> Indices | None:
        """The permutation of highest density found from `start`; None if nothing beats `start`."""
        squares = {leaf: mean**2 for leaf, mean in member.mean.items()}
        features: Features = (member.mean, squares)
        if member.std is not None:
            features = (*features, {leaf: std**2 for leaf, std in member.std.items()})
        best, found = start, None
        value, latent = self.log_density(member, best)
        for _ in range(TANGENTS if len(self.inverse) else 1):
            pair = FeaturePair(self.symmetry, self.features(latent)[: len(features)], features)
            result = match(pair, best, forward=False, max_sweeps=max_sweeps)
            if result.gain <= 0:
                break
            there, latent = self.log_density(member, result.indices)
            # The rounding error of a sum of this many squares is about this large.
            if there - value <= 10 * np.finfo(self.dtype).eps * abs(value):
                break
            best = found = result.indices
            value = there
        return found

    def features(self, latent: np.ndarray) -> Features:
        """What multiplies Pθ, (Pθ)² and Ps², with the tangent taken at the latent mean z."""
        if not len(latent):
            return self.first, self.second, self.own
        first = {}
        for leaf, base in self.first.items():
            slope = latent.astype(base.dtype) @ self.loadings[leaf]
            slope /= self.std[leaf].astype(base.dtype)
            first[leaf] = base + slope.reshape(base.shape)
        return first, self.second, self.own

    def log_density(self, member: Moments, indices: Indices) -> tuple[float, np.ndarray]:
        """log N(Pθ) up to a constant of the Gaussian, and the factors' posterior mean z."""
        trees = (member.mean,) if member.std is None else (member.mean, member.std)
        mean, *std = moved(self.symmetry, trees, indices)
        scores, quadratic = np.zeros(len(self.inverse)), 0.0
        for leaf, value in mean.items():
            white = (value.reshape(-1) - self.mean[leaf]) / self.std[leaf]
            scores += self.loadings[leaf] @ white.astype(self.loadings[leaf].dtype)
            quadratic += float(white @ white)
            for own in std:
                variance = own[leaf].astype(np.float64) ** 2
                quadratic -= 2 * float(np.sum(self.own[leaf] * variance))
        latent = self.inverse @ scores
        return -0.5 * (quadratic - float(scores @ latent)), latent

    def constant(self) -> float:
        """What `log_density` leaves out: −½ (log|Σ| + d log 2π)."""
        log_det = self.log_det + sum(2 * float(np.sum(np.log(s))) for s in self.std.values())
        size = sum(s.size for s in self.std.values())
        return -0.5 * (log_det + size * np.log(2 * np.pi))


@dataclass(frozen=True)
class LowRankLogDensity:
    """−log q₀(Pθ) for a `LowRank` target, correlations included; the mover is a point.

    The features are those of `GaussianTarget`: a tangent, updated after each descent.
    """

    name: str = "low-rank-log-density"
    has_barycentre: bool = False
    relinearise: bool = True

    def features(
        self, posterior: Alignable, to: Alignable, symmetry: Symmetry, at: Permutation | None = None
    ) -> FeaturePair:
        """The features with the tangent at the permutation `at` (the identity if None)."""
        target, point = _target(to, symmetry), moments(posterior).mean
        indices = dict((at or symmetry.identity()).indices)
        _, latent = target.log_density(Moments(point, None), indices)
        first, second, _ = target.features(latent)
        cast = tuple({k: v.astype(point[k].dtype) for k, v in f.items()} for f in (first, second))
        return FeaturePair(symmetry, cast, (point, {leaf: x**2 for leaf, x in point.items()}))

    def measure(self, posterior: Alignable, to: Alignable, symmetry: Symmetry) -> float:
        """−log q₀(θ)."""
        target, point = _target(to, symmetry), Moments(moments(posterior).mean, None)
        density, _ = target.log_density(point, dict(symmetry.identity().indices))
        return -(density + target.constant())


def _target(to: Alignable, symmetry: Symmetry) -> GaussianTarget:
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
