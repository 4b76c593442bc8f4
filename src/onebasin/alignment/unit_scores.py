"""Correlations of the units of two networks, from which permutations are learned.

Units are recorded at every site where they appear, in one pass over each network. Two kinds of
correlations are of use: the mean of those at all sites, and those over all observations after the
nonlinearity, where sites at which units vary more count more. Neither gives the lower loss on the
path for every pair of networks.
"""

import warnings
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from onebasin.alignment.activations import point_of
from onebasin.alignment.assignment import solve
from onebasin.alignment.moments import Alignable
from onebasin.alignment.sites import PairMoments, UnitSites
from onebasin.networks import NetworkLike, apply_of
from onebasin.symmetry import Permutation, Symmetry
from onebasin.trees import PyTree

Scores: TypeAlias = dict[str, np.ndarray]
"""For every group, how alike unit i of the target and unit j of the mover are."""
BONUS = 0.3  # added to the scores of a start that the scores themselves do not give
NONE = "none"


def project(scores: Mapping[str, Any]) -> Permutation:
    """The permutations that maximise ⟨scores, P⟩, exactly."""
    return Permutation(
        {name: solve(np.asarray(s, np.float64), name=name).columns for name, s in scores.items()}
    )


def biased(scores: Scores, start: Permutation) -> Scores:
    """The scores, raised where the start has its entries if it is not their own projection."""
    if project(scores) == start:
        return scores
    return {
        name: each + BONUS * np.eye(len(each), dtype=np.float32)[start[name]]
        for name, each in scores.items()
    }


@dataclass(frozen=True, eq=False)
class UnitScores:
    """The scores of all pairs of units of two networks, compiled once for any number of pairs."""

    symmetry: Symmetry
    sites: UnitSites | None
    """None for a network whose units cannot be recorded: all its scores are zero."""

    @classmethod
    def of(
        cls,
        network: NetworkLike,
        x: PyTree,
        to: Alignable,
        symmetry: Symmetry,
        *,
        wanted: Collection[str] | None = None,
    ) -> "UnitScores":
        """Groups that cannot be recorded are left out, and a warning names those that are wanted.

        By default all groups are wanted.
        """
        sites = UnitSites(apply_of(network), point_of(to), x, symmetry, "all", complete=False)
        units = cls(symmetry, sites if sites.found else None)
        missing = [name for name in units.unseen if wanted is None or name in wanted]
        if missing:
            warnings.warn(
                f"units of {', '.join(missing)} are not compared by their activations: tracing "
                "finds no array outside a loop that carries them",
                stacklevel=2,
            )
        return units

    @property
    def unseen(self) -> tuple[str, ...]:
        """The groups whose units cannot be recorded: their scores are zero."""
        if self.sites is None:
            return tuple(group.name for group in self.symmetry.groups)
        return self.sites.unseen

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of scores that compare units."""
        return () if self.sites is None else ("correlations", "correlations after")

    def between(self, posterior: Alignable, to: Alignable) -> dict[str, Scores]:
        """The scores of every kind; "none", which is zero, where no units can be recorded."""
        sizes = {group.name: group.size for group in self.symmetry.groups}
        zeros = {name: np.zeros((sizes[name], sizes[name]), np.float32) for name in self.unseen}
        if self.sites is None:
            return {NONE: zeros}
        every = self.sites.moments(point_of(to), point_of(posterior))
        where: dict[str, list[str]] = {}
        for site in self.sites.found:
            where.setdefault(site.group, []).append(site.where)
        after = {
            name: [part for part, at in zip(parts, where[name], strict=True) if at == "after"]
            for name, parts in every.items()
        }
        mean = {n: np.mean([p.correlations() for p in parts], axis=0) for n, parts in every.items()}
        # Units that appear before a nonlinearity alone are compared there.
        pooled = {n: _pooled(parts or every[n]).correlations() for n, parts in after.items()}
        return {
            "correlations": zeros | {n: score.astype(np.float32) for n, score in mean.items()},
            "correlations after": zeros
            | {n: score.astype(np.float32) for n, score in pooled.items()},
        }


def _pooled(parts: Sequence[PairMoments]) -> PairMoments:
    """The moments over the observations of all sites together."""
    whole = deepcopy(parts[0])
    for part in parts[1:]:
        whole.add(part)
    return whole


def mean_scores(found: Sequence[Mapping[str, Scores]]) -> dict[str, Scores]:
    """The mean of the scores of several pairs of networks, kind by kind."""
    mean: dict[str, Scores] = jax.tree.map(lambda *each: np.mean(each, axis=0), *found)
    return mean
