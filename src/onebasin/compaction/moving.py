"""Moving members to where one Gaussian gives them the highest density.

With Σ = D + FᵀF and r = Pθ − m, the log-density is −½ rᵀD⁻¹r + ½ uᵀC⁻¹u + const, u = FD⁻¹r. The
first term is a sum of features; the second is convex in Pθ, so its tangent at the present
permutation lies below it: whatever raises the first term plus the tangent raises the density
by at least as much. The tangent's slope is D⁻¹Fᵀz with z = C⁻¹u, so a step draws the member to
its own reconstruction m + Fᵀz. Then the tangent is taken anew. A move is kept only if the
density itself rises, which guards against rounding.

A posterior's own variances s² add −½ ⟨diag(Σ⁻¹), Ps²⟩, which is a feature too.
"""

import numpy as np

from onebasin.alignment.members import match, moved
from onebasin.alignment.objective import Features, Moments
from onebasin.alignment.scores import Indices
from onebasin.compaction.gaussian import Fit

TANGENTS = 3  # taken of one member in one round; the next round goes on from there
Leaves = dict[str, np.ndarray]


class Mover:
    """One Gaussian, laid out for matching members to it."""

    def __init__(self, fit: Fit, max_sweeps: int) -> None:
        frame, gaussian = fit.frame, fit.gaussian
        self.frame, self.max_sweeps = frame, max_sweeps
        kind, shapes = frame.dtype, frame.shapes
        self.mean, self.deviation = gaussian.mean, {}
        self.loadings: Leaves = {}  # F D^-½
        first, second, own = {}, {}, {}
        self.inverse = np.linalg.inv(fit.expectations.inner)
        for leaf, variance in gaussian.variance.items():
            self.deviation[leaf] = np.sqrt(variance)
            loadings = gaussian.factors[leaf] / self.deviation[leaf].astype(kind)
            self.loadings[leaf] = loadings
            first[leaf] = (gaussian.mean[leaf] / variance).astype(kind).reshape(shapes[leaf])
            second[leaf] = (-0.5 / variance).astype(kind).reshape(shapes[leaf])
            spread = self.inverse.astype(kind) @ loadings
            explained = np.einsum("rc,rc->c", loadings, spread, dtype=np.float64)
            precision = (1 - explained) / variance  # diag(Σ⁻¹)
            own[leaf] = (-0.5 * precision).astype(kind).reshape(shapes[leaf])
        self.first, self.second, self.own = first, second, own

    def move(self, index: int) -> Indices | None:
        """Where member `index` should lie, or None if it lies best already."""
        member = self.frame.members[index]
        squares = {leaf: mean**2 for leaf, mean in member.mean.items()}
        features: Features = (member.mean, squares)
        if member.std is not None:
            features = (*features, {leaf: std**2 for leaf, std in member.std.items()})
        rank = len(self.inverse)
        best, found = self.frame.indices[index], None
        value, latent = self._density(member, best)
        for _ in range(TANGENTS if rank else 1):
            result = match(
                self.frame.symmetry,
                self._target(latent, len(features)),
                features,
                best,
                forward=False,
                max_sweeps=self.max_sweeps,
            )
            if result.gain <= 0:
                break
            there, latent = self._density(member, result.indices)
            # In single precision a sum of this many squares is known to about this much.
            if there - value <= 10 * np.finfo(self.frame.dtype).eps * abs(value):
                break
            best = found = result.indices
            value = there
        return found

    def _target(self, latent: np.ndarray, features: int) -> Features:
        if not len(latent):
            return (self.first, self.second, self.own)[:features]
        first = {}
        for leaf, base in self.first.items():
            slope = latent.astype(base.dtype) @ self.loadings[leaf]
            slope /= self.deviation[leaf].astype(base.dtype)
            first[leaf] = base + slope.reshape(base.shape)
        return (first, self.second, self.own)[:features]

    def _density(self, member: Moments, indices: Indices) -> tuple[float, np.ndarray]:
        """log N(Pθ) less its constant, and the factors' posterior mean z."""
        features = (member.mean,) if member.std is None else (member.mean, member.std)
        lies = moved(self.frame.symmetry, features, indices)
        scores, quadratic = np.zeros(len(self.inverse)), 0.0
        for leaf, value in lies[0].items():
            deviation = self.deviation[leaf]
            white = (value.reshape(-1) - self.mean[leaf]) / deviation
            scores += self.loadings[leaf] @ white.astype(self.loadings[leaf].dtype)
            quadratic += float(white @ white)
            if member.std is not None:
                variance = lies[1][leaf].astype(np.float64) ** 2
                quadratic -= 2 * float(np.sum(self.own[leaf] * variance))
        latent = self.inverse @ scores
        return -0.5 * (quadratic - float(scores @ latent)), latent
