"""Mean and standard deviation of draws in host memory or in a file, in one pass."""

from typing import Any

import numpy as np

from onebasin.trees import blocks


def draw_moments(draws: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (with divisor n) over the first axis, in the draws' precision.

    Draws are read once, a block at a time, and summed in double precision. Two sets of n and k
    draws with means a and b and sums of squared deviations A and B have together (Chan et al.,
    1983)

        mean = a + (b − a) k / (n + k),      sum = A + B + (b − a)² nk / (n + k).
    """
    count, shape = 0, tuple(draws.shape[1:])
    mean, squares = np.zeros(shape), np.zeros(shape)
    for block in blocks(draws, whole_rows=True):
        values = block.astype(np.float64)
        more, own = len(values), values.mean(axis=0)
        values -= own
        shift, total = own - mean, count + more
        mean += shift * (more / total)
        squares += np.einsum("i...,i...->...", values, values) + shift**2 * (count * more / total)
        count = total
    return mean.astype(draws.dtype), np.sqrt(squares / count).astype(draws.dtype)
