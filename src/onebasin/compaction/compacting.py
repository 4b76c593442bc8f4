"""Replace draws, or posteriors, by one Gaussian: `compact`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_alternation import align_to_gaussian, fit_gaussian
from onebasin.alignment.gaussian_fit import GaussianFit
from onebasin.alignment.members import Members
from onebasin.alignment.moments import Alignable, state_of
from onebasin.choices import FitTarget, RebaseName, check_choice
from onebasin.compaction.effect import Effect, effect
from onebasin.compaction.output_directions import output_directions
from onebasin.compaction.rebasing import Rebase, Rebasing
from onebasin.data.examples import Examples
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import Apply, NetworkLike, apply_of
from onebasin.posterior import LowRank, MeanField, Mixture, Posterior, Samples
from onebasin.problem import likelihood_for
from onebasin.progress import Progress, reporting
from onebasin.symmetry import Permutation, ScaleSymmetry, Symmetry, find_scales, stack
from onebasin.symmetry.action import move_tree
from onebasin.trees import PyTree, add_axis

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from distributed import Client
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike


@dataclass(frozen=True)
class Compact:
    """One Gaussian for many members, and where each of them was moved: the result of `compact`.

    >>> import onebasin as ob
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(2)}, {"units": [("w", 0)]})
    >>> draws = ob.Samples({"w": jnp.array([[1.0, 5.0], [5.5, 1.5], [0.5, 6.0]])})
    >>> ob.compact(draws, symmetry=symmetry).posterior.mean["w"].tolist()
    [1.0, 5.5]
    """

    posterior: MeanField | LowRank
    permutations: Permutation
    """One for each member, stacked."""
    trace: tuple[float, ...]
    """Mean log-likelihood of the members: at the start, after every round, and at the end."""
    log_likelihood: float
    """Mean log-density of the members under the posterior."""
    rebase: Rebase
    start: RebaseName
    """Where `likelihood` started: `chain` or `barycentre`."""
    rounds: int
    converged: bool
    moves: tuple[int, ...]
    """How many members moved in each round of `likelihood`."""
    scales: Mapping[str, np.ndarray] | None
    """The factors that balanced every member's units, [members, units] by group, or None."""
    seconds: float
    members: Members
    symmetry: Symmetry
    scale_symmetry: ScaleSymmetry | None

    def __repr__(self) -> str:
        members = f"{len(self.members)} members"
        return f"Compact({members}, {self.posterior!r}, rebased to {self.rebase.to})"

    @cached_property
    def samples(self) -> Any:
        """The members, balanced and moved: `Samples`, or a tuple if posteriors were given."""
        parts = self.members.sources
        if self.members.draws is None:
            return tuple(self._moved(q, index) for index, q in enumerate(parts))
        draws, state = (
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
            for trees in ([part.draws for part in parts], [part.state for part in parts])
        )
        return self._moved(Samples(draws, jnp.concatenate([part.chain for part in parts]), state))

    def effect(
        self,
        network: NetworkLike,
        data: Examples,
        *,
        key: jax.Array,
        posterior: Posterior | None = None,
        likelihood: LikelihoodLike | None = None,
        num_samples: int = 128,
        progress: Progress = "auto",
    ) -> Effect:
        """What replacing the members by the Gaussian does to predictions on `data`.

        Args:
          network: `apply(params, x)`, a `Network` or a `Problem`.
          data: a split with .x and .y, or a pair.
          key: the key of the draws.
          posterior: the Gaussian, if it was changed since, as by `calibrate`.
          likelihood: by default that of the problem, else "categorical".
          num_samples: draws of the members together, and of the Gaussian.
          progress: how to show progress, or a function of (what, done, total).
        """
        members: Any = self.samples if self.members.draws is not None else self.members.sources
        if not isinstance(members, Samples):
            members = Mixture(tuple(members), jnp.full(len(members), 1 / len(members)))
        return effect(
            members,
            self.posterior if posterior is None else posterior,
            network,
            data,
            key=key,
            likelihood=likelihood,
            num_samples=num_samples,
            progress=progress,
        )

    def plot(self, *, ax: "AxesLike | None" = None) -> "Figure":
        """The log likelihood after every round, and σ of the weights of members and Gaussian.

        The σ of draws is their spread before alignment.

        Args:
          ax: axes to draw in, instead of a new figure: of the log likelihood, and of σ.
        """
        from onebasin.figures.searches import compact_figure

        return compact_figure(self.trace, self._sigmas(), ax=ax)

    def _sigmas(self) -> dict[str, np.ndarray]:
        """σ of every weight, before and after."""
        given = self.members.sources
        if self.members.draws is None:
            before = [_flat(q.moments()[1]) for q in given if isinstance(q, Posterior)]
            named = {"members": np.concatenate(before)} if before else {}
        else:
            leaves = [np.concatenate(draws) for draws in self.members.draws.values()]
            named = {"draws as given": _flat([leaf.std(axis=0) for leaf in leaves])}
        return {**named, "Gaussian": _flat(self.posterior.moments()[1])}

    def _moved(self, member: Alignable, index: int | None = None) -> Alignable:
        """One member, or all draws, balanced and moved."""
        if self.scale_symmetry is not None and self.scales is not None:
            at = slice(None) if index is None else index
            own = {name: factors[at] for name, factors in self.scales.items()}
            member = self.scale_symmetry.act(own, member)
        permutation = self.permutations if index is None else self.permutations.draw(index)
        return self.symmetry.act(permutation, member)


def _flat(tree: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def compact(
    samples: Samples | Sequence[Alignable],
    *,
    symmetry: Symmetry,
    rank: int = 0,
    rebase: Rebase | RebaseName = "likelihood",
    fit: FitTarget = "weights",
    balance: bool | ScaleSymmetry = False,
    network: NetworkLike | None = None,
    x: PyTree | None = None,
    likelihood: LikelihoodLike | None = None,
    floor: float = 1e-3,
    client: "Client | None" = None,
    progress: Progress = "auto",
) -> Compact:
    """Bring all members into one basin and fit one Gaussian N(m, D + FᵀF) to them.

    >>> import onebasin as ob
    >>> net = lambda p, x: jnp.tanh(x @ p["w1"]) @ p["w2"]
    >>> params = {"w1": jnp.ones((2, 3)), "w2": jnp.ones((3, 1))}
    >>> symmetry = ob.find_symmetry(net, params, jnp.ones((4, 2)))
    >>> unit = jax.tree.map(jnp.ones_like, params)
    >>> draws = ob.Samples(ob.MeanField(params, unit).sample(8, key=jax.random.key(0)))
    >>> ob.compact(draws, symmetry=symmetry, rank=2)
    Compact(8 members, LowRank(9 parameters, rank 2), rebased to likelihood)

    Args:
      samples: `Samples` (HMC draws, ensemble members; leaves may be memory maps), a list of
        `Samples` of one network, whose draws are joined, or a list of other posteriors, which are
        moment-matched: variances are the mean variance plus the variance of the means.
      symmetry: the permutation symmetry of the network.
      rank: the rank of F; less than the number of members.
      rebase: where members are moved: a `Rebase`, or the name of one with its defaults.
        "contributions" needs `network` and `x`.
      fit: "weights" (maximum likelihood; marginal variances are those of the members), or "outputs"
        (fitted to predict: factors along which the outputs on `x` vary most, scaled to carry all of
        their variance, and hardly any independent noise).
      balance: whether to rescale homogeneous units to a canonical balance first; True finds those
        units and needs `network` and `x`, or give a `ScaleSymmetry`.
      network: the network, for what is computed on data.
      x: a batch of inputs; no labels are used.
      likelihood: by which `fit="outputs"` weighs outputs of different kinds; by default that of the
        problem, else "categorical".
      floor: least variance of a coordinate, as a share of its leaf's mean variance.
      client: of a Dask cluster whose workers see the files of the draws; independent matches are
        spread over them, with the same result.
      progress: how to show progress, or a function of (what, done, total).

    Returns:
      A `Compact`; its `posterior` is a `MeanField` for rank 0, else a `LowRank`.
    """
    began = time.perf_counter()
    if not 0 <= floor < 1:
        raise ValueError(f"floor is {floor:g}; give a share of the mean variance from 0 to 1")
    rebase = rebase if isinstance(rebase, Rebase) else Rebase(rebase)
    apply = None if network is None else apply_of(network)
    members = _members(samples)
    _check_fit(fit, rank, len(members), apply, x)
    symmetry.check_shapes(members.like)
    scales, scale_symmetry = None, None
    if balance is not False:
        known = isinstance(balance, ScaleSymmetry)
        scale_symmetry = balance if known else _found_scales(members, symmetry, apply, x)
        scales = scale_symmetry.balance_all(members[i].mean for i in range(len(members)))
        members = replace(members, scales=scale_symmetry.along_axes(scales))
    with reporting(progress) as report:
        rebasing = Rebasing(members, symmetry, rebase, apply, x, report, client)
        fits: dict[RebaseName, tuple[GaussianFit, bool]] = {}
        for way in rebasing.starts():
            indices, settled = rebasing.rebased(way)
            aligned = AlignedMembers(members, symmetry, indices)
            fits[way] = fit_gaussian(aligned, rank, floor), settled
        start = max(fits, key=lambda way: fits[way][0].mean_log_likelihood)
        gaussian, settled = fits.pop(start)
        fits.clear()
        found = align_to_gaussian(
            gaussian,
            max_rounds=rebase.max_rounds if rebase.to == "likelihood" else 0,
            tolerance=rebase.tolerance,
            max_sweeps=rebase.max_sweeps,
            report=report,
            client=client,
        )
    if fit == "outputs":
        assert apply is not None  # checked with the other arguments
        assert network is not None
        weighed_by = likelihood_for(network, likelihood)
        gaussian.project(*output_directions(members, rank, apply, x, weighed_by))
    permutations = stack([Permutation(indices) for indices in gaussian.aligned.indices])
    return Compact(
        posterior=_posterior(gaussian, members, _mean_state(members, symmetry, permutations)),
        permutations=permutations,
        trace=found.trace,
        log_likelihood=gaussian.mean_log_likelihood,
        rebase=rebase,
        start=start,
        rounds=len(found.moves),
        converged=settled and found.converged,
        moves=found.moves,
        scales=scales,
        seconds=time.perf_counter() - began,
        members=members,
        symmetry=symmetry,
        scale_symmetry=scale_symmetry,
    )


def _members(samples: Samples | Sequence[Alignable]) -> Members:
    if isinstance(samples, Samples):
        samples = [samples]
    if not isinstance(samples, Sequence) or not samples:
        raise ValueError("compact takes Samples, or a list of Samples or of posteriors")
    drawn = [q for q in samples if isinstance(q, Samples)]
    if 0 < len(drawn) < len(samples):
        raise ValueError("compact takes Samples or other posteriors, not a mixture of both")
    members = Members.of_draws(drawn) if drawn else Members.of(samples)
    if len(members) < 2:
        raise ValueError("one draw has no variance to fit a Gaussian to; give at least two")
    return members


def _check_fit(fit: str, rank: int, members: int, apply: Apply | None, x: PyTree | None) -> None:
    if rank < 0:
        raise ValueError(f"rank is {rank}; give 0 for a diagonal Gaussian, or more")
    if rank >= members:
        raise ValueError(
            f"rank is {rank}, and {members} members span only {members - 1} directions; "
            f"give at most {members - 1}"
        )
    check_choice(fit, FitTarget, "fit")
    if fit == "outputs" and rank == 0:
        raise ValueError("fit='outputs' puts all variance into factors; give a rank above 0")
    if fit == "outputs" and (apply is None or x is None):
        raise ValueError("fit='outputs' needs network and x to see how the draws predict")


def _found_scales(
    members: Members, symmetry: Symmetry, apply: Apply | None, x: PyTree | None
) -> ScaleSymmetry:
    if apply is None or x is None:
        raise ValueError("balance=True needs network and x to see which units may be scaled")
    scales = find_scales(apply, members.tree(members[0].mean), x, symmetry=symmetry)
    if not scales.sites:
        reasons = "; ".join(f"'{name}': {why}" for name, why in scales.left_out.items())
        raise ValueError(f"no group of this network can be balanced ({reasons}); set balance=False")
    return scales


def _posterior(fit: GaussianFit, members: Members, state: PyTree | None) -> MeanField | LowRank:
    shapes, dtype = fit.aligned.shapes, fit.aligned.dtype

    def tree(leaves: Mapping[str, np.ndarray]) -> PyTree:
        shaped = {
            leaf: jnp.asarray(leaves[leaf].reshape(*leaves[leaf].shape[:-1], *shape), dtype)
            for leaf, shape in shapes.items()
        }
        return members.tree(shaped)

    mean = tree(fit.gaussian.mean)
    std = tree({leaf: np.sqrt(v) for leaf, v in fit.gaussian.variance.items()})
    if fit.gaussian.rank == 0:
        return MeanField(mean, std, state)
    return LowRank(mean, std, tree(fit.posterior_factors()), state)


def _mean_state(members: Members, symmetry: Symmetry, permutations: Permutation) -> PyTree | None:
    """The mean of the running statistics, each moved with its member's units."""
    states = [state_of(part) for part in members.sources]
    if all(state is None for state in states):
        return None
    if members.draws is None:
        states = [add_axis(state) for state in states]
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *states)
    moved = move_tree(joined, 1, symmetry.state_layouts, permutations.indices)
    return jax.tree.map(lambda leaf: leaf.mean(0), moved)
