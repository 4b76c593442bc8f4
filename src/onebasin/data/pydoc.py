"""Characters of the language reference that ships with Python's standard library.

`pydoc_data.topics` holds about half a million characters of it. Its text differs between versions
of Python, so a record of it names its digest.
"""

import hashlib
import platform
from functools import lru_cache

import numpy as np

from onebasin.data.dataset import Dataset, Split

LENGTH = 64  # positions of a sequence
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The characters: line feed and printable ASCII, whatever the version of the text."""
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})
STRETCH, EVERY = 16, 10  # the last of ten stretches of sixteen sequences is for testing


def load_pydoc() -> Dataset:
    """Sequences of 64 characters and, as targets, the character after each of them.

    Topics are joined in the order of their names and cut into sequences. Typographic quotes and
    dashes become plain ones, any other character beyond ASCII a question mark. Every tenth stretch
    of sixteen sequences, 1,024 characters, is for testing; no random numbers are used.
    """
    text = reference()
    codes = {character: i for i, character in enumerate(ALPHABET)}
    numbers = np.array([codes.get(c, codes["?"]) for c in text], np.int32)
    count = (len(numbers) - 1) // LENGTH
    x = numbers[: count * LENGTH].reshape(count, LENGTH)
    y = numbers[1 : count * LENGTH + 1].reshape(count, LENGTH)
    test = _is_test(count)
    train, held_out = Split(x[~test], y[~test]), Split(x[test], y[test])
    return Dataset("pydoc", train, held_out, len(ALPHABET), "embedded", counts())


def counts() -> tuple[int, int]:
    """The numbers of sequences for training and for testing, with this version of Python."""
    count = (len(reference()) - 1) // LENGTH
    test = int(_is_test(count).sum())
    return count - test, test


def version() -> str:
    """The version of Python and a digest of the text, which is another with other versions."""
    digest = hashlib.sha256(reference().encode()).hexdigest()[:16]
    return f"Python {platform.python_version()}, sha256:{digest}"


def _is_test(count: int) -> np.ndarray:
    return np.arange(count) // STRETCH % EVERY == EVERY - 1


@lru_cache(maxsize=1)
def reference() -> str:
    """The text, in plain characters."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return text.translate(PLAIN)
