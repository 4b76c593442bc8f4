"""The fitted Gaussian: closed forms, dense references, EM that never decreases, streaming."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from alignment_cases import gaussian, mlp_shapes, mlp_symmetry, random_like
from compact_cases import covariance, draws_of, flat, permuted
from onebasin.alignment import aligned_members as aligned_module
from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_fit import GaussianFit
from onebasin.alignment.members import Members
from onebasin.compaction import compact
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.trees import stack_trees

SHAPES = mlp_shapes((4, 3), inputs=2, outputs=2)


def fit_of(samples, rank, floor=1e-3, indices=None):
    symmetry = mlp_symmetry(samples.like)
    identity = [dict(symmetry.identity().indices) for _ in range(samples.num_draws)]
    return GaussianFit(
        AlignedMembers(Members.of(samples), symmetry, indices or identity), rank, floor
    )


@pytest.mark.fast
def test_a_diagonal_fit_has_the_draws_own_moments(x64):
    samples = draws_of(12, SHAPES)
    found = compact(samples, symmetry=mlp_symmetry(samples.like), rebase="none", floor=0)
    assert isinstance(found.posterior, MeanField)
    mean, std = samples.moments()
    np.testing.assert_allclose(flat(found.posterior.mean), flat(mean), rtol=1e-12)
    np.testing.assert_allclose(flat(found.posterior.std), flat(std), rtol=1e-10)
    density = np.mean([found.posterior.log_prob(samples.draw(i)) for i in range(12)])
    assert found.log_likelihood == pytest.approx(density, rel=1e-12)


@pytest.mark.parametrize("rank", [0, 3])
def test_the_likelihood_is_that_of_a_dense_normal(x64, rank):
    samples = draws_of(9, SHAPES)
    found = compact(samples, symmetry=mlp_symmetry(samples.like), rank=rank, rebase="none")
    q = found.posterior
    dense = multivariate_normal(flat(q.mean), covariance(q))  # pyright: ignore[reportArgumentType]
    x = flat(samples.draws, 1)
    assert found.log_likelihood == pytest.approx(dense.logpdf(x).mean(), rel=1e-9)
    ours = [float(q.log_prob(samples.draw(i))) for i in range(9)]
    assert np.mean(ours) == pytest.approx(found.log_likelihood, rel=1e-9)


def test_em_never_decreases_and_ends_at_a_stationary_point(x64):
    """At the end the gradient of a dense likelihood vanishes, and marginal variances match."""
    rank = 4
    samples = draws_of(60, SHAPES)
    fit = fit_of(samples, rank, floor=0.05)
    trace = [fit.mean_log_likelihood]
    for _ in range(500):
        fit.improve()
        trace.append(fit.mean_log_likelihood)
    assert np.diff(trace).min() >= -1e-12 * abs(trace[-1])
    assert trace[-1] > trace[0] + 0.01
    x = flat(samples.draws, 1)
    x = x - x.mean(0)
    variance = np.concatenate([fit.gaussian.variance[k] for k in fit.aligned.shapes])
    factors = np.concatenate([fit.gaussian.factors[k] for k in fit.aligned.shapes], axis=1)
    floors = np.concatenate(
        [np.full(fit.gaussian.variance[k].shape, fit.floors[k]) for k in fit.aligned.shapes]
    )
    sigma, sample = np.diag(variance) + factors.T @ factors, x.T @ x / 60
    inverse = np.linalg.inv(sigma)
    gradient = inverse @ (sample - sigma) @ inverse  # 2 dℓ/dΣ
    free = variance > 1.01 * floors
    # EM converges slowly; what remains is far below the initial gradient.
    assert np.abs(gradient @ factors.T).max() < 1e-3
    assert np.abs(np.diag(gradient)[free]).max() < 1e-3
    assert (np.diag(gradient)[~free] < 1e-3).all()
    np.testing.assert_allclose(np.diag(sigma)[free], np.diag(sample)[free], rtol=1e-3)


def test_a_planted_factor_model_is_recovered(x64):
    """600 draws of a rank-2 Gaussian: mean, std and covariance within sampling error."""
    truth = LowRank(
        random_like(SHAPES, 0),
        jax.tree.map(lambda a: 0.3 + 0.2 * jnp.abs(a), random_like(SHAPES, 1)),
        stack_trees([random_like(SHAPES, 2), random_like(SHAPES, 3)]),
    )
    count = 600
    samples = Samples(truth.sample(count, key=jax.random.key(0)))
    q = compact(samples, symmetry=mlp_symmetry(samples.like), rank=2, rebase="none").posterior
    sigma, found = covariance(truth), covariance(q)
    std = np.sqrt(np.diag(sigma))
    # Standard errors: σ/√n of a mean, about √2 σ²/√n at most of an entry of a covariance.
    error = 4.5 / np.sqrt(count)
    assert (np.abs(flat(q.mean) - flat(truth.mean)) < error * std).all()
    assert (np.abs(found - sigma) < np.sqrt(2) * error * np.outer(std, std)).all()
    np.testing.assert_allclose(flat(q.std), flat(truth.std), rtol=0.15)


def test_the_chunk_size_does_not_matter(x64, monkeypatch):
    samples = draws_of(11, SHAPES)
    symmetry = mlp_symmetry(samples.like)
    mixed, _ = permuted(symmetry, samples)
    whole = compact(mixed, symmetry=symmetry, rank=3)
    size = sum(np.size(leaf[0]) for leaf in jax.tree.leaves(samples.draws))
    monkeypatch.setattr(aligned_module, "CHUNK_BYTES", 8 * size * 3)
    small = compact(mixed, symmetry=symmetry, rank=3)
    assert small.permutations == whole.permutations
    np.testing.assert_allclose(covariance(small.posterior), covariance(whole.posterior), atol=1e-9)


def test_draws_from_a_file_and_in_parts_give_the_same_posterior(tmp_path, x64):
    samples = draws_of(10, SHAPES)
    symmetry = mlp_symmetry(samples.like)
    mapped = []
    for i, leaf in enumerate(jax.tree.leaves(samples.draws)):
        np.save(tmp_path / f"{i}.npy", np.asarray(leaf))
        mapped.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    structure = jax.tree.structure(samples.draws)
    from_file = Samples(jax.tree.unflatten(structure, mapped), np.arange(10))
    parts = [
        Samples(jax.tree.map(lambda leaf, at=at: leaf[at], samples.draws))
        for at in (slice(0, 3), slice(3, 10))
    ]
    whole, *others = (compact(s, symmetry=symmetry, rank=2) for s in (samples, from_file, parts))
    for other in others:
        assert other.permutations == whole.permutations
        np.testing.assert_array_equal(flat(other.posterior.mean), flat(whole.posterior.mean))
        np.testing.assert_array_equal(flat(other.posterior.std), flat(whole.posterior.std))
        assert other.trace == whole.trace
        np.testing.assert_array_equal(flat(other.samples.draws, 1), flat(whole.samples.draws, 1))


@pytest.mark.fast
def test_posteriors_are_moment_matched(x64):
    """Mean of means; mean of variances plus variance of means."""
    members = [gaussian(SHAPES, seed) for seed in range(5)]
    symmetry = mlp_symmetry(members[0].mean)
    q = compact(members, symmetry=symmetry, rebase="none", floor=0).posterior
    means = np.stack([flat(m.mean) for m in members])
    stds = np.stack([flat(m.std) for m in members])
    np.testing.assert_allclose(flat(q.mean), means.mean(0), rtol=1e-12)
    np.testing.assert_allclose(flat(q.std) ** 2, (stds**2).mean(0) + means.var(0), rtol=1e-12)


def test_posteriors_represent_all_their_draws(x64):
    """Moments in, or many draws of each member: the same Gaussian, and the same likelihood."""
    means = [random_like(SHAPES, seed) for seed in range(4)]
    members = [
        MeanField(m, jax.tree.map(lambda a: 0.2 + 0.1 * jnp.abs(a), random_like(SHAPES, 50 + i)))
        for i, m in enumerate(means)
    ]
    symmetry = mlp_symmetry(means[0])
    found = compact(members, symmetry=symmetry, rank=2, rebase="none")
    many = jax.tree.map(
        lambda *leaves: jnp.concatenate(leaves),
        *(m.sample(300, key=jax.random.key(i)) for i, m in enumerate(members)),
    )
    by_draws = compact(Samples(many), symmetry=symmetry, rank=2, rebase="none")
    std = np.sqrt(np.diag(covariance(found.posterior)))
    error = 5 / np.sqrt(300)  # each member's mean is known to 0.4/√300
    difference = covariance(found.posterior) - covariance(by_draws.posterior)
    assert (np.abs(difference) < error * np.outer(std, std)).all()
    assert found.log_likelihood == pytest.approx(by_draws.log_likelihood, rel=0.01)
    means = np.stack([flat(m.mean) for m in members])
    total = np.mean([flat(m.std) ** 2 for m in members], axis=0) + means.var(0)
    np.testing.assert_allclose(np.diag(covariance(found.posterior)), total, rtol=1e-2)
