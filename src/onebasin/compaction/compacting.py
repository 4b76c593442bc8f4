"""Boil draws, or posteriors, down to one Gaussian: `compact`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_alternation import align_to_gaussian, fit_gaussian
from onebasin.alignment.gaussian_fit import GaussianFit
from onebasin.alignment.members import Members
from onebasin.alignment.moments import Alignable
from onebasin.alignment.scores import Indices
from onebasin.choices import FitTarget, RebaseName, check_choice
from onebasin.compaction.contributions import to_contributions
from onebasin.compaction.output_directions import output_directions
from onebasin.compaction.rebasing import Rebase, by_chain, to_anchor, to_barycentre
from onebasin.networks import Apply, NetworkLike, apply_of
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.progress import Progress, Reporter, reporting
from onebasin.symmetry import Permutation, ScaleSymmetry, Symmetry, find_scales, stack
from onebasin.symmetry.action import move_tree
from onebasin.trees import PyTree


@dataclass(frozen=True)
class Compact:
    """One Gaussian for many members, and where each of them went."""

    posterior: MeanField | LowRank
    permutations: Permutation
    """One for each member, stacked."""
    trace: tuple[float, ...]
    """Mean log-likelihood of the members: at the start, after every round, and at the end."""
    log_likelihood: float
    """Mean log-density of the members under the posterior."""
    rebase: Rebase
    start: RebaseName
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

    def __repr__(self) -> str:
        return (
            f"Compact({len(self.members)} members, {self.posterior!r}, rebased to {self.rebase.to})"
        )

    @cached_property
    def samples(self) -> Any:
        """The members, balanced and moved: `Samples`, or a tuple if posteriors were given."""
        if self.members.draws is None:
            return tuple(self._moved_posterior(i) for i in range(len(self.members)))
        parts = self.members.sources
        joined = Samples(
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *(p.draws for p in parts)),
            jnp.concatenate([jnp.asarray(p.chain) for p in parts]),
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *(p.state for p in parts)),
        )
        if self.scale_symmetry is not None and self.scales is not None:
            joined = self.scale_symmetry.act(self.scales, joined)
        return self.symmetry.act(self.permutations, joined)

    def _moved_posterior(self, index: int) -> Any:
        q = self.members.sources[index]
        if self.scale_symmetry is not None and self.scales is not None:
            own = {name: factors[index] for name, factors in self.scales.items()}
            q = self.scale_symmetry.act(own, q)
        return self.symmetry.act(self.permutations.draw(index), q)


def compact(
    samples: Samples | Sequence[Alignable],
    *,
    symmetry: Symmetry,
    rank: int = 0,
    rebase: Rebase | RebaseName = "likelihood",
    fit: FitTarget = "weights",
    balance: bool | ScaleSymmetry = False,
    network: NetworkLike | None = None,
    x: Any = None,
    floor: float = 1e-3,
    progress: Progress = "auto",
) -> Compact:
    """Bring all members into one basin and fit one Gaussian to them.

    Args:
      samples: `Samples` (HMC draws, ensemble members; leaves may be memory maps), a list of
        `Samples` of one network, whose draws are joined, or a list of other posteriors, which are
        moment-matched: variances are the mean variance plus the variance of the means.
      symmetry: that of the network.
      rank: of the part of the covariance that is not diagonal; less than the number of members.
      rebase: where members are moved: a `Rebase`, or the name of one with its defaults.
        "likelihood" fits and moves in turn; "contributions" matches units by what they do on
        data and needs `network` and `x`; "chain" moves the draws of a chain together;
        "barycentre", "anchor" and "none" are simpler. See docs/compact.md.
      fit: "weights" (maximum likelihood; marginal variances are the members' own), or "outputs"
        (made to predict: factors along which the outputs on `x` vary most, scaled to carry all of
        their variance, and hardly any independent noise).
      balance: bring the scale of homogeneous units to a canonical balance first; True finds out
        which those are and needs `network` and `x`, or give a `ScaleSymmetry`.
      network, x: the network, and a batch of inputs for what looks at data; no labels are used.
      floor: least variance of a coordinate, as a share of its leaf's mean variance.
      progress: how to show progress, or a function of (what, done, total).

    Returns:
      a `Compact`; its `posterior` is a `MeanField` for rank 0, else a `LowRank`.

    >>> import onebasin as ob, jax, jax.numpy as jnp
    >>> net = lambda p, x: jnp.tanh(x @ p["w1"]) @ p["w2"]
    >>> params = {"w1": jnp.ones((2, 3)), "w2": jnp.ones((3, 1))}
    >>> symmetry = ob.find_symmetry(net, params, jnp.ones((4, 2)))
    >>> unit = jax.tree.map(jnp.ones_like, params)
    >>> draws = ob.Samples(ob.MeanField(params, unit).sample(8, key=jax.random.key(0)))
    >>> ob.compact(draws, symmetry=symmetry, rank=2)
    Compact(8 members, LowRank(9 parameters, rank 2), rebased to likelihood)
    """
    began = time.perf_counter()
    if not 0 <= floor < 1:
        raise ValueError(f"floor is {floor:g}; give a share of the mean variance from 0 to 1")
    rebase = rebase if isinstance(rebase, Rebase) else Rebase(rebase)
    apply = None if network is None else apply_of(network)
    members = _members(samples)
    _check_rank(rank, len(members))
    _check_fit(fit, rank, apply, x)
    symmetry.check_shapes(members.like)
    scales, scale_symmetry = None, None
    if balance is not False:
        scale_symmetry = _scale_symmetry(balance, apply, x, members, symmetry)
        scales = scale_symmetry.balance_all(members[i].mean for i in range(len(members)))
        members = replace(members, scales=scale_symmetry.along_axes(scales))
    with reporting(progress) as report:
        gaussian, start, converged = _placed(
            members, symmetry, rebase, rank, floor, apply, x, report
        )
        found = align_to_gaussian(
            gaussian,
            max_rounds=rebase.max_rounds if rebase.to == "likelihood" else 0,
            tolerance=rebase.tolerance,
            max_sweeps=rebase.max_sweeps,
            report=report,
        )
    if fit == "outputs":
        assert apply is not None  # checked with the other arguments
        gaussian.project(*output_directions(members, rank, apply, x))
    permutations = stack([Permutation(indices) for indices in gaussian.aligned.indices])
    return Compact(
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


def _placed(
    members: Members,
    symmetry: Symmetry,
    rebase: Rebase,
    rank: int,
    floor: float,
    apply: Apply | None,
    x: Any,
    report: Reporter,
) -> tuple[GaussianFit, RebaseName, bool]:
    """The Gaussian of members that were moved as asked, how, and whether they came to rest.

    `likelihood` begins at `chain` or `barycentre`, whichever the fitted Gaussian likes better.
    """
    chains = _chains(members)
    several = len(chains) > len(np.unique(chains)) > 1

    def placed(way: RebaseName) -> tuple[list[Indices], bool]:
        if way == "anchor":
            return to_anchor(members, symmetry, rebase, report), True
        if way == "chain":
            return by_chain(members, chains, symmetry, rebase, report)
        if way == "contributions":
            return to_contributions(members, symmetry, apply, x, rebase, report)
        if way == "barycentre":
            return to_barycentre(members, symmetry, rebase, report)
        return [dict(symmetry.identity().indices) for _ in range(len(members))], True

    ways: list[RebaseName] = [rebase.to]
    if rebase.to == "likelihood":
        ways = ["barycentre", "chain"] if several else ["barycentre"]
    fits: dict[RebaseName, tuple[GaussianFit, bool]] = {}
    for way in ways:
        indices, converged = placed(way)
        fits[way] = fit_gaussian(AlignedMembers(members, symmetry, indices), rank, floor), converged
    start = max(fits, key=lambda way: fits[way][0].mean_log_likelihood)
    return fits[start][0], start, fits[start][1]


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
    numbers, start = [], 0
    for part in members.sources:
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


def _check_fit(fit: str, rank: int, apply: Apply | None, x: Any) -> None:
    check_choice(fit, FitTarget, "fit")
    if fit == "outputs" and rank == 0:
        raise ValueError("fit='outputs' puts all variance into factors; give a rank above 0")
    if fit == "outputs" and (apply is None or x is None):
        raise ValueError("fit='outputs' needs network and x, to see how the draws predict")


def _scale_symmetry(
    balance: Any, apply: Apply | None, x: Any, members: Members, symmetry: Symmetry
) -> ScaleSymmetry:
    if isinstance(balance, ScaleSymmetry):
        return balance
    if apply is None or x is None:
        raise ValueError("balance=True needs network and x, to see which units may be scaled")
    scales = find_scales(apply, members.tree(members[0].mean), x, symmetry=symmetry)
    if not scales.sites:
        reasons = "; ".join(f"'{name}': {why}" for name, why in scales.left_out.items())
        raise ValueError(f"no group of this network can be balanced ({reasons}); set balance=False")
    return scales


def _posterior(fit: GaussianFit, members: Members, state: PyTree) -> MeanField | LowRank:
    shapes, kind = fit.aligned.shapes, fit.aligned.dtype

    def tree(leaves: Mapping[str, np.ndarray]) -> PyTree:
        shaped = {
            leaf: jnp.asarray(leaves[leaf].reshape(*leaves[leaf].shape[:-1], *shape), kind)
            for leaf, shape in shapes.items()
        }
        return members.tree(shaped)

    mean = tree(fit.gaussian.mean)
    std = tree({leaf: np.sqrt(v) for leaf, v in fit.gaussian.variance.items()})
    if fit.gaussian.rank == 0:
        return MeanField(mean, std, state)
    return LowRank(mean, std, tree(fit.posterior_factors()), state)


def _mean_state(members: Members, symmetry: Symmetry, permutations: Permutation) -> PyTree:
    """Running statistics move with their units; the compact posterior gets their mean."""
    states = [getattr(part, "state", None) for part in members.sources]
    if all(state is None for state in states):
        return None
    if members.draws is None:
        states = [jax.tree.map(lambda leaf: leaf[None], state) for state in states]
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *states)
    moved = move_tree(joined, 1, symmetry.state_layouts, permutations.indices)
    return jax.tree.map(lambda leaf: leaf.mean(0), moved)
