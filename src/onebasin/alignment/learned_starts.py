"""Where learning on a path begins: candidates by name, each made when it is judged."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from onebasin.alignment.mixed import check_mixed
from onebasin.alignment.unit_scores import Scores, project
from onebasin.symmetry import Permutation, Symmetry, Transform

Solved = Callable[..., Any]
"""`align` of the two ends, with any objective, starts and key."""


def permutation_starts(
    starts: Sequence[Any],
    symmetry: Symmetry,
    solved: Solved,
    kinds: Sequence[str],
    scores: Callable[[], Mapping[str, Scores]],
    key: jax.Array,
) -> list[tuple[str, Callable[[], Permutation]]]:
    """ "auto" is the identity, w2, and the projection of every kind of scores of units."""
    found: list[tuple[str, Callable[[], Permutation]]] = []
    for number, start in enumerate(starts):
        if isinstance(start, Permutation):
            found.append(("given", lambda start=start: start))
        elif start == "auto":
            found.append(("identity", symmetry.identity))
            found.append(("w2", lambda: solved(objective="w2").permutation))
            for kind in kinds:
                found.append((kind, lambda kind=kind: project(scores()[kind])))
        elif start == "identity":
            found.append(("identity", symmetry.identity))
        elif isinstance(start, str):
            own = jax.random.fold_in(key, number)
            both = ["auto", start] if start == "shaken" else [start]
            found.append(
                (start, lambda both=both, own=own: solved(starts=both, key=own).permutation)
            )
        else:
            found.append((start.name, lambda s=start: solved(objective=s, key=key).permutation))
    return found


def transform_starts(
    starts: Sequence[Any], symmetry: Symmetry, solved: Solved, key: jax.Array
) -> list[tuple[str, Callable[[], Transform]]]:
    """ "auto" is the identity and w2 over the whole symmetry."""
    still = lambda: symmetry.as_transform(symmetry.identity())
    found: list[tuple[str, Callable[[], Transform]]] = []
    for number, start in enumerate(starts):
        if isinstance(start, Permutation | Transform):
            found.append(("given", lambda start=start: symmetry.as_transform(start)))
        elif start == "auto":
            found.append(("identity", still))
            found.append(("w2", lambda: solved(objective="w2").transform))
        elif start == "identity":
            found.append(("identity", still))
        elif start == "shaken":
            raise ValueError(
                "a shaken start is for permutations; with signs, scales or matrices give 'auto', "
                "'identity', 'forward', 'random', a permutation, a transform, or an objective"
            )
        elif isinstance(start, str):
            own = jax.random.fold_in(key, number)
            found.append(
                (start, lambda start=start, own=own: solved(starts=start, key=own).transform)
            )
        else:
            check_mixed(start.name)
            found.append((start.name, lambda s=start: solved(objective=s, key=key).transform))
    return found
