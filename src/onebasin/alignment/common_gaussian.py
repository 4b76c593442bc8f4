"""Members under one factorised Gaussian: fit it to all, move each to where it is highest, again.

Both steps raise the mean log-density of the members (or, of posteriors, its expectation). Matching
runs in the members' own precision; whether a round is kept is decided in float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onebasin.alignment.members import Match, Members, Sums, match, moved, zeros
from onebasin.alignment.moments import Moments
from onebasin.alignment.objective import Features
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.symmetry import Symmetry

FLOOR = 1e-3  # least variance of the Gaussian, as a share of its leaf's mean variance
ROUNDING = float(np.finfo(np.float32).eps)  # what is apart by less, relatively, is the same

Leaves = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Places:
    """The members and how each lies."""

    members: Members
    symmetry: Symmetry
    indices: list[Indices]

    def central_sums(self, centre: Leaves) -> Sums:
        """Σ (θ − c) and Σ (θ − c)² over the members; of posteriors, expected."""
        first, second = zeros((centre, centre))
        for i, indices in enumerate(self.indices):
            q = self.members[i]
            trees = (q.mean,) if q.std is None else (q.mean, q.std)
            mean, *std = moved(self.symmetry, trees, indices)
            for k, c in centre.items():
                step = mean[k].astype(np.float64) - c
                first[k] += step
                second[k] += step**2
                for s in std:
                    second[k] += s[k].astype(np.float64) ** 2
        return first, second


@dataclass(frozen=True)
class CommonGaussian:
    """The factorised Gaussian of all members as they lie, and their mean log-density.

    Moments are taken around a centre near the mean: the variances of members that lie close
    together would not survive a difference of mean squares.
    """

    centre: Leaves
    floors: Mapping[str, float]
    mean: Leaves
    variance: Leaves
    mean_log_density: float

    @classmethod
    def of(cls, places: Places) -> "CommonGaussian | None":
        """With floors from how the members lie now; None if they do not differ at all."""
        count = len(places.indices)
        origin = {k: np.zeros(m.shape) for k, m in places.members[0].mean.items()}
        centre = {k: v / count for k, v in places.central_sums(origin)[0].items()}
        sums = places.central_sums(centre)
        spread = {k: float(v.mean()) for k, v in _variances(sums, count).items() if v.size}
        # A leaf that is the same in all of them says nothing of its scale.
        differ = {k: s for k, s in spread.items() if s > np.mean(centre[k] ** 2) * ROUNDING**2}
        if not differ:
            return None
        overall = float(np.mean(list(differ.values())))
        floors = {k: FLOOR * differ.get(k, overall) for k in centre}
        return cls._fitted(sums, count, centre, floors)

    def refitted(self, places: Places) -> "CommonGaussian":
        sums = places.central_sums(self.centre)
        return self._fitted(sums, len(places.indices), self.centre, self.floors)

    @classmethod
    def _fitted(
        cls, sums: Sums, count: int, centre: Leaves, floors: Mapping[str, float]
    ) -> "CommonGaussian":
        raw = _variances(sums, count)
        variance = {k: np.maximum(v, floors[k]) for k, v in raw.items()}
        mean = {k: centre[k] + v / count for k, v in sums[0].items()}
        # The mean of (θ − mean)² over the members is their variance, whatever the floor.
        terms = (raw[k] / v + np.log(2 * np.pi * v) for k, v in variance.items())
        return cls(centre, floors, mean, variance, -0.5 * sum(float(np.sum(t)) for t in terms))

    @property
    def target(self) -> Features:
        """log N = ⟨m/v, θ⟩ − ⟨1/2v, θ²⟩ + const."""
        return (
            {k: self.mean[k] / v for k, v in self.variance.items()},
            {k: -0.5 / v for k, v in self.variance.items()},
        )


@dataclass(frozen=True)
class Ended:
    indices: list[Indices]
    trace: list[float]
    """The mean log-density at the start and after every round; empty if members do not differ."""
    converged: bool


def raise_density(
    places: Places, workers: Workers, max_rounds: int, tolerance: float, max_sweeps: int
) -> Ended:
    gaussian = CommonGaussian.of(places)
    if gaussian is None:
        return Ended(places.indices, [], True)
    trace = [gaussian.mean_log_density]
    for number in range(1, max_rounds + 1):
        target = gaussian.target

        def one(i: int, places: Places = places, target: Features = target) -> Match:
            mover = _second_moments(places.members[i])
            target = tuple(
                {k: t[k].astype(f[k].dtype) for k in t} for t, f in zip(target, mover, strict=True)
            )
            lies = places.indices[i]
            return match(places.symmetry, target, mover, lies, forward=False, max_sweeps=max_sweeps)

        found = workers.map(one, range(len(places.indices)), f"round {number} to the Gaussian")
        went = replace(places, indices=[f.indices for f in found])
        refitted = gaussian.refitted(went) if any(f.gain > 0 for f in found) else gaussian
        rise = refitted.mean_log_density - gaussian.mean_log_density
        if not rise > 0:  # nothing moved, or by no more than rounding
            return Ended(places.indices, trace, True)
        places, gaussian = went, refitted
        trace.append(gaussian.mean_log_density)
        if rise <= tolerance * abs(trace[-1]):
            return Ended(places.indices, trace, True)
    return Ended(places.indices, trace, False)


def _second_moments(q: Moments) -> Features:
    squares = {leaf: mean**2 for leaf, mean in q.mean.items()}
    if q.std is not None:
        squares = {leaf: squares[leaf] + std**2 for leaf, std in q.std.items()}
    return q.mean, squares


def _variances(sums: Sums, count: int) -> dict[str, np.ndarray]:
    first, second = sums
    return {k: np.maximum(second[k] / count - (first[k] / count) ** 2, 0.0) for k in first}
