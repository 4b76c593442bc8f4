"""Checksums notice every change of one word, words that change places, and other lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebasin.checksums import BLOCK_BYTES, COLUMNS, checksum

WORDS = BLOCK_BYTES // 8
ARRAY = np.random.default_rng(0).integers(0, 2**63, 2 * WORDS + 5, dtype=np.uint64)
KNOWN = checksum(ARRAY)


@given(st.integers(0, 8 * len(ARRAY) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_noticed(byte, bit):
    changed = ARRAY.copy()
    changed.view(np.uint8)[byte] ^= 1 << bit
    assert checksum(changed) != KNOWN


@pytest.mark.parametrize(("a", "b"), [(0, 1), (3, 3 + COLUMNS), (7, WORDS + 7), (2, WORDS - 1)])
def test_words_that_change_places_are_noticed(a, b):
    """In one row, in one column, at the same place of two blocks, and anywhere."""
    changed = ARRAY.copy()
    changed[[a, b]] = changed[[b, a]]
    assert checksum(changed) != KNOWN


def test_the_length_counts():
    zeros = np.zeros(WORDS, np.uint64)
    assert len({checksum(zeros[:n]) for n in (0, 1, WORDS - 1, WORDS)}) == 4


def test_layout_and_type_do_not_count():
    matrix = ARRAY[:6].reshape(2, 3)
    assert checksum(matrix) == checksum(ARRAY[:6].view(np.float64))
    assert checksum(np.asfortranarray(matrix)) == checksum(matrix)
