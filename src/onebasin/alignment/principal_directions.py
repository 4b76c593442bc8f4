"""The principal directions of members that are read a few at a time.

With n members of d coordinates as rows of Y, the leading left singular vectors of Y are wanted. The
n × n matrix YYᵀ would take each member with each other one. Instead, a basis Q [d, k·b] of the
block Krylov space

    Yᵀ Ω,  (YᵀY) Yᵀ Ω,  …,  (YᵀY)ᵏ⁻¹ Yᵀ Ω,      Ω [n, b] Gaussian, b a little above the rank,

is made in k passes over the members, and one more gives YQ, whose left singular vectors approximate
those of Y (Musco and Musco 2015). They are exact if b reaches n or d.
"""

from collections.abc import Callable, Mapping

import numpy as np

from onebasin.alignment.aligned_members import AlignedMembers, Chunk
from onebasin.trees import take_entry

OVERSAMPLING = 10
POWERS = 3  # k

Centred = Callable[[Chunk], dict[str, np.ndarray]]


def principal_directions(
    aligned: AlignedMembers, centred: Centred, scale: Mapping[str, np.ndarray], rank: int
) -> np.ndarray:
    """V [members, rank] of the members minus their mean, every coordinate divided by `scale`."""
    members, size, dtype = len(aligned.members), aligned.size, aligned.dtype
    least = min(members, size)
    block = min(rank + OVERSAMPLING, least)
    divisor = np.concatenate([v.astype(dtype) for v in scale.values()])

    def whitened(chunk: Chunk) -> np.ndarray:
        values = np.concatenate(list(centred(chunk).values()), axis=1)
        values /= divisor
        return values

    random = np.random.default_rng(0).standard_normal((members, block))
    begun = np.zeros((size, block))
    for chunk in aligned.chunks():
        begun += whitened(chunk).T @ take_entry(random, chunk.rows).astype(dtype)
    blocks = [_orthonormal(begun.astype(dtype))]
    del begun
    for _ in range(1, min(POWERS, least // block)):
        grown = np.zeros((size, block))
        for chunk in aligned.chunks():
            values = whitened(chunk)
            grown += values.T @ (values @ blocks[-1])
        for _ in range(2):  # once more for what rounding leaves
            for known in blocks:
                grown -= known @ (known.T @ grown)
        blocks.append(_orthonormal(grown.astype(dtype)))
    basis = _orthonormal(np.concatenate(blocks, axis=1))
    blocks.clear()
    seen = np.zeros((members, basis.shape[1]))
    for chunk in aligned.chunks():
        seen[chunk.rows] = whitened(chunk) @ basis
    return np.linalg.svd(seen, full_matrices=False)[0][:, :rank]


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    return np.linalg.qr(columns)[0]
