"""Permutations: group laws, number of transpositions, validation."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebasin.symmetry import Permutation, Symmetry, stack, transpositions
from onebasin.symmetry.permutation import compose, inverse, with_transpositions

pytestmark = pytest.mark.fast


def permutations(sizes=(1, 5)):
    return st.tuples(*(st.permutations(range(n)) for n in sizes)).map(
        lambda parts: Permutation({f"g{i}": np.array(p) for i, p in enumerate(parts)})
    )


def identity(sizes=(1, 5)):
    return Permutation({f"g{i}": np.arange(n) for i, n in enumerate(sizes)})


@given(permutations(), permutations(), permutations())
def test_group_laws(p, q, r):
    assert compose(compose(p, q), r) == compose(p, compose(q, r))
    assert compose(p, identity()) == p == compose(identity(), p)
    assert compose(p, inverse(p)) == identity() == compose(inverse(p), p)
    assert inverse(compose(p, q)) == compose(inverse(q), inverse(p))
    assert hash(compose(p, inverse(inverse(q)))) == hash(compose(p, q))


@given(permutations(), permutations())
def test_composition_moves_by_the_second_first(p, q):
    values = np.array([3.0, 1.0, 4.0, 1.5, 9.0])
    in_turn = values[q["g1"]][p["g1"]]
    np.testing.assert_array_equal(values[compose(p, q)["g1"]], in_turn)


def least_swaps(n: int) -> dict[tuple[int, ...], int]:
    """The least number of swaps that give each permutation, by breadth-first search."""
    start = tuple(range(n))
    steps, frontier = {start: 0}, [start]
    while frontier:
        reached = []
        for p in frontier:
            for i, j in itertools.combinations(range(n), 2):
                swapped = list(p)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                if tuple(swapped) not in steps:
                    steps[tuple(swapped)] = steps[p] + 1
                    reached.append(tuple(swapped))
        frontier = reached
    return steps


@pytest.mark.parametrize("n", range(1, 7))
def test_number_of_transpositions_is_the_least_number_of_swaps(n):
    expected = least_swaps(n)
    assert len(expected) == math.factorial(n)
    stacked = Permutation({"g": np.array(list(expected))})
    np.testing.assert_array_equal(transpositions(stacked).total, list(expected.values()))


def count_cycles_by_loops(p: np.ndarray) -> int:
    seen, cycles = set(), 0
    for start in range(len(p)):
        cycles += start not in seen
        while start not in seen:
            seen.add(start)
            start = int(p[start])
    return cycles


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_number_of_transpositions_for_large_groups(n, seed):
    p = np.random.default_rng(seed).permutation(n)
    assert transpositions(Permutation({"g": p})).total == n - count_cycles_by_loops(p)


@given(st.integers(1, 40), st.data())
def test_an_exact_number_of_transpositions(n, data):
    count = data.draw(st.integers(0, n - 1))
    seed = data.draw(st.integers(0, 1000))
    p = with_transpositions(n, count, np.random.default_rng(seed))
    assert transpositions(Permutation({"g": p})).total == count


def test_totals_sum_over_groups_and_stacks_count_each_draw():
    p = Permutation({"a": [1, 0, 2], "b": [1, 2, 0]})
    assert transpositions(p).total == 3
    stacked = stack([p, Permutation({"a": [0, 1, 2], "b": [0, 2, 1]})])
    np.testing.assert_array_equal(transpositions(stacked).total, [3, 1])
    assert stacked.draws == 2
    assert stacked.draw(0) == p


def test_a_stack_composes_with_one_permutation():
    p = Permutation({"a": [[1, 0, 2], [2, 1, 0]]})
    q = Permutation({"a": [1, 2, 0]})
    for i in range(2):
        assert compose(p, q).draw(i) == compose(p.draw(i), q)
        assert compose(q, p).draw(i) == compose(q, p.draw(i))


def test_random_permutations_are_uniform_and_repeatable():
    symmetry = Symmetry.by_hand({"w": jnp.ones((2, 3))}, {"h": [("w", 1)]})
    drawn = [symmetry.random(key=jax.random.key(i)) for i in range(600)]
    assert symmetry.random(key=jax.random.key(5)) == drawn[5]
    counts = np.unique([p["h"] for p in drawn], axis=0, return_counts=True)[1]
    # 600 draws of 6 permutations: 100 ± 9 each; five standard deviations never happen by chance.
    assert len(counts) == 6
    assert np.abs(counts - 100).max() < 46


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 0, 1], "does not hold every index"),
        ([0, 1, 3], "does not hold every index"),
        ([-1, 0, 1], "does not hold every index"),
        ([0.0, 1.0], "integer"),
        (np.zeros((2, 2, 2), int), "shape"),
        (3, "shape"),
    ],
)
def test_invalid_indices_are_refused(values, message):
    with pytest.raises(ValueError, match=message) as error:
        Permutation({"hidden": values})
    assert "hidden" in str(error.value)


def test_permutations_of_other_groups_are_refused():
    symmetry = Symmetry.by_hand({"w": jnp.ones((2, 3))}, {"h": [("w", 1)]})
    with pytest.raises(ValueError, match="'other'"):
        symmetry.act(Permutation({"h": [0, 1, 2], "other": [0]}), {"w": jnp.ones((2, 3))})
    with pytest.raises(ValueError, match="4 units where 3"):
        symmetry.inverse(Permutation({"h": [0, 1, 2, 3]}))
    with pytest.raises(ValueError, match="only one of them"):
        compose(Permutation({"a": [0]}), Permutation({"b": [0]}))
    with pytest.raises(ValueError, match="0 to 2 transpositions"):
        symmetry.random(key=jax.random.key(0), transpositions=3)
    with pytest.raises(ValueError, match="disagree on the number of draws"):
        Permutation({"a": [[0, 1]], "b": [0, 1]})


def test_a_permutation_cannot_be_changed_later():
    values = np.array([1, 0])
    p = Permutation({"h": values})
    values[:] = 0
    assert p["h"].tolist() == [1, 0]
    with pytest.raises(ValueError):
        p["h"][0] = 0
    with pytest.raises(TypeError):
        p.indices["h"] = values  # pyright: ignore[reportIndexIssue]
