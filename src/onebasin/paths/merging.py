"""The mean of many aligned posteriors, with the statistics of their hidden units."""

from collections.abc import Sequence
from typing import Any

from onebasin.networks import NetworkLike
from onebasin.paths.geodesics import geodesic
from onebasin.paths.repairing import repair
from onebasin.symmetry import Symmetry


def repaired_mean(
    posteriors: Sequence[Any], network: NetworkLike, x: Any, *, symmetry: Symmetry
) -> Any:
    """The mean of aligned members, whose units have the members' mean statistics.

    One member joins after another: a repaired path from the mean of the first k−1 to the k-th has,
    at 1/k, the mean of the statistics of all k.
    """
    merged = posteriors[0]
    for count, member in enumerate(posteriors[1:], start=2):
        merged = repair(geodesic(merged, member), network, x, symmetry=symmetry)(1 / count)
    return merged
