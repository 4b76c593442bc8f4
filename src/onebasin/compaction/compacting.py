"""Boil draws, or posteriors, down to one Gaussian: `compact`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.members import Members
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Report
from onebasin.compaction.contributions import to_contributions
from onebasin.compaction.frame import Frame
from onebasin.compaction.outputs import output_directions
from onebasin.compaction.rebasing import (
    WAYS,
    by_chain,
    fitted,
    like,
    point_of,
    to_anchor,
    to_barycentre,
    to_gaussian,
    tree_of,
)
from onebasin.compaction.scale import ScaleSymmetry, find_scales
from onebasin.posterior.low_rank import LowRank
from onebasin.posterior.mean_field import MeanField
from onebasin.posterior.samples import Samples
from onebasin.symmetry import Permutation, Symmetry, stack
from onebasin.symmetry.action import move_tree
from onebasin.trees import Tree


@dataclass(frozen=True)
class Compacted:
    """One Gaussian for many members, and where each of them went."""

    posterior: MeanField | LowRank
    permutations: Permutation
    """One for each member, stacked."""
    trace: tuple[float, ...]
    """Mean log-likelihood of the members: at the start, after every round, and at the end."""
    log_likelihood: float
    """Mean log-density of the members under the posterior."""
    rebase: str
    start: str
    """Where `likelihood` began: `chain` or `barycentre`."""
    rounds: int
    converged: bool
    moves: tuple[int, ...]
    """How many members moved in each round of `likelihood`."""
    scales: Mapping[str, np.ndarray] | None
    """The factors that balanced every member's units, [members, units] by group, or None."""
    seconds: float
    members: Members = field(repr=False)
    symmetry: Symmetry = field(repr=False)
    scale_symmetry: ScaleSymmetry | None = field(repr=False)

    @cached_property
    def samples(self) -> Any:
        """The members, balanced and moved: `Samples`, or a tuple if posteriors were given."""
        if self.members.draws is None:
            return tuple(self._moved_posterior(i) for i in range(len(self.members)))
        parts = self._parts()
        joined = Samples(
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *(p.draws for p in parts)),
            jnp.concatenate([jnp.asarray(p.chain) for p in parts]),
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *(p.state for p in parts)),
        )
        if self.scale_symmetry is not None and self.scales is not None:
            joined = self.scale_symmetry.act(self.scales, joined)
        return self.symmetry.act(self.permutations, joined)

    def _parts(self) -> Sequence[Any]:
        source = self.members.source
        return source if isinstance(source, tuple) else (source,)

    def _moved_posterior(self, index: int) -> Any:
        q = self._parts()[index]
        if self.scale_symmetry is not None and self.scales is not None:
            own = {name: factors[index] for name, factors in self.scales.items()}
            q = self.scale_symmetry.act(own, q)
        return self.symmetry.act(self.permutations.draw(index), q)


def compact(
    samples: Samples | Sequence[Any],
    *,
    symmetry: Symmetry,
    rank: int = 0,
    rebase: str = "likelihood",
    fit: str = "weights",
    objective: Any = "l2",
    anchor: int = 0,
    balance: bool | ScaleSymmetry = False,
    apply: Callable[..., Any] | None = None,
    x: Any = None,
    floor: float = 1e-3,
    max_rounds: int = 20,
    tolerance: float = 1e-3,
    max_sweeps: int = 100,
    report: Report | None = None,
) -> Compacted:
    """Bring all members into one basin and fit one Gaussian to them.

    **Arguments:**

    - `samples`: `Samples` (HMC draws, ensemble members; leaves may be memory maps), a list of
      `Samples` of one network, whose draws are joined, or a list of other posteriors, which are
      moment-matched: variances are the mean variance plus the variance of the means.
    - `rank`: of the part of the covariance that is not diagonal; less than the number of members.
    - `rebase`: "likelihood" (fit and move in turn), "contributions" (by what units do on data,
      needs `apply` and `x`), "chain" (the draws of a chain together), "barycentre", "anchor" or
      "none"; see docs/compact.md.
    - `fit`: "weights" (maximum likelihood; marginal variances are the members' own), or
      "outputs" (made to predict: factors along which the outputs on `x` vary most, scaled to
      carry all of their variance, and hardly any independent noise).
    - `objective`, `anchor`: for `rebase="anchor"`: by `l2` or `Activations(apply, x)`, to which
      member.
    - `balance`: bring the scale of homogeneous units to a canonical balance first; True finds
      out which those are and needs `apply` and `x`, or give a `ScaleSymmetry`.
    - `floor`: least variance of a coordinate, as a share of its leaf's mean variance.
    - `max_rounds`, `tolerance`: stop after so many rounds, or once a round gains less than this
      share of what all rounds gained.
    - `report`: called with what is being done, how far it is and out of how many.

    **Returns:** a `Compacted`; its `posterior` is a `MeanField` for rank 0, else a `LowRank`.
    """
    began = time.perf_counter()
    if not 0 <= floor < 1:
        raise ValueError(f"floor is {floor:g}; give a share of the mean variance from 0 to 1")
    if rebase not in WAYS:
        raise ValueError(f"there is no way to rebase '{rebase}'; use one of {', '.join(WAYS)}")
    members = _members(samples)
    _check_rank(rank, len(members))
    _check_fit(fit, rank, apply, x)
    symmetry.check_shapes(like(members))
    scales, scale_symmetry = None, None
    if balance is not False:
        scale_symmetry = _scale_symmetry(balance, apply, x, members, symmetry)
        scales = scale_symmetry.balance_all(members)
        members = replace(members, scales=scale_symmetry.along_axes(scales))
    chains = _chains(members)
    several = len(chains) > len(np.unique(chains)) > 1
    options = {"max_rounds": max_rounds, "max_sweeps": max_sweeps, "report": report}

    def placed(way: str) -> tuple[list[Indices], bool]:
        if way == "anchor":
            return to_anchor(members, symmetry, anchor, objective, max_sweeps, report), True
        if way == "chain":
            return by_chain(members, chains, symmetry, **options)
        if way == "contributions":
            point = partial(point_of, members)
            return to_contributions(members, point, symmetry, apply, x, **options)
        if way == "barycentre":
            return to_barycentre(members, symmetry, **options)
        return [dict(symmetry.identity().indices) for _ in range(len(members))], True

    ways = [rebase]
    if rebase == "likelihood":
        ways = ["barycentre", "chain"] if several else ["barycentre"]
    fits = {}
    for way in ways:
        indices, converged = placed(way)
        fits[way] = fitted(Frame(members, symmetry, indices), rank, floor), converged
    start = max(fits, key=lambda way: fits[way][0].mean_log_likelihood)
    gaussian, converged = fits.pop(start)
    fits.clear()
    found = to_gaussian(
        gaussian,
        max_rounds=max_rounds if rebase == "likelihood" else 0,
        tolerance=tolerance,
        max_sweeps=max_sweeps,
        report=report,
    )
    if fit == "outputs":
        assert apply is not None  # checked with the other arguments
        point = partial(point_of, members)
        gaussian.project(*output_directions(point, len(members), rank, apply, x))
    frame = gaussian.frame
    permutations = stack([Permutation(indices) for indices in frame.indices])
    return Compacted(
        posterior=_posterior(gaussian, members, _mean_state(members, symmetry, permutations)),
        permutations=permutations,
        trace=found.trace,
        log_likelihood=gaussian.mean_log_likelihood,
        rebase=rebase,
        start=start,
        rounds=found.rounds,
        converged=converged and found.converged,
        moves=found.moves,
        scales=scales,
        seconds=time.perf_counter() - began,
        members=members,
        symmetry=symmetry,
        scale_symmetry=scale_symmetry,
    )


def _members(samples: Any) -> Members:
    if isinstance(samples, Samples):
        samples = [samples]
    if not isinstance(samples, Sequence) or not samples:
        raise ValueError("compact takes Samples, or a list of Samples or of posteriors")
    drawn = [isinstance(q, Samples) for q in samples]
    if any(drawn) and not all(drawn):
        raise ValueError("compact takes Samples or other posteriors, not a mixture of both")
    members = Members.of_draws(list(samples)) if all(drawn) else Members.of(list(samples))
    if len(members) < 2:
        raise ValueError("one draw has no spread to fit a Gaussian to; give at least two")
    return members


def _chains(members: Members) -> np.ndarray:
    """A number for the chain of every draw; chains of different `Samples` are different."""
    if members.draws is None:
        return np.arange(len(members))
    source = members.source if isinstance(members.source, tuple) else (members.source,)
    numbers, start = [], 0
    for part in source:
        _, own = np.unique(np.asarray(part.chain), return_inverse=True)
        numbers.append(own + start)
        start += own.max() + 1
    return np.concatenate(numbers)


def _check_rank(rank: int, members: int) -> None:
    if rank < 0:
        raise ValueError(f"rank is {rank}; give 0 for a diagonal Gaussian, or more")
    if rank >= members:
        raise ValueError(
            f"rank is {rank}, and {members} members span only {members - 1} directions; "
            f"give at most {members - 1}"
        )


def _check_fit(fit: str, rank: int, apply: Any, x: Any) -> None:
    if fit not in ("weights", "outputs"):
        raise ValueError(f"there is no fit '{fit}'; use weights or outputs")
    if fit == "outputs" and rank == 0:
        raise ValueError("fit='outputs' puts all variance into factors; give a rank above 0")
    if fit == "outputs" and (apply is None or x is None):
        raise ValueError("fit='outputs' needs apply and x, to see how the draws predict")


def _scale_symmetry(
    balance: Any, apply: Any, x: Any, members: Members, symmetry: Symmetry
) -> ScaleSymmetry:
    if isinstance(balance, ScaleSymmetry):
        return balance
    if apply is None or x is None:
        raise ValueError("balance=True needs apply and x, to see which units may be scaled")
    scales = find_scales(apply, tree_of(members[0].mean, members), x, symmetry=symmetry)
    if not scales.sites:
        reasons = "; ".join(f"'{name}': {why}" for name, why in scales.left_out.items())
        raise ValueError(f"no group of this network can be balanced ({reasons}); set balance=False")
    return scales


def _posterior(fit: Any, members: Members, state: Tree) -> MeanField | LowRank:
    shapes, kind = fit.frame.shapes, fit.frame.dtype

    def tree(leaves: Mapping[str, np.ndarray]) -> Tree:
        shaped = {
            leaf: jnp.asarray(leaves[leaf].reshape(*leaves[leaf].shape[:-1], *shape), kind)
            for leaf, shape in shapes.items()
        }
        return tree_of(shaped, members)

    mean = tree(fit.gaussian.mean)
    std = tree({leaf: np.sqrt(v) for leaf, v in fit.gaussian.variance.items()})
    if fit.gaussian.rank == 0:
        return MeanField(mean, std, state)
    return LowRank(mean, std, tree(fit.posterior_factors()), state)


def _mean_state(members: Members, symmetry: Symmetry, permutations: Permutation) -> Tree:
    """Running statistics move with their units; the compact posterior gets their mean."""
    source = members.source
    parts = source if isinstance(source, tuple) else (source,)
    states = [getattr(part, "state", None) for part in parts]
    if all(state is None for state in states):
        return None
    if members.draws is None:
        states = [jax.tree.map(lambda leaf: leaf[None], state) for state in states]
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *states)
    moved = move_tree(joined, 1, symmetry.state_layouts, permutations.indices)
    return jax.tree.map(lambda leaf: leaf.mean(0), moved)
