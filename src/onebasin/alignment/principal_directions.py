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
import scipy.linalg

from onebasin.alignment.aligned_members import AlignedMembers, Chunk

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
    powers = min(POWERS, least // block)
    basis = np.empty((size, powers * block), dtype, order="F")
    for power in range(powers):
        known, new = basis[:, : power * block], basis[:, power * block : (power + 1) * block]
        grown = np.zeros((size, block))
        for chunk in aligned.chunks():
            values = whitened(chunk)
            begun = random[chunk.rows].astype(dtype)
            grown += values.T @ (values @ known[:, -block:] if power else begun)
        new[:] = grown
        del grown
        for _ in range(2 if power else 0):  # once more for what rounding leaves
            new -= known @ (known.T @ new)
        new[:] = _orthonormal(new)
    basis = _orthonormal(basis)
    seen = np.zeros((members, basis.shape[1]))
    for chunk in aligned.chunks():
        seen[chunk.rows] = whitened(chunk) @ basis
    return np.linalg.svd(seen, full_matrices=False)[0][:, :rank]


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """The Q of a QR decomposition, written over the columns.

    NumPy's would make several copies in double precision.
    """
    found = scipy.linalg.qr(columns, overwrite_a=True, mode="economic", check_finite=False)
    return np.asarray(found[0])
