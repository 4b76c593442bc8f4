"""The posteriors, or draws, that are aligned jointly, and the match of one of them to a target."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from onebasin.alignment.descent import Matcher, Orders, Trace
from onebasin.alignment.moments import Alignable, Leaves, Moments, checked_moments
from onebasin.alignment.objective import FeaturePair, Features
from onebasin.alignment.scores import Indices, ScoreTable
from onebasin.mapped import InFile, by_reference, map_of, release
from onebasin.posterior import MeanField, Posterior, Samples
from onebasin.symmetry import Permutation, Symmetry
from onebasin.symmetry.action import move_tree
from onebasin.trees import (
    PyTree,
    add_axis,
    first_difference,
    first_non_finite,
    leaves_by_path,
    shapes_by_path,
    take_entry,
)

MAPPED_BYTES = 1 << 28  # of mapped draws that stay in memory


class Reading:
    """Gives back the pages of mapped draws once many have been read."""

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        self.mapped = [array for array in arrays if map_of(array) is not None]
        self.bytes = 0

    def note(self, bytes_read: int) -> None:
        self.bytes += bytes_read
        if self.mapped and self.bytes > MAPPED_BYTES:
            self.bytes = 0
            for array in self.mapped:
                release(array)


@dataclass(frozen=True)
class Members:
    """What is aligned jointly: posteriors or params, or all draws of one or more `Samples`.

    Draws are read in place, from memory or from a mapped file.
    """

    sources: tuple[Any, ...]
    """The posteriors, or the `Samples`, as given."""
    moments: Sequence[Moments] | None
    draws: Mapping[str, Sequence[np.ndarray]] | None
    """For each leaf the draws of each `Samples`, [draws, …]."""
    scales: Mapping[str, Sequence[tuple[int, np.ndarray]]] = field(default_factory=dict)
    """For each leaf the axes that are scaled on reading, with factors [members, axis size]."""

    @classmethod
    def of(cls, source: Samples | Sequence[Alignable]) -> "Members":
        """The posteriors of a list, or the draws of one `Samples`."""
        if isinstance(source, Samples):
            return cls.of_draws([source])
        if not isinstance(source, Sequence) or not source:
            raise ValueError("align_many takes a list of posteriors, or Samples")
        known = []
        for i, posterior in enumerate(source):
            try:
                known.append(checked_moments(posterior, source[0])[0])
            except ValueError as error:
                raise ValueError(f"posterior {i}: {error}") from None
        return cls(tuple(source), known, None)

    @classmethod
    def of_draws(cls, parts: Sequence[Samples]) -> "Members":
        """All draws of several `Samples`, in order."""
        for i, part in enumerate(parts):
            difference = first_difference(shapes_by_path(parts[0].like), shapes_by_path(part.like))
            if difference:
                raise ValueError(f"Samples {i} are of another network: {difference}")
            bad = first_non_finite(part)
            if bad:
                raise ValueError(
                    f"the draws hold NaN or infinity in leaf '{bad}'; drop those draws"
                )
        leaves = [leaves_by_path(part.draws) for part in parts]
        draws = {leaf: [_as_float(part[leaf]) for part in leaves] for leaf in leaves[0]}
        return cls(tuple(parts), None, draws)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to read members; it maps the files of draws itself."""
        draws = self.draws and {
            k: [by_reference(part) for part in v] for k, v in self.draws.items()
        }
        return {"sources": (), "moments": self.moments, "draws": draws, "scales": self.scales}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["draws"] is not None:
            state["draws"] = {
                leaf: [part.opened() if isinstance(part, InFile) else part for part in parts]
                for leaf, parts in state["draws"].items()
            }
        self.__dict__.update(state)

    @cached_property
    def reading(self) -> Reading:
        """What is read of draws in files."""
        return Reading(part for parts in (self.draws or {}).values() for part in parts)

    @property
    def has_points(self) -> bool:
        """Whether any member is a point, without standard deviations."""
        return self.moments is None or any(q.std is None for q in self.moments)

    def __len__(self) -> int:
        if self.moments is not None:
            return len(self.moments)
        assert self.draws is not None
        return sum(map(len, next(iter(self.draws.values()))))

    def __getitem__(self, index: int) -> Moments:
        if self.moments is not None:
            q = self.moments[index]
            std = None if q.std is None else self._scaled(q.std, index)
            return replace(q, mean=self._scaled(q.mean, index), std=std)
        assert self.draws is not None
        draw = {leaf: nth_draw(parts, index) for leaf, parts in self.draws.items()}
        self.reading.note(sum(array.nbytes for array in draw.values()))
        return Moments(self._scaled(draw, index), None)

    @property
    def like(self) -> PyTree:
        """A tree with the structure of one params tree."""
        first = self.sources[0]
        return first.like if isinstance(first, Posterior) else first

    def tree(self, leaves: Mapping[str, Any]) -> PyTree:
        """Arrays by leaf, in the order of the leaves, in the containers of the members' params."""
        return jax.tree.unflatten(jax.tree.structure(self.like), list(leaves.values()))

    def posterior(self, index: int) -> MeanField | Samples:
        """One member as a posterior of its own, scaled."""
        q = self[index]
        mean = self.tree(q.mean)
        if q.std is not None:
            return MeanField(mean, self.tree(q.std))
        state = None
        for part in self.sources:
            if not isinstance(part, Samples):
                break
            if index < part.num_draws:
                state = take_entry(part.state, slice(index, index + 1))
                break
            index -= part.num_draws
        return Samples(add_axis(mean), state=state)

    def point(self, index: int) -> tuple[PyTree, PyTree | None]:
        """The params of a member (the mean of a posterior), and its running statistics."""
        q = self.posterior(index)
        if isinstance(q, Samples):
            return q.draw(0), take_entry(q.state, 0)
        return q.mean, None

    def _scaled(self, tree: Leaves, index: int) -> Leaves:
        if not self.scales:
            return tree
        return {k: _times(leaf, self.scales.get(k, ()), index) for k, leaf in tree.items()}


def nth_draw(parts: Sequence[np.ndarray], index: int) -> np.ndarray:
    """Draw `index`, counted through all parts."""
    for part in parts:
        if index < len(part):
            return part[index]
        index -= len(part)
    raise IndexError(f"there are only {sum(map(len, parts))} draws")


def _times(array: np.ndarray, factors: Sequence[tuple[int, np.ndarray]], index: int) -> np.ndarray:
    """An array of member `index` times its factors along each axis."""
    for axis, factor in factors:
        shape = [1] * array.ndim
        shape[axis] = -1
        array = array * factor[index].astype(array.dtype).reshape(shape)
    return array


def _as_float(draws: Any) -> np.ndarray:
    """Draws in single or double precision, not copied if they are already."""
    array = np.asarray(draws)
    wide = array.dtype if array.dtype in (np.float32, np.float64) else np.float32
    return array.astype(wide, copy=False)


def moved(symmetry: Symmetry, features: Features, indices: Indices) -> Features:
    return tuple(move_tree(dict(f), 0, symmetry.layouts, indices) for f in features)


class Match(NamedTuple):
    """The permutation found for one member, and its gain in score over the start."""

    indices: Indices
    gain: float


def match(pair: FeaturePair, start: Indices, *, forward: bool, max_sweeps: int) -> Match:
    """Descend from `start`, or from a forward pass if that is asked for and scores higher."""
    matcher = Matcher(ScoreTable(pair, Permutation(start)), Trace())
    before = score = matcher.table.total()
    if forward:
        matcher.forward()
        score = matcher.table.total()
        if score <= before:
            matcher, score = Matcher(ScoreTable(pair, Permutation(start)), Trace()), before
    end = matcher.descend(Orders("forward"), max_sweeps, score)
    if end.score <= before:
        return Match(start, 0.0)
    return Match(dict(matcher.table.indices), end.score - before)
