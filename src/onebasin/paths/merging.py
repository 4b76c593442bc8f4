"""The mean of many aligned posteriors, with the statistics of their hidden units."""

from collections.abc import Sequence

from numpy.typing import ArrayLike

from onebasin.networks import NetworkLike
from onebasin.paths.geodesics import geodesic
from onebasin.paths.repairing import repair
from onebasin.posterior import PosteriorT
from onebasin.symmetry import Symmetry


def repaired_mean(
    posteriors: Sequence[PosteriorT], network: NetworkLike, x: ArrayLike, *, symmetry: Symmetry
) -> PosteriorT:
    """The mean of aligned members, whose units have the members' mean statistics.

    Members are added one at a time: at t = 1/k, a repaired path from the mean of the first k−1
    to the k-th has the mean of the statistics of all k.
    """
    merged = posteriors[0]
    for count, member in enumerate(posteriors[1:], start=2):
        merged = repair(geodesic(merged, member), network, x, symmetry=symmetry)(1 / count)
    return merged
