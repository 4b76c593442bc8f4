"""The posteriors (or draws) that are aligned jointly, one at a time as features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onebasin.alignment.descent import Matcher, Orders, Trace
from onebasin.alignment.objective import FeaturePair, Features, Moments, check_alike, moments
from onebasin.alignment.scores import Indices, ScoreTable
from onebasin.posterior.samples import Samples
from onebasin.symmetry import Permutation, Symmetry
from onebasin.symmetry.action import move_tree
from onebasin.trees import first_non_finite, leaves_by_path

Sums = tuple[dict[str, np.ndarray], ...]  # features summed over members, in float64


@dataclass(frozen=True)
class Members:
    """What there is to align: a list of posteriors or params, or the draws of one `Samples`."""

    source: Any
    moments: Sequence[Moments] | None
    draws: Mapping[str, np.ndarray] | None

    @classmethod
    def of(cls, source: Any) -> "Members":
        if isinstance(source, Samples):
            bad = first_non_finite(source)
            if bad:
                raise ValueError(f"the draws hold NaN or infinity in leaf '{bad}'")
            arrays = {k: np.asarray(v) for k, v in leaves_by_path(source.draws).items()}
            return cls(source, None, arrays)
        if not isinstance(source, Sequence) or not source:
            raise ValueError("align_many takes a list of posteriors, or Samples")
        for i, other in enumerate(source):
            try:
                check_alike(other, source[0])
            except ValueError as error:
                raise ValueError(f"posterior {i}: {error}") from None
        return cls(tuple(source), [moments(q) for q in source], None)

    def __len__(self) -> int:
        if self.moments is not None:
            return len(self.moments)
        return self.source.num_draws

    def __getitem__(self, index: int) -> Moments:
        if self.moments is not None:
            return self.moments[index]
        assert self.draws is not None
        return Moments({leaf: draws[index] for leaf, draws in self.draws.items()}, None)


def add(sums: Sums, features: Features, sign: float = 1.0) -> None:
    for total, feature in zip(sums, features, strict=True):
        for leaf in total:
            total[leaf] += feature[leaf] if sign > 0 else -feature[leaf]


def zeros(features: Features) -> Sums:
    return tuple({k: np.zeros(v.shape) for k, v in feature.items()} for feature in features)


def square_norm(features: Features) -> float:
    flat = (v.reshape(-1) for feature in features for v in feature.values())
    return float(sum(np.vdot(v.astype(np.float64), v.astype(np.float64)) for v in flat))


def moved(symmetry: Symmetry, features: Features, indices: Indices) -> Features:
    return tuple(move_tree(dict(f), 0, symmetry.layouts, indices) for f in features)


@dataclass(frozen=True)
class Match:
    """One member against a target: where it should lie, and what that gains over where it lay."""

    indices: Indices
    gain: float


def match(
    symmetry: Symmetry,
    target: Features,
    mover: Features,
    start: Indices,
    *,
    forward: bool,
    max_sweeps: int,
) -> Match:
    """Descend from `start`, or, if that is better, from a pass that starts at the input."""
    problem = FeaturePair(symmetry, target, mover)
    lies = Permutation(start)
    matcher = Matcher(ScoreTable(problem, lies), Trace())
    before = score = matcher.table.total()
    if forward:
        matcher.forward()
        score = matcher.table.total()
        if score <= before:
            matcher, score = Matcher(ScoreTable(problem, lies), Trace()), before
    end = matcher.descend(Orders("forward"), max_sweeps, score)
    if end.score <= before:
        return Match(start, 0.0)
    return Match(dict(matcher.table.indices), end.score - before)
