"""The fast normals are normal; steps, leaves and neighbours are unrelated.

The keys are fixed, so the outcome is fixed. A fair generator passes the bounds (4 to 5 standard
errors, or p-values above 10⁻⁴) almost certainly.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from onebasin.inference.noise import _keyed_bits, fast_normal, fast_normal_like

COUNT = 1_000_000
KEYS = jax.random.split(jax.random.key(7), 6)


@pytest.fixture(scope="module")
def streams():
    draw = jax.jit(lambda key: fast_normal(key, (COUNT,)))
    return np.stack([np.asarray(draw(key), np.float64) for key in KEYS])


@pytest.mark.fast
def test_moments(streams):
    n = streams.size
    assert abs(streams.mean()) < 4 / np.sqrt(n)
    assert abs(streams.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs(stats.skew(streams.ravel())) < 4 * np.sqrt(6 / n)
    assert abs(stats.kurtosis(streams.ravel())) < 4 * np.sqrt(24 / n)


def test_distribution(streams):
    for stream in streams:
        assert stats.kstest(stream[::5], "norm").pvalue > 1e-4
    # Chi-square over 1000 equally likely cells, all streams together.
    counts, _ = np.histogram(stats.norm.cdf(streams), bins=1000, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("bound", [3.0, 4.0, 4.5])
def test_tails(streams, bound):
    expected = 2 * stats.norm.sf(bound) * streams.size
    assert abs((np.abs(streams) > bound).sum() - expected) < 4 * np.sqrt(expected)


def test_streams_of_different_keys_are_unrelated(streams):
    correlation = np.corrcoef(streams) - np.eye(len(streams))
    squares = np.corrcoef(streams**2) - np.eye(len(streams))
    assert np.abs(correlation).max() < 4.5 / np.sqrt(COUNT)
    assert np.abs(squares).max() < 4.5 / np.sqrt(COUNT)


def test_consecutive_steps_are_unrelated():
    # As in a fit: the keys of consecutive steps, and the leaves of one step.
    base = jax.random.key(3)
    tree = {"a": jnp.zeros(50_000), "b": jnp.zeros((250, 200))}
    draw = jax.jit(lambda t: fast_normal_like(tree, key=jax.random.fold_in(base, t)))
    rows = []
    for t in range(20):
        noise = draw(t)
        rows += [np.ravel(noise["a"]), np.ravel(noise["b"])]
    correlation = np.corrcoef(np.array(rows, np.float64)) - np.eye(len(rows))
    # The largest of 780 correlations is near 3.2 standard errors.
    assert np.abs(correlation).max() < 5 / np.sqrt(50_000)
    assert len(np.unique(np.array(rows)[:, 0])) == len(rows)


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 28, 512, 784, 4096])
def test_neighbours_are_unrelated(streams, lag):
    for power in (1, 2):
        stream = streams[0] ** power
        r = np.corrcoef(stream[:-lag], stream[lag:])[0, 1]
        assert abs(r) < 4.5 / np.sqrt(COUNT)


def test_keys_that_differ_in_one_bit_give_unrelated_bits():
    data = jax.random.key_data(KEYS[0])
    plain = np.unpackbits(np.asarray(_keyed_bits(KEYS[0], 4096)).view(np.uint8))
    for word in range(2):
        for bit in range(0, 32, 5):
            flipped = data.at[word].set(data[word] ^ jnp.uint32(1 << bit))
            other = _keyed_bits(jax.random.wrap_key_data(flipped), 4096)
            changed = plain != np.unpackbits(np.asarray(other).view(np.uint8))
            assert abs(changed.mean() - 0.5) < 5 * 0.5 / np.sqrt(changed.size)


def test_every_bit_is_fair_and_pairs_of_bits_are_independent():
    bits = np.asarray(_keyed_bits(KEYS[1], 100_000))
    columns = ((bits[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float64)
    assert np.abs(columns.mean(0) - 0.5).max() < 4.5 * 0.5 / np.sqrt(len(columns))
    correlation = np.corrcoef(columns.T) - np.eye(32)
    assert np.abs(correlation).max() < 4.8 / np.sqrt(len(columns))


def test_sums_of_squares_follow_chi_square(streams):
    # A layer forms many such sums of the noise; they are sensitive to hidden structure.
    sums = (streams.reshape(-1, 500) ** 2).sum(1)
    assert stats.kstest(sums, stats.chi2(500).cdf).pvalue > 1e-4
    walks = streams.reshape(-1, 500).sum(1) / np.sqrt(500)
    assert stats.kstest(walks, "norm").pvalue > 1e-4


@pytest.mark.usefixtures("x64")
def test_dtypes_and_vmap():
    assert fast_normal(KEYS[0], (3,), jnp.float64).dtype == jnp.float64
    assert fast_normal(KEYS[0], (3,), jnp.bfloat16).dtype == jnp.bfloat16
    together = jax.vmap(lambda key: fast_normal(key, (5, 2)))(KEYS)
    for key, noise in zip(KEYS, together, strict=True):
        np.testing.assert_array_equal(noise, fast_normal(key, (5, 2)))
