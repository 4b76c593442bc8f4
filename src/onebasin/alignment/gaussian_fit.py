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

EM starts from the principal directions of the members, every coordinate divided by its standard
deviation, found through the n × n Gram matrix.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.sparse.linalg import eigsh

from onebasin.alignment.aligned_members import AlignedMembers, Block
from onebasin.alignment.gaussian_target import Gaussian, GaussianTarget

Step: TypeAlias = Callable[[Block, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""D and F of one block, from the block and its centred values."""


class Expectations:
    """Sums over all coordinates under one Gaussian: what its likelihood and EM need."""

    def __init__(self, members: int, rank: int) -> None:
        self.scores = np.zeros((members, rank))  # uᵢ
        self.inner = np.eye(rank)  # C
        self.quadratic = np.zeros(members)  # xᵢᵀD⁻¹xᵢ
        self.own_inner = np.zeros((rank, rank))  # G
        self.own_quadratic = 0.0  # tr(D⁻¹V)
        self.log_det = 0.0  # log|D|
        self.size = 0

    def add(
        self, block: Block, centred: np.ndarray, variance: np.ndarray, factors: np.ndarray
    ) -> None:
        """Add one block: members [n, c] minus their mean, D [c] and F [rank, c]."""
        std = np.sqrt(variance)
        white = centred / std.astype(centred.dtype)
        loadings = factors / std.astype(factors.dtype)
        self.scores += white @ loadings.T
        self.inner += loadings @ loadings.T
        self.quadratic += np.einsum("ij,ij->i", white, white)
        share = block.variance / variance
        self.own_quadratic += float(np.sum(share))
        self.own_inner += (loadings * share) @ loadings.T
        self.log_det += float(np.sum(np.log(variance)))
        self.size += len(variance)

    def mean_log_likelihood(self) -> float:
        """(1/n) Σᵢ E log N(xᵢ)."""
        inverse = np.linalg.inv(self.inner)
        explained = np.einsum("ir,rs,is->i", self.scores, inverse, self.scores)
        own = self.own_quadratic - float(np.sum(inverse * self.own_inner))
        log_det = self.log_det + float(np.linalg.slogdet(self.inner)[1])
        apart = float(np.mean(self.quadratic - explained)) + own
        return -0.5 * (apart + log_det + self.size * np.log(2 * np.pi))


class GaussianFit:
    """The Gaussian of aligned members, kept up to date as they move."""

    def __init__(self, aligned: AlignedMembers, rank: int, floor: float) -> None:
        self.aligned = aligned
        total, self.floors = _total_variances(aligned, floor)
        members = len(aligned.members)
        directions = leading(_gram(aligned, total), rank) if rank else np.zeros((members, 0))
        # With orthonormal directions V, √n·V in place of z and A = I, a step of EM projects the
        # members on them: F = Vᵀx/√n, and D is the rest of every coordinate's variance.
        self._maximise(np.sqrt(members) * directions, np.eye(rank), None)

    @property
    def mean_log_likelihood(self) -> float:
        return self.expectations.mean_log_likelihood()

    def target(self) -> GaussianTarget:
        """The Gaussian as a target that members are matched to."""
        of, inner = self.aligned, self.expectations.inner
        return GaussianTarget(self.gaussian, of.shapes, of.symmetry, of.own_dtype, inner)

    def project(self, directions: np.ndarray, strength: float) -> None:
        """Project members on directions V [members, rank]: F = strength·Vᵀx/√n, D at its floor."""
        weights = (strength / np.sqrt(len(directions)) * directions.T).astype(self.aligned.dtype)

        def step(block: Block, centred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.full(centred.shape[1], self.floors[block.leaf]), weights @ centred

        self._update(len(weights), step)

    def recentre(self) -> None:
        """Update the mean, and the expectations under it, after members have moved."""
        old = self.gaussian

        def step(block: Block, _: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            at, leaf = block.columns, block.leaf
            return old.variance[leaf][at], old.factors[leaf][:, at]

        self._update(old.rank, step)

    def improve(self) -> None:
        """One step of EM."""
        found = self.expectations
        inverse = np.linalg.inv(found.inner)
        means = found.scores @ inverse
        second = means.T @ means / len(means) + inverse + inverse @ found.own_inner @ inverse
        self._maximise(means, second, inverse)

    def _maximise(self, means: np.ndarray, second: np.ndarray, inverse: np.ndarray | None) -> None:
        """The M-step with the latent means z and A; C⁻¹ adds the members' own variances to B."""
        means = means.astype(self.aligned.dtype)

        def step(block: Block, centred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            cross = (means.T @ centred).astype(np.float64) / len(means)  # B
            if inverse is not None and np.ndim(block.variance):
                old = self.gaussian
                share = block.variance / old.variance[block.leaf][block.columns]
                cross += inverse @ (old.factors[block.leaf][:, block.columns] * share)
            loadings = np.linalg.solve(second, cross)
            left = _variance(centred) + block.variance - np.einsum("rc,rc->c", loadings, cross)
            variance = np.maximum(left, self.floors[block.leaf])
            return variance, loadings.astype(self.aligned.dtype)

        self._update(means.shape[1], step)

    def _update(self, rank: int, step: Step) -> None:
        """Set D and F by `step`, with the best mean and the expectations, in one pass."""
        found = Expectations(len(self.aligned.members), rank)
        mean, variances, factors = {}, {}, {}
        for block in self.aligned.blocks():
            centre, centred = _centred(block)
            variance, loadings = step(block, centred)
            found.add(block, centred, variance, loadings)
            for leaves, values in ((mean, centre), (variances, variance), (factors, loadings)):
                _put(leaves, self.aligned, block, values)
        self.gaussian, self.expectations = Gaussian(mean, variances, factors), found

    def posterior_factors(self) -> dict[str, np.ndarray]:
        """The factors rotated so that F D⁻¹ Fᵀ is diagonal, largest first: the same covariance."""
        rotation = np.linalg.eigh(self.expectations.inner)[1][:, ::-1].T
        return {k: rotation.astype(f.dtype) @ f for k, f in self.gaussian.factors.items()}


def _centred(block: Block) -> tuple[np.ndarray, np.ndarray]:
    centre = block.values.mean(axis=0, dtype=np.float64)
    return centre, block.values - centre.astype(block.values.dtype)


def _variance(centred: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->j", centred, centred, dtype=np.float64) / len(centred)


def _put(
    leaves: dict[str, np.ndarray], aligned: AlignedMembers, block: Block, values: np.ndarray
) -> None:
    """Write the values of a block, [..., coordinates], into its leaf."""
    if block.leaf not in leaves:
        size = int(np.prod(aligned.shapes[block.leaf]))
        leaves[block.leaf] = np.empty((*values.shape[:-1], size), values.dtype)
    leaves[block.leaf][..., block.columns] = values


def _total_variances(
    aligned: AlignedMembers, floor: float
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """diag(S), and the floor of each leaf: a share of its mean variance."""
    total: dict[str, np.ndarray] = {}
    for block in aligned.blocks():
        _put(total, aligned, block, _variance(_centred(block)[1]) + block.variance)
    means = {leaf: float(v.mean()) for leaf, v in total.items() if v.size}
    # A leaf that is the same in all members has no scale of its own: it takes that of the others.
    overall = float(np.mean([m for m in means.values() if m > 0] or [1.0]))
    tiny = float(np.finfo(np.float32).tiny)
    floors = {leaf: max(floor * (means.get(leaf) or overall), tiny) for leaf in total}
    return {leaf: np.maximum(v, floors[leaf]) for leaf, v in total.items()}, floors


def leading(gram: np.ndarray, rank: int) -> np.ndarray:
    """The eigenvectors of the largest eigenvalues, by Lanczos iteration where it pays."""
    if 8 * rank > len(gram):
        return np.linalg.eigh(gram)[1][:, : -rank - 1 : -1]
    start = np.random.default_rng(0).standard_normal(len(gram))
    return eigsh(gram, rank, v0=start)[1][:, ::-1]


def _gram(aligned: AlignedMembers, total: dict[str, np.ndarray]) -> np.ndarray:
    """xxᵀ of the centred members, every coordinate divided by its standard deviation."""
    gram = np.zeros((len(aligned.members),) * 2)
    for block in aligned.blocks():
        _, centred = _centred(block)
        centred /= np.sqrt(total[block.leaf][block.columns]).astype(centred.dtype)
        gram += centred @ centred.T
    return gram
