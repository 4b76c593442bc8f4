"""What alignment reads of a posterior: mean and standard deviation by leaf, as NumPy arrays.

A narrow network has hundreds of small leaves, and reading and checking them takes as long as many
products of its weights. JAX arrays are immutable, so the moments of a posterior are cached while it
holds the same array objects. (After writing to such an array through DLPack, make a new posterior.)
"""

import contextlib
import operator
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from onebasin.posterior import (
    Kronecker,
    LowRank,
    LowRankPrecision,
    MeanField,
    Mixture,
    Posterior,
    Samples,
)
from onebasin.symmetry import Symmetry
from onebasin.trees import PyTree, first_non_finite, leaves_by_path, shapes_by_path

Leaves: TypeAlias = Mapping[str, np.ndarray]
"""One array for each leaf, by key path."""


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of every coordinate, as NumPy arrays by leaf."""

    mean: Leaves
    std: Leaves | None  # None for a point

    def positive_std(self, objective: str, which: str) -> Leaves:
        """The standard deviations, or an error that says where they are not positive."""
        if self.std is None:
            others = "'l2' or 'w2'" if which == "target" else "'l2', 'w2' or 'log-density'"
            raise ValueError(
                f"objective '{objective}' divides by the standard deviations of the {which}, "
                f"which is a single point; use {others}, or give a posterior"
            )
        for leaf, std in self.std.items():
            if not (std > 0).all():
                raise ValueError(
                    f"objective '{objective}' divides by the standard deviations of the {which}, "
                    f"and leaf '{leaf}' has one that is not positive; use 'w2' or 'l2'"
                )
        return self.std

    def std_or_zeros(self) -> Leaves:
        """The standard deviations; zeros for a point."""
        if self.std is None:
            return {leaf: np.zeros_like(mean) for leaf, mean in self.mean.items()}
        return self.std


Alignable: TypeAlias = Posterior | Moments | PyTree
"""A posterior, or a params tree, which counts as a point."""


def moments(posterior: Alignable) -> Moments:
    """Mean and standard deviation by leaf; a params tree and a single draw are points."""
    if isinstance(posterior, Moments):
        return posterior
    if isinstance(posterior, Mixture):
        raise ValueError(
            "a Mixture has no single labelling of its units to align; align its components "
            "with align_many, or align a MeanField made of its moments()"
        )
    if not isinstance(posterior, Posterior):
        return Moments(_arrays(posterior), None)
    if isinstance(posterior, Samples) and posterior.num_draws == 1:
        return Moments(_arrays(posterior.draw(0)), None)
    mean, std = posterior.moments()
    return Moments(_arrays(mean), _arrays(std))


def state_of(posterior: Alignable) -> PyTree | None:
    """The running statistics of a posterior, or None."""
    known = isinstance(posterior, MeanField | LowRank | LowRankPrecision | Kronecker | Samples)
    return posterior.state if known else None


def checked_moments(
    posterior: Alignable, to: Alignable, symmetry: Symmetry | None = None
) -> tuple[Moments, Moments]:
    """The moments of two finite posteriors of one network, that of the symmetry if it is given."""
    mine, theirs = checked_readings(posterior, to, symmetry)
    return mine.moments, theirs.moments


def checked_readings(
    posterior: Alignable, to: Alignable, symmetry: Symmetry | None = None
) -> tuple["Reading", "Reading"]:
    """Two finite posteriors of one network, that of the symmetry if it is given."""
    mine, theirs = read(posterior), read(to)
    shapes = _shapes(mine.moments)
    if shapes != _shapes(theirs.moments):
        _refuse_difference(posterior, to)
    if symmetry is not None and shapes != symmetry.shapes:
        symmetry.check_shapes(_like(posterior))
    for name, side, reading in (("posterior", posterior, mine), ("target", to, theirs)):
        if not reading.finite:
            raise ValueError(f"the {name} holds NaN or infinity in leaf '{first_non_finite(side)}'")
    return mine, theirs


class Reading(NamedTuple):
    """The moments of a posterior, and whether all of it is finite."""

    leaves: list[Any]  # the arrays read: the same objects in the same tree have the same values
    structure: Any
    moments: Moments
    finite: bool
    norms: tuple[float, ...]
    """Σ mean², and Σ std² if there are standard deviations."""


_CACHE: dict[int, tuple[weakref.ref[Any], Reading]] = {}


def read(posterior: Alignable) -> Reading:
    """The moments, and whether they and the running statistics are finite; cached."""
    leaves, structure = jax.tree.flatten(posterior)
    owner, cached = _CACHE.get(id(posterior), (None, None))
    if owner is not None and cached is not None and owner() is posterior:
        same = structure == cached.structure and all(map(operator.is_, leaves, cached.leaves))
        if same and not any(leaf.is_deleted() for leaf in leaves):
            return cached
    found = moments(posterior)
    state = [np.asarray(leaf) for leaf in jax.tree.leaves(state_of(posterior))]
    trees = [found.mean] if found.std is None else [found.mean, found.std]
    norms = tuple(_norm(tree.values()) for tree in trees)
    finite = isfinite(sum(norms) + _norm(state)) or first_non_finite(posterior) is None
    reading = Reading(leaves, structure, found, finite, norms)
    # NumPy arrays are mutable, and params trees cannot be referenced weakly.
    immutable = all(issubclass(kind, jax.Array) for kind in set(map(type, leaves)))
    if immutable and isinstance(posterior, Posterior):
        mark = id(posterior)
        with contextlib.suppress(TypeError):  # a user's posterior without weak references
            _CACHE[mark] = weakref.ref(posterior, lambda _: _CACHE.pop(mark, None)), reading
    return reading


def _norm(leaves: Iterable[np.ndarray]) -> float:
    """Σ a² over arrays; it is not finite if one holds NaN or infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(sum(np.vdot(leaf, leaf) for leaf in leaves))


def _shapes(known: Moments) -> dict[str, tuple[int, ...]]:
    return {leaf: mean.shape for leaf, mean in known.mean.items()}


def _refuse_difference(posterior: Alignable, to: Alignable) -> None:
    shapes, expected = shapes_by_path(_like(posterior)), shapes_by_path(_like(to))
    for leaf in sorted(expected.keys() | shapes.keys()):
        what = (
            f"leaf '{leaf}' has shape {shapes.get(leaf)} where the target has {expected.get(leaf)}"
        )
        if leaf not in shapes or leaf not in expected:
            what = (
                f"{'the target has no' if leaf in shapes else 'only the target has'} leaf '{leaf}'"
            )
        if shapes.get(leaf) != expected.get(leaf):
            remedy = (
                "; put a narrower network into a wider one with embed"
                if leaf in shapes and leaf in expected
                else ""
            )
            raise ValueError(f"these are posteriors of different networks: {what}{remedy}")


def _like(posterior: Alignable) -> PyTree:
    return posterior.like if isinstance(posterior, Posterior) else posterior


def _arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves by path as float32 or float64, without a copy where possible."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    arrays = [a if a.dtype.char in "fd" else a.astype(np.float32) for a in arrays]
    return dict(zip(_leaf_names(structure), arrays, strict=True))


@lru_cache(maxsize=64)
def _leaf_names(structure: Any) -> tuple[str, ...]:
    return tuple(leaves_by_path(jax.tree.unflatten(structure, range(structure.num_leaves))))
