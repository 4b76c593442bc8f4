"""A Gaussian with a diagonal plus low-rank covariance, fitted by maximum likelihood.

The model is factor analysis: x = m + Fᵀz + √D ε with z, ε standard normal, F [rank, d], so that
the covariance is Σ = D + FᵀF. With centred members xᵢ, scores uᵢ = F D⁻¹ xᵢ and
C = I + F D⁻¹ Fᵀ (rank × rank), Woodbury's identity and the determinant lemma give

    log N(xᵢ) = −½ (xᵢᵀD⁻¹xᵢ − uᵢᵀC⁻¹uᵢ + log|D| + log|C| + d log 2π),

and no d × d matrix is formed. For any Σ the best mean is that of the members. One step of EM
is, with the factors' posterior means zᵢ = C⁻¹uᵢ and A = (1/n) Σ zᵢzᵢᵀ + C⁻¹,

    B = (1/n) Σ zᵢxᵢᵀ,   F ← A⁻¹B,   D ← max(diag(S) − Σ_r F_r B_r, floor),

with S the members' covariance. Both are the exact maximisers of the expected complete-data
log-likelihood, coordinate by coordinate (it is unimodal in D, so the constrained optimum is at the
floor where the floor binds), so the likelihood never decreases. With rank 0 one step is the whole
fit: D = max(diag(S), floor).

Members with variances of their own (posteriors) represent all their draws: their mean variance V is
added to the diagonal of S, C⁻¹GC⁻¹ to A, with G = F D⁻¹VD⁻¹Fᵀ, and C⁻¹FVD⁻¹ to B. At a fixed point
diag(Σ) = diag(S) wherever the floor does not bind: marginal variances are those of the members.

Both steps need sums over members only, so members are read a few at a time: with C known from F and
D, the scores of a member and its part of Σ zᵢxᵢᵀ follow in the same pass.

EM starts from the principal directions of the members, every coordinate divided by its standard
deviation (`principal_directions.py`).
"""

from collections.abc import Mapping

import numpy as np

from onebasin.alignment.aligned_members import AlignedMembers, Chunk
from onebasin.alignment.gaussian_target import Gaussian, GaussianTarget
from onebasin.alignment.principal_directions import principal_directions

COLUMNS = 1 << 15  # coordinates summed in the members' precision before sums go on in double


class Expectations:
    """What the likelihood under one Gaussian, and the next step of EM, need of the members."""

    def __init__(self, fit: "GaussianFit") -> None:
        aligned, gaussian = fit.aligned, fit.gaussian
        members, rank, dtype = len(aligned.members), gaussian.rank, aligned.dtype
        stds = {leaf: np.sqrt(v) for leaf, v in gaussian.variance.items()}
        loadings = {k: f / stds[k].astype(f.dtype) for k, f in gaussian.factors.items()}
        own = {leaf: fit.own[leaf] / v for leaf, v in gaussian.variance.items()}  # D⁻¹V
        self.inner = np.eye(rank) + summed(loadings, loadings)  # C
        self.own_inner = summed(
            {k: f * own[k].astype(f.dtype) for k, f in loadings.items()}, loadings
        )  # G
        self.scores = np.zeros((members, rank))  # uᵢ
        self.cross = {leaf: np.zeros((rank, v.size)) for leaf, v in stds.items()}  # Σ zᵢxᵢᵀ
        # Σᵢ xᵢᵀD⁻¹xᵢ/n + tr(D⁻¹V), log|D| and d
        self.quadratic = sum(float(np.sum(fit.total[k] / v)) for k, v in gaussian.variance.items())
        self.log_det = sum(float(np.sum(np.log(v))) for v in gaussian.variance.values())
        self.size = aligned.size
        if not rank:
            return
        white = {leaf: (f / stds[leaf].astype(f.dtype)) for leaf, f in loadings.items()}  # FD⁻¹
        self.inverse = np.linalg.inv(self.inner)
        for chunk in aligned.chunks():
            centred = fit.centred(chunk)
            scores = summed(centred, white)
            means = (scores @ self.inverse).astype(dtype)
            self.scores[chunk.rows] = scores
            for leaf, values in centred.items():
                self.cross[leaf] += means.T @ values

    def mean_log_likelihood(self) -> float:
        """(1/n) Σᵢ E log N(xᵢ)."""
        inverse = np.linalg.inv(self.inner)
        explained = np.einsum("ir,rs,is->", self.scores, inverse, self.scores) / len(self.scores)
        apart = self.quadratic - float(explained) - float(np.sum(inverse * self.own_inner))
        log_det = self.log_det + float(np.linalg.slogdet(self.inner)[1])
        return -0.5 * (apart + log_det + self.size * np.log(2 * np.pi))


class GaussianFit:
    """The Gaussian of aligned members, kept up to date as they move."""

    def __init__(self, aligned: AlignedMembers, rank: int, floor: float) -> None:
        self.aligned = aligned
        self._measure()
        self.floors = _floors(self.total, floor)
        if not rank:
            self._set({k: np.zeros((0, v.size), aligned.dtype) for k, v in self.total.items()})
            return
        scale = {leaf: np.sqrt(np.maximum(v, self.floors[leaf])) for leaf, v in self.total.items()}
        directions = principal_directions(aligned, self.centred, scale, rank)
        # With orthonormal directions V, √n·V in place of z and A = I, a step of EM projects the
        # members on them: F = Vᵀx/√n, and D is the rest of every coordinate's variance.
        self._set(self._projected(directions))

    @property
    def mean_log_likelihood(self) -> float:
        return self.expectations.mean_log_likelihood()

    def target(self) -> GaussianTarget:
        """The Gaussian as a target that members are matched to."""
        of, inner = self.aligned, self.expectations.inner
        return GaussianTarget(self.gaussian, of.shapes, of.symmetry, of.own_dtype, inner)

    def centred(self, chunk: Chunk) -> dict[str, np.ndarray]:
        """The members of a chunk minus their mean; the chunk is used up."""
        for leaf, values in chunk.values.items():
            np.subtract(values, self.mean[leaf].astype(values.dtype), out=values)
        return dict(chunk.values)

    def project(self, directions: np.ndarray, strength: float) -> None:
        """Project members on directions V [members, rank]: F = strength·Vᵀx/√n, D at its floor."""
        projected = self._projected(directions)
        factors = {leaf: (strength * f).astype(f.dtype) for leaf, f in projected.items()}
        variance = {leaf: np.full(v.size, self.floors[leaf]) for leaf, v in self.total.items()}
        self._use(variance, factors)

    def recentre(self) -> None:
        """Update the mean, and the expectations under it, after members have moved."""
        self._measure()
        self._use(self.gaussian.variance, self.gaussian.factors)

    def improve(self) -> None:
        """One step of EM."""
        found, dtype = self.expectations, self.aligned.dtype
        if not self.gaussian.rank:
            self._set(self.gaussian.factors)
            return
        inverse, members = found.inverse, len(found.scores)
        means = found.scores @ inverse
        second = means.T @ means / members + inverse + inverse @ found.own_inner @ inverse  # A
        variance, factors = {}, {}
        for leaf, total in self.total.items():
            cross = found.cross[leaf] / members  # B
            if self.own[leaf].any():
                share = self.own[leaf] / self.gaussian.variance[leaf]
                cross += inverse @ (self.gaussian.factors[leaf] * share)
            loadings = np.linalg.solve(second, cross)
            left = total - np.einsum("rc,rc->c", loadings, cross)
            variance[leaf] = np.maximum(left, self.floors[leaf])
            factors[leaf] = loadings.astype(dtype)
        self._use(variance, factors)

    def _set(self, factors: Mapping[str, np.ndarray]) -> None:
        """Use F, with D the rest of every coordinate's variance."""
        explained = {k: np.einsum("rc,rc->c", f, f, dtype=np.float64) for k, f in factors.items()}
        left = {leaf: total - explained[leaf] for leaf, total in self.total.items()}
        self._use({leaf: np.maximum(v, self.floors[leaf]) for leaf, v in left.items()}, factors)

    def _use(self, variance: Mapping[str, np.ndarray], factors: Mapping[str, np.ndarray]) -> None:
        self.gaussian = Gaussian(self.mean, dict(variance), dict(factors))
        self.expectations = Expectations(self)

    def _measure(self) -> None:
        """The members' mean, their own mean variance V, and diag(S) with V, in one pass.

        Chunks are combined as in `draw_moments`.
        """
        sizes = {leaf: int(np.prod(shape)) for leaf, shape in self.aligned.shapes.items()}
        self.mean = {leaf: np.zeros(size) for leaf, size in sizes.items()}
        self.own = {leaf: np.zeros(size) for leaf, size in sizes.items()}
        squares = {leaf: np.zeros(size) for leaf, size in sizes.items()}
        count = 0
        for chunk in self.aligned.chunks():
            more = chunk.rows.stop - chunk.rows.start
            for leaf, given in chunk.values.items():
                values = given.astype(np.float64)
                middle = values.mean(axis=0)
                values -= middle
                shift = middle - self.mean[leaf]
                self.mean[leaf] += shift * (more / (count + more))
                squares[leaf] += np.einsum("ij,ij->j", values, values)
                squares[leaf] += shift**2 * (count * more / (count + more))
                if chunk.stds is not None:
                    stds = chunk.stds[leaf]
                    self.own[leaf] += np.einsum("ij,ij->j", stds, stds, dtype=np.float64)
            count += more
        self.own = {leaf: v / count for leaf, v in self.own.items()}
        self.total = {leaf: v / count + self.own[leaf] for leaf, v in squares.items()}

    def _projected(self, directions: np.ndarray) -> dict[str, np.ndarray]:
        """Vᵀx/√n for directions V [members, rank]."""
        dtype, root = self.aligned.dtype, np.sqrt(len(directions))
        found = {leaf: np.zeros((directions.shape[1], v.size)) for leaf, v in self.total.items()}
        for chunk in self.aligned.chunks():
            weights = (directions[chunk.rows].T / root).astype(dtype)
            for leaf, values in self.centred(chunk).items():
                found[leaf] += weights @ values
        return {leaf: total.astype(dtype) for leaf, total in found.items()}

    def posterior_factors(self) -> dict[str, np.ndarray]:
        """The factors rotated so that F D⁻¹ Fᵀ is diagonal, largest first: the same covariance."""
        rotation = np.linalg.eigh(self.expectations.inner)[1][:, ::-1].T
        return {k: rotation.astype(f.dtype) @ f for k, f in self.gaussian.factors.items()}


def summed(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
    """Σ abᵀ over all coordinates; sums of many are taken in double precision."""
    parts = [
        a[leaf][:, at : at + COLUMNS] @ b[leaf][:, at : at + COLUMNS].T
        for leaf in a
        for at in range(0, a[leaf].shape[1], COLUMNS)
    ]
    shape = len(next(iter(a.values()))), len(next(iter(b.values())))
    return sum((part.astype(np.float64) for part in parts), start=np.zeros(shape))


def _floors(total: Mapping[str, np.ndarray], floor: float) -> dict[str, float]:
    """The floor of each leaf: a share of its mean variance."""
    means = {leaf: float(v.mean()) for leaf, v in total.items() if v.size}
    # A leaf that is the same in all members has no scale of its own: it takes that of the others.
    overall = float(np.mean([m for m in means.values() if m > 0] or [1.0]))
    tiny = float(np.finfo(np.float32).tiny)
    return {leaf: max(floor * (means.get(leaf) or overall), tiny) for leaf in total}
