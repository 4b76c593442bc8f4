"""The random order of the examples is a uniform permutation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from onebasin.inference.minibatches import shuffled


def orders(count, epochs):
    keys = jax.random.split(jax.random.key(11), epochs)
    one = lambda key: shuffled(jnp.arange(count), count, key=key)
    return np.asarray(jax.jit(jax.vmap(one))(keys))


@pytest.mark.fast
@pytest.mark.parametrize("count", [2, 3, 7, 64, 100, 1797])
def test_every_example_once(count):
    for order in orders(count, 20):
        np.testing.assert_array_equal(np.sort(order), np.arange(count))


def test_every_example_is_equally_likely_at_every_place():
    found = orders(100, 20_000)
    for place in (0, 1, 37, 99):
        counts = np.bincount(found[:, place], minlength=100)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_neighbours_in_the_data_are_not_neighbours_in_the_order():
    found = orders(1000, 2000)
    where = np.argsort(found, axis=1)
    gap = np.abs(where[:, 0] - where[:, 1])
    # The distance of two random places among 1000 is d with probability ∝ 1000 − d.
    expected = 2 * (1000 - np.arange(1, 1000)) / (1000 * 999) * len(gap)
    counts = np.bincount(gap, minlength=1000)[1:]
    tens = lambda v: np.add.reduceat(v, np.arange(0, 999, 50))
    assert stats.chisquare(tens(counts), tens(expected)).pvalue > 1e-4
    # The orders of consecutive epochs are uncorrelated.
    correlation = [np.corrcoef(a, b)[0, 1] for a, b in itertools.pairwise(found)]
    assert abs(np.mean(correlation)) < 4.5 / np.sqrt(1000 * len(correlation))
    assert np.std(correlation) == pytest.approx(1 / np.sqrt(1000), rel=0.1)
    # Within an epoch neighbours are uncorrelated, and so are the parities of place and example.
    ramp = np.arange(1000)
    lag = [np.corrcoef(order[:-1], order[1:])[0, 1] for order in found]
    assert abs(np.mean(lag) + 1 / 1000) < 4.5 / np.sqrt(1000 * len(lag))
    parity = [np.corrcoef(order % 2, ramp % 2)[0, 1] for order in found]
    assert abs(np.mean(parity)) < 4.5 / np.sqrt(1000 * len(parity))
    assert np.std(parity) < 1.3 / np.sqrt(1000)
