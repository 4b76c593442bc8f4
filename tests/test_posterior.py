"""Posteriors: sampling, moments and densities against closed forms."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import block_diag

from onebasin.posterior import (
    Kronecker,
    LowRank,
    LowRankPrecision,
    MeanField,
    Mixture,
    Posterior,
    Samples,
)
from onebasin.posterior.protocol import keep

SHAPES = {"a": (2, 3), "b": (4,)}
KEY = jax.random.key(0)


def tree(seed: int, lead: tuple[int, ...] = ()) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.standard_normal(lead + s)) for k, s in SHAPES.items()}


def positive(seed: int) -> dict[str, jax.Array]:
    return {k: jnp.asarray(0.5 + np.abs(np.asarray(v))) for k, v in tree(seed).items()}


def flat(t: dict, lead: int = 0) -> np.ndarray:
    leaves = [np.asarray(v) for _, v in sorted(t.items())]
    return np.concatenate([v.reshape(*v.shape[:lead], -1) for v in leaves], axis=-1)


def gaussians():
    mean_field = MeanField(tree(0), positive(1))
    low_rank = LowRank(tree(2), positive(3), tree(4, (3,)))
    return mean_field, low_rank


def precise():
    return LowRankPrecision(tree(2), positive(3), tree(4, (3,)))


def factored():
    rng = np.random.default_rng(6)
    orthogonal = lambda n: jnp.asarray(np.linalg.qr(rng.normal(size=(n, n)))[0])
    left, right = {"a": orthogonal(2), "b": orthogonal(1)}, {"a": orthogonal(3), "b": orthogonal(4)}
    return Kronecker(tree(2), positive(3), left, right)


def dense_covariance(q) -> np.ndarray:
    if isinstance(q, Kronecker):
        blocks = [np.kron(q.left[k], q.right[k]) for k in sorted(SHAPES)]
        vectors = block_diag(*blocks)
        return vectors @ np.diag(flat(q.std) ** 2) @ vectors.T
    covariance = np.diag(flat(q.std) ** 2)
    if isinstance(q, LowRank):
        factors = flat(q.factors, 1)
        covariance = covariance + factors.T @ factors
    if isinstance(q, LowRankPrecision):
        factors = flat(q.factors, 1)
        covariance = np.linalg.inv(np.linalg.inv(covariance) + factors.T @ factors)
    return covariance


def dense_log_density(q, theta) -> float:
    covariance = dense_covariance(q)
    return stats.multivariate_normal.logpdf(flat(theta), flat(q.mean), covariance)  # pyright: ignore[reportArgumentType]


@pytest.mark.fast
def test_log_density_against_the_dense_gaussian(x64):
    theta = tree(9)
    for q in (*gaussians(), precise(), factored()):
        expected = dense_log_density(q, theta)
        # Cholesky against SciPy's eigenvalues, both in double precision.
        np.testing.assert_allclose(q.log_prob(theta), expected, rtol=1e-10)


def test_log_density_of_a_mixture(x64):
    parts = gaussians()
    mixture = Mixture(parts, jnp.array([0.25, 0.75]))
    theta = tree(9)
    expected = np.log(
        sum(
            w * np.exp(dense_log_density(q, theta))
            for w, q in zip((0.25, 0.75), parts, strict=True)
        )
    )
    np.testing.assert_allclose(mixture.log_prob(theta), expected, rtol=1e-10)
    nested = Mixture((mixture, mixture), jnp.array([0.5, 0.5]))
    np.testing.assert_allclose(nested.log_prob(theta), expected, rtol=1e-10)


def test_a_component_of_weight_zero_is_ignored(x64):
    mean_field, low_rank = gaussians()
    mixture = Mixture((mean_field, low_rank), jnp.array([1.0, 0.0]))
    theta = tree(9)
    np.testing.assert_allclose(mixture.log_prob(theta), mean_field.log_prob(theta), rtol=1e-12)


def posteriors():
    mean_field, low_rank = gaussians()
    samples = Samples(tree(5, (7,)), jnp.array([0, 0, 0, 0, 1, 1, 1]))
    mixture = Mixture((mean_field, low_rank, samples), jnp.array([0.2, 0.5, 0.3]))
    return [mean_field, low_rank, samples, mixture, precise(), factored()]


@pytest.mark.parametrize("which", range(6))
def test_samples_have_the_moments_they_should(which, x64):
    q = posteriors()[which]
    count = 40_000
    drawn = flat(q.sample(count, key=KEY), 1)
    mean, std = map(flat, q.moments())
    # Five standard errors of the mean, and of the standard deviation (kurtosis up to about 5).
    assert (np.abs(drawn.mean(0) - mean) < 5 * std / np.sqrt(count)).all()
    assert (np.abs(drawn.std(0) - std) < 5 * std / np.sqrt(count)).all()


@pytest.mark.parametrize("make", [lambda: gaussians()[1], precise, factored])
def test_covariance_of_samples(x64, make):
    q = make()
    count = 100_000
    drawn = flat(q.sample(count, key=KEY), 1)
    expected = dense_covariance(q)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    # An entry's standard error is at most √(2/count) of that scale.
    assert (np.abs(np.cov(drawn.T) - expected) < 5 * np.sqrt(2 / count) * scale).all()


@pytest.mark.fast
@pytest.mark.parametrize("which", range(6))
def test_one_key_gives_one_answer_and_common_noise(which):
    q = posteriors()[which]
    one, again = q.sample(5, key=KEY), q.sample(5, key=KEY)
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert all(leaf.shape == (5, *SHAPES[name]) for name, leaf in one.items())
    assert all(leaf.shape == SHAPES[name] for name, leaf in q.sample(key=KEY).items())
    assert not np.array_equal(flat(one, 1), flat(q.sample(5, key=jax.random.key(1)), 1))


def test_the_noise_does_not_depend_on_the_posterior(x64):
    first = MeanField(tree(0), positive(1))
    second = MeanField(tree(2), positive(3))
    noise = [(flat(q.sample(3, key=KEY), 1) - flat(q.mean)) / flat(q.std) for q in (first, second)]
    np.testing.assert_allclose(noise[0], noise[1], rtol=1e-12)


def test_every_draw_is_used_once_before_any_is_used_twice():
    q = Samples(tree(5, (7,)))
    rows = {tuple(row): i for i, row in enumerate(flat(q.draws, 1))}
    picked = [rows[tuple(row)] for row in flat(q.sample(16, key=KEY), 1)]
    assert sorted(picked[:7]) == sorted(picked[7:14]) == list(range(7))
    assert len(set(picked[14:])) == 2


def test_mixtures_sample_components_in_proportion_to_their_weights():
    parts = tuple(
        MeanField({"a": jnp.full(2, float(k))}, {"a": jnp.full(2, 1e-6)}) for k in range(3)
    )
    q = Mixture(parts, jnp.array([0.5, 0.3, 0.2]))
    values = np.asarray(q.sample(100, key=KEY)["a"])[:, 0]
    counts = np.bincount(values.round().astype(int), minlength=3)
    assert (np.abs(counts - [50, 30, 20]) <= 1).all()
    # A single draw follows the mixture: over many keys, the same shares by chance.
    single = np.array([float(q.sample(key=jax.random.key(i))["a"][0]) for i in range(200)])
    shares = np.bincount(single.round().astype(int), minlength=3) / 200
    assert (np.abs(shares - [0.5, 0.3, 0.2]) < 5 * 0.5 / np.sqrt(200)).all()


def test_running_statistics_belong_to_their_draws():
    state = {"mean": jnp.arange(7.0)[:, None] * jnp.ones(2)}
    draws = {"a": jnp.arange(7.0)[:, None] * jnp.ones(3)}
    q = Samples(draws, state=state)
    drawn, states = q.sample(5, key=KEY), q.states(5, key=KEY)
    assert states is not None
    np.testing.assert_array_equal(drawn["a"][:, 0], states["mean"][:, 0])
    one = MeanField({"a": jnp.zeros(3)}, {"a": jnp.ones(3)}, {"mean": jnp.ones(2)})
    repeated = one.states(4, key=KEY)
    assert repeated is not None
    assert repeated["mean"].shape == (4, 2)
    assert MeanField({"a": jnp.zeros(3)}, {"a": jnp.ones(3)}).states(4, key=KEY) is None


@pytest.mark.fast
def test_posteriors_are_pytrees():
    for q in posteriors():
        doubled = jax.tree.map(lambda leaf: leaf, q)
        assert type(doubled) is type(q)
        jitted = jax.jit(lambda q: q.sample(2, key=KEY))(q)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), jitted, q.sample(2, key=KEY)
        )
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), posteriors()[0])
    assert jax.vmap(lambda q: q.sample(key=KEY))(stacked)["a"].shape == (2, 2, 3)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeanField(tree(0), {"a": jnp.ones((2, 3))}), "leaf 'b' is missing"),
        (lambda: MeanField(tree(0), {**tree(1), "a": jnp.ones(3)}), "leaf 'a' has shape"),
        (lambda: LowRank(tree(0), tree(1), tree(2)), "factors"),
        (
            lambda: LowRank(tree(0), tree(1), {**tree(2, (2,)), "b": jnp.ones((3, 4))}),
            "different ranks",
        ),
        (lambda: Samples({"a": jnp.ones((2, 3)), "b": jnp.ones((3, 3))}), "leaf 'b'"),
        (lambda: Samples({"a": jnp.ones((0, 3))}), "no draws; give at least one"),
        (lambda: Samples({"a": jnp.ones((2, 3))}, jnp.zeros(3, int)), "chain"),
        (lambda: Samples({"a": jnp.ones((2, 3))}, state={"m": jnp.ones(3)}), "state leaf 'm'"),
        (lambda: Mixture((), jnp.ones(0)), "at least one"),
        (lambda: Mixture(gaussians(), jnp.ones(3) / 3), "as many weights"),
        (lambda: Mixture(gaussians(), jnp.array([0.5, 0.6])), "sum to 1"),
        (
            lambda: Mixture(
                (gaussians()[0], MeanField({"a": jnp.ones(2)}, {"a": jnp.ones(2)})),
                jnp.array([0.5, 0.5]),
            ),
            "component 1",
        ),
        (lambda: gaussians()[0].sample(0, key=KEY), "at least one"),
        (lambda: MeanField({"w": jnp.ones(2)}, {"w": jnp.array([1.0, 0.0])}), "must be positive"),
        (lambda: MeanField({"w": jnp.ones(2)}, {"w": jnp.array([1.0, -1.0])}), "leaf 'w' holds -1"),
        (lambda: MeanField({"w": jnp.ones(1)}, {"w": jnp.array([jnp.inf])}), "NaN or infinity"),
        (lambda: MeanField({"w": jnp.array([jnp.nan])}, {"w": jnp.ones(1)}), "NaN or infinity"),
        (lambda: MeanField({"w": jnp.arange(2)}, {"w": jnp.ones(2)}), "int32 numbers in leaf 'w'"),
        (lambda: Samples({"w": jnp.ones((2, 1), bool)}), "bool numbers in leaf 'w'"),
        (lambda: Samples({"w": jnp.ones((2, 1)) * 1j}), "complex64 numbers in leaf 'w'"),
        (lambda: Samples({"w": jnp.array([[1.0], [jnp.nan]])}), "a draw has NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_samples_have_no_density():
    with pytest.raises(TypeError, match="compact"):
        Samples(tree(5, (7,))).log_prob(tree(0))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Point:
    """A posterior of a user's own: a point mass, without a density."""

    params: dict[str, jax.Array]

    @property
    def like(self):
        return self.params

    def sample(self, count=None, *, key):
        lead = () if count is None else (count,)
        return jax.tree.map(lambda p: jnp.broadcast_to(p, lead + p.shape), self.params)

    def states(self, count=None, *, key):
        return None

    def moments(self):
        return self.params, jax.tree.map(jnp.zeros_like, self.params)

    def relabel(self, move, move_state=keep):
        return Point(move(self.params, 0))


@pytest.mark.fast
def test_posteriors_follow_the_protocol():
    for q in (*posteriors(), Point(tree(0))):
        assert isinstance(q, Posterior)
    assert not isinstance(tree(0), Posterior)


def test_a_mixture_takes_any_posterior(x64):
    mean_field = gaussians()[0]
    q = Mixture((mean_field, Point(tree(2))), jnp.array([0.25, 0.75]))
    mean, std = q.moments()
    np.testing.assert_allclose(
        flat(mean), 0.25 * flat(mean_field.mean) + 0.75 * flat(tree(2)), rtol=1e-12
    )
    between = 0.25 * 0.75 * (flat(mean_field.mean) - flat(tree(2))) ** 2
    np.testing.assert_allclose(
        flat(std) ** 2, 0.25 * flat(mean_field.std) ** 2 + between, rtol=1e-12
    )
    with pytest.raises(TypeError, match="a component of the Mixture has no density"):
        q.log_prob(tree(0))


@pytest.mark.fast
def test_reprs_are_short():
    assert [repr(q) for q in posteriors()[:3]] == [
        "MeanField(10 parameters)",
        "LowRank(10 parameters, rank 3)",
        "Samples(10 parameters, 7 draws of 2 chains)",
    ]
    assert repr(posteriors()[3]) == f"Mixture({', '.join(map(repr, posteriors()[:3]))})"
    # Under a transformation the chains are unknown.
    seen = []
    jax.jit(lambda q: seen.append(repr(q)))(posteriors()[2])
    assert seen == ["Samples(10 parameters, 7 draws)"]


def test_draws_that_agree_have_the_smallest_standard_deviation():
    draws = Samples({"w": jnp.array([[1.0, 2.0], [3.0, 2.0]])})
    q = draws.as_mean_field()
    np.testing.assert_allclose(q.mean["w"], [2.0, 2.0])
    np.testing.assert_allclose(q.std["w"], [1.0, float(np.finfo(np.float32).tiny)])
