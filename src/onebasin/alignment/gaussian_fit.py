"""A Gaussian with a diagonal plus low-rank covariance, fitted by maximum likelihood in passes.

The model is factor analysis: x = m + Fᵀz + √D ε with z, ε standard normal, F [rank, d], so that
the covariance is Σ = D + FᵀF. With centred members xᵢ, scores uᵢ = F D⁻¹ xᵢ and
C = I + F D⁻¹ Fᵀ (rank × rank), Woodbury's identity and the determinant lemma give

    log N(xᵢ) = −½ (xᵢᵀD⁻¹xᵢ − uᵢᵀC⁻¹uᵢ + log|D| + log|C| + d log 2π),

and no d × d matrix is ever formed. For any Σ the best mean is the members' own. One step of EM
is, with the factors' posterior means zᵢ = C⁻¹uᵢ and A = (1/n) Σ zᵢzᵢᵀ + C⁻¹,

    B = (1/n) Σ zᵢxᵢᵀ,   F ← A⁻¹B,   D ← max(diag(S) − Σ_r F_r B_r, floor),

S the members' covariance. Both are the exact maximisers of the expected complete-data likelihood
row by row (the floor only cuts off the part of a function that falls away from its top), so
the likelihood never falls. With rank 0 one step is the whole fit: D = max(diag(S), floor).

Members that have variances of their own (posteriors) stand for all their draws: S gets their
mean variance V on its diagonal, and what EM averages over gets C⁻¹GC⁻¹ in A, with
G = F D⁻¹VD⁻¹Fᵀ, and C⁻¹FVD⁻¹ in B. At a fixed point diag(Σ) = diag(S) wherever the floor does
not bind: marginal variances are those of the members.

EM starts from the principal directions of the members, every coordinate divided by its
deviation, found through the n × n Gram matrix.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import eigsh

from onebasin.alignment.aligned_members import AlignedMembers, Block
from onebasin.alignment.gaussian_target import Gaussian, GaussianTarget


@dataclass
class Expectations:
    """What a pass under a Gaussian leaves behind: all that its likelihood and EM need."""

    scores: np.ndarray  # uᵢ, [members, rank]
    inner: np.ndarray  # C
    quadratic: np.ndarray  # xᵢᵀD⁻¹xᵢ, [members]
    own_inner: np.ndarray  # G
    own_quadratic: float = 0.0  # tr(D⁻¹V)
    log_det: float = 0.0  # log|D|
    size: int = 0

    @classmethod
    def none(cls, members: int, rank: int) -> "Expectations":
        square = np.zeros((rank, rank))
        return cls(np.zeros((members, rank)), np.eye(rank), np.zeros(members), square)

    def add(self, centred: np.ndarray, own: np.ndarray | float, variance: np.ndarray, factors):
        """Take one block in: members [n, c] less their mean, D [c] and F [rank, c]."""
        deviation = np.sqrt(variance)
        white = centred / deviation.astype(centred.dtype)
        loadings = factors / deviation.astype(factors.dtype)
        self.scores += white @ loadings.T
        self.inner += loadings @ loadings.T
        self.quadratic += np.einsum("ij,ij->i", white, white)
        share = own / variance
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
    """The Gaussian of the members of a aligned, kept up to date as they move."""

    def __init__(self, aligned: AlignedMembers, rank: int, floor: float) -> None:
        self.aligned = aligned
        total, floors = _total_variances(aligned, floor)
        self.floors = floors
        members = len(aligned.members)
        directions = np.zeros((members, 0))
        if rank:
            directions = leading(_gram(aligned, total), rank)
        # With orthonormal directions V as √n·V in place of z, and A = I, a step of EM projects
        # the members on them: F = Vᵀx/√n, and D is what is left of every coordinate's variance.
        self._maximise(np.sqrt(members) * directions, np.eye(rank), None)

    @property
    def mean_log_likelihood(self) -> float:
        return self.expectations.mean_log_likelihood()

    def target(self) -> GaussianTarget:
        """The Gaussian as members are matched to it."""
        aligned = self.aligned
        return GaussianTarget(
            self.gaussian,
            aligned.shapes,
            aligned.symmetry,
            aligned.own_dtype,
            self.expectations.inner,
        )

    def project(self, directions: np.ndarray, strength: float) -> None:
        """Members projected on directions V [members, rank], F = strength·Vᵀx/√n; D its floor."""
        members, rank = directions.shape
        weights = (strength / np.sqrt(members) * directions.T).astype(self.aligned.dtype)
        found = Expectations.none(members, rank)
        factors: dict[str, np.ndarray] = {}
        variances: dict[str, np.ndarray] = {}
        for block in self.aligned.blocks():
            _, centred = _centred(block)
            loadings = weights @ centred
            variance = np.full(loadings.shape[1], self.floors[block.leaf])
            found.add(centred, block.variance, variance, loadings)
            _put(factors, self.aligned, block, loadings)
            _put(variances, self.aligned, block, variance)
        self.gaussian = Gaussian(self.gaussian.mean, variances, factors)
        self.expectations = found

    def recentre(self) -> None:
        """After members moved: the best mean, and the expectations under it."""
        found = Expectations.none(len(self.aligned.members), self.gaussian.rank)
        mean = {}
        for block in self.aligned.blocks():
            centre, centred = _centred(block)
            _put(mean, self.aligned, block, centre)
            variance = self.gaussian.variance[block.leaf][block.columns]
            factors = self.gaussian.factors[block.leaf][:, block.columns]
            found.add(centred, block.variance, variance, factors)
        self.gaussian = Gaussian(mean, self.gaussian.variance, self.gaussian.factors)
        self.expectations = found

    def improve(self) -> None:
        """One step of EM."""
        found = self.expectations
        inverse = np.linalg.inv(found.inner)
        means = found.scores @ inverse
        second = means.T @ means / len(means) + inverse + inverse @ found.own_inner @ inverse
        self._maximise(means, second, inverse)

    def _maximise(self, means: np.ndarray, second: np.ndarray, inverse: np.ndarray | None) -> None:
        """The M-step, and the expectations under its result, in one pass."""
        aligned = self.aligned
        members, rank = means.shape
        means = means.astype(aligned.dtype)
        found = Expectations.none(members, rank)
        mean: dict[str, np.ndarray] = {}
        variances: dict[str, np.ndarray] = {}
        factors: dict[str, np.ndarray] = {}
        for block in aligned.blocks():
            centre, centred = _centred(block)
            cross = (means.T @ centred).astype(np.float64) / members  # B
            if inverse is not None and np.ndim(block.variance):
                old = self.gaussian
                share = block.variance / old.variance[block.leaf][block.columns]
                cross += inverse @ (old.factors[block.leaf][:, block.columns] * share)
            loadings = np.linalg.solve(second, cross)
            left = _variance(centred) + block.variance - np.einsum("rc,rc->c", loadings, cross)
            variance = np.maximum(left, self.floors[block.leaf])
            loadings = loadings.astype(aligned.dtype)
            found.add(centred, block.variance, variance, loadings)
            _put(mean, aligned, block, centre)
            _put(variances, aligned, block, variance)
            _put(factors, aligned, block, loadings)
        self.gaussian = Gaussian(mean, variances, factors)
        self.expectations = found

    def posterior_factors(self) -> dict[str, np.ndarray]:
        """The factors turned so that F D⁻¹ Fᵀ is diagonal, largest first: the same covariance."""
        turn = np.linalg.eigh(self.expectations.inner)[1][:, ::-1].T
        return {k: turn.astype(f.dtype) @ f for k, f in self.gaussian.factors.items()}


def _centred(block: Block) -> tuple[np.ndarray, np.ndarray]:
    centre = block.values.mean(axis=0, dtype=np.float64)
    return centre, block.values - centre.astype(block.values.dtype)


def _variance(centred: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->j", centred, centred, dtype=np.float64) / len(centred)


def _put(
    leaves: dict[str, np.ndarray], aligned: AlignedMembers, block: Block, values: np.ndarray
) -> None:
    """Write a block's values, [..., coordinates], into a leaf made when first needed."""
    if block.leaf not in leaves:
        size = int(np.prod(aligned.shapes[block.leaf]))
        leaves[block.leaf] = np.empty((*values.shape[:-1], size), values.dtype)
    leaves[block.leaf][..., block.columns] = values


def _total_variances(
    aligned: AlignedMembers, floor: float
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """diag(S), and for each leaf the least variance allowed: a share of its mean."""
    total: dict[str, np.ndarray] = {}
    for block in aligned.blocks():
        _put(total, aligned, block, _variance(_centred(block)[1]) + block.variance)
    means = {leaf: float(v.mean()) for leaf, v in total.items() if v.size}
    # A leaf that is the same in all members says nothing of its own scale: it gets the others'.
    overall = float(np.mean([m for m in means.values() if m > 0] or [1.0]))
    tiny = float(np.finfo(np.float32).tiny)
    floors = {leaf: max(floor * (means.get(leaf) or overall), tiny) for leaf in total}
    return {leaf: np.maximum(v, floors[leaf]) for leaf, v in total.items()}, floors


def leading(gram: np.ndarray, rank: int) -> np.ndarray:
    """The eigenvectors of the largest eigenvalues; by Lanczos's method where it pays."""
    if 8 * rank > len(gram):
        return np.linalg.eigh(gram)[1][:, : -rank - 1 : -1]
    start = np.random.default_rng(0).standard_normal(len(gram))
    return eigsh(gram, rank, v0=start)[1][:, ::-1]


def _gram(aligned: AlignedMembers, total: dict[str, np.ndarray]) -> np.ndarray:
    """xxᵀ of the centred members, every coordinate divided by its deviation."""
    gram = np.zeros((len(aligned.members),) * 2)
    for block in aligned.blocks():
        _, centred = _centred(block)
        centred /= np.sqrt(total[block.leaf][block.columns]).astype(centred.dtype)
        gram += centred @ centred.T
    return gram
