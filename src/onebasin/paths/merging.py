"""The mean of many aligned posteriors, with the statistics of their hidden units."""

from collections.abc import Callable, Sequence
from typing import Any

from onebasin.paths.displacement import geodesic
from onebasin.paths.repair import repair
from onebasin.symmetry import Symmetry


def repaired_mean(
    members: Sequence[Any], apply: Callable[..., Any], x: Any, symmetry: Symmetry
) -> Any:
    """The mean of aligned members, whose units have the members' mean statistics.

    One member joins after another: a repaired path from the mean of the first k−1 to the k-th has,
    at 1/k, the mean of the statistics of all k.
    """
    merged = members[0]
    for count, member in enumerate(members[1:], start=2):
        merged = repair(geodesic(merged, member), apply, x, symmetry=symmetry)(1 / count)
    return merged
