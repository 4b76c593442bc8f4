"""What alignment reads of a posterior: mean and deviation of every coordinate, as NumPy arrays.

A narrow network has hundreds of small leaves, and reading and checking them takes as long as many
products of its weights. JAX's arrays do not change, so what was read of a posterior is kept for as
long as it lives and its leaves are the very same objects: the target of many alignments is read
once. (Who writes into the memory of a JAX array, as DLPack allows, has to make a new posterior.)
"""

import contextlib
import operator
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from onebasin.posterior import Mixture, Posterior, Samples
from onebasin.symmetry import Symmetry
from onebasin.trees import PyTree, first_non_finite, leaves_by_path, shapes_by_path


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of every coordinate, as NumPy arrays by leaf."""

    mean: Mapping[str, np.ndarray]
    std: Mapping[str, np.ndarray] | None  # None for a single point

    def positive_std(self, objective: str, which: str) -> Mapping[str, np.ndarray]:
        """The deviations, all positive, or an error that says where they are missing."""
        if self.std is None:
            others = "'l2' or 'w2'" if which == "target" else "'l2', 'w2' or 'log-density'"
            raise ValueError(
                f"objective '{objective}' divides by the deviations of the {which}, which is a "
                f"single point; use {others}, or give a posterior"
            )
        for leaf, std in self.std.items():
            if not (std > 0).all():
                raise ValueError(
                    f"objective '{objective}' divides by the deviations of the {which}, and leaf "
                    f"'{leaf}' has one that is not positive; use 'w2' or 'l2'"
                )
        return self.std

    def std_or_zeros(self) -> Mapping[str, np.ndarray]:
        """The deviations, zero for a single point."""
        if self.std is None:
            return {leaf: np.zeros_like(mean) for leaf, mean in self.mean.items()}
        return self.std


Alignable: TypeAlias = Posterior | Moments | PyTree
"""A posterior, or a params tree, which counts as a point."""


def moments(posterior: Alignable) -> Moments:
    """Mean and deviation by leaf; a params tree is a point, and so is a single draw."""
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


def check_alike(q: Any, to: Any) -> None:
    """Refuse two posteriors over different params, or with NaNs, naming the leaf."""
    _check_shapes(q, to)
    for name, posterior in (("posterior", q), ("target", to)):
        _check_finite(name, posterior, jax.tree.leaves(posterior))


def alike_moments(q: Any, to: Any, symmetry: Symmetry) -> tuple[Moments, Moments]:
    """The moments of two posteriors that pass `check_alike`, over the params of the symmetry."""
    mine, theirs = read(q), read(to)
    shapes = _sizes(mine.moments)
    if shapes != _sizes(theirs.moments):
        _check_shapes(q, to)
    if shapes != symmetry.shapes:
        symmetry.check_shapes(_like(q))
    for name, posterior, reading in (("posterior", q, mine), ("target", to, theirs)):
        if not reading.finite:
            _refuse(name, first_non_finite(posterior))
    return mine.moments, theirs.moments


class Reading(NamedTuple):
    """The moments of a posterior, and whether all of it is finite."""

    leaves: list[Any]  # what was read; the same objects in the same tree mean the same values
    structure: Any
    moments: Moments
    finite: bool


_KEPT: dict[int, tuple[weakref.ref[Any], Reading]] = {}


def read(posterior: Any) -> Reading:
    """The moments and whether they, and the running statistics, hold no NaN and no infinity."""
    leaves, structure = jax.tree.flatten(posterior)
    owner, kept = _KEPT.get(id(posterior), (None, None))
    if owner is not None and kept is not None and owner() is posterior:
        same = structure == kept.structure and all(map(operator.is_, leaves, kept.leaves))
        if same and not any(leaf.is_deleted() for leaf in leaves):
            return kept
    found = moments(posterior)
    state = [np.asarray(leaf) for leaf in jax.tree.leaves(getattr(posterior, "state", None))]
    means, stds = found.mean.values(), (found.std or found.mean).values()
    # Products of means and deviations show what is wrong with either, at half the price of squares.
    looks_good = _all_finite([*means, *state], [*stds, *state])
    finite = looks_good or first_non_finite(posterior) is None
    reading = Reading(leaves, structure, found, finite)
    # NumPy arrays may change where they lie, and trees of params cannot be followed.
    lasting = all(issubclass(kind, jax.Array) for kind in set(map(type, leaves)))
    if lasting and isinstance(posterior, Posterior):
        mark = id(posterior)
        with contextlib.suppress(TypeError):  # of a kind that cannot be followed either
            _KEPT[mark] = weakref.ref(posterior, lambda _: _KEPT.pop(mark, None)), reading
    return reading


def _check_shapes(q: Any, to: Any) -> None:
    if _shapes(q) != _shapes(to):
        _name_the_difference(shapes_by_path(_like(q)), shapes_by_path(_like(to)))


def _check_finite(name: str, posterior: Any, leaves: list[Any]) -> None:
    # Sums of squares show whether anything may be wrong; what it is, is looked for only then.
    bad = None if _all_finite(leaves, leaves) else first_non_finite(posterior)
    if bad:
        _refuse(name, bad)


def _refuse(name: str, leaf: str | None) -> None:
    raise ValueError(f"the {name} holds NaN or infinity in leaf '{leaf}'")


def _all_finite(left: list[Any], right: list[Any]) -> bool:
    """Whether every product of two leaves is finite; it is not if either holds NaN or infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(isfinite(np.vdot(a, b)) for a, b in zip(left, right, strict=True))


def _sizes(known: Moments) -> dict[str, tuple[int, ...]]:
    return {leaf: mean.shape for leaf, mean in known.mean.items()}


def _shapes(posterior: Any) -> Any:
    leaves, structure = jax.tree.flatten(_like(posterior))
    return structure, [np.shape(leaf) for leaf in leaves]


def _name_the_difference(
    shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    for leaf in sorted(expected.keys() | shapes.keys()):
        if leaf not in shapes or leaf not in expected:
            where = "only the target has" if leaf not in shapes else "the target has no"
            raise ValueError(f"these are posteriors of different networks: {where} leaf '{leaf}'")
        if shapes[leaf] != expected[leaf]:
            raise ValueError(
                f"these are posteriors of different networks: leaf '{leaf}' has shape "
                f"{shapes[leaf]} where the target has {expected[leaf]}"
            )


def _like(posterior: Any) -> PyTree:
    return posterior.like if isinstance(posterior, Posterior) else posterior


def _arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves by path as float32 or float64; views of JAX's own memory where that is possible."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    arrays = [a if a.dtype.char in "fd" else a.astype(np.float32) for a in arrays]
    return dict(zip(_leaf_names(structure), arrays, strict=True))


@lru_cache(maxsize=64)
def _leaf_names(structure: Any) -> tuple[str, ...]:
    return tuple(leaves_by_path(jax.tree.unflatten(structure, range(structure.num_leaves))))
