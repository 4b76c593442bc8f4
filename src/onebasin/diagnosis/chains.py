"""Do chains agree on the weights, up to permutations? `diagnose`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from onebasin.alignment import align_many
from onebasin.alignment.objective import ObjectiveLike
from onebasin.data.examples import Examples
from onebasin.diagnosis.conclusion import agreement_of_chains, conclusion
from onebasin.diagnosis.connectivity import Barriers, choose_pairs, pair_barriers
from onebasin.diagnosis.geometry import Geometry, geometry
from onebasin.diagnosis.scramble import scramble
from onebasin.diagnosis.weights import (
    WeightStatistics,
    choose_weights,
    effective_draws,
    folded_share,
    leaf_of_weights,
    weight_statistics,
)
from onebasin.evaluation.tables import html_table, text_table
from onebasin.inference.diagnostics import FEWEST_DRAWS
from onebasin.keys import subkey
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import NetworkLike
from onebasin.posterior import Samples
from onebasin.progress import Progress, reporting
from onebasin.symmetry import Permutation, Symmetry, stack

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class View:
    """Statistics of the draws in one arrangement: before or after alignment, or of the null."""

    weights: WeightStatistics = field(repr=False)
    sigma: np.ndarray = field(repr=False)
    """Standard deviation of every weight over all draws."""
    geometry: Geometry
    not_unimodal: float
    """Share of weights whose pooled draws are significantly not unimodal; see `folded_share`."""
    across: Barriers | None = None
    """Barriers between draws of different chains."""

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("rhat", "ess"):
            values = np.nanquantile(getattr(self.weights, name), QUANTILES)
            found[name] = dict(zip(map(str, QUANTILES), values.tolist(), strict=True))
        for limit in (1.01, 1.05, 1.1):
            found[f"share_rhat_below_{limit}"] = float(np.mean(self.weights.rhat < limit))
        found |= {
            "sigma_median": float(np.median(self.sigma)),
            "sigma_mean": float(self.sigma.mean()),
            "not_unimodal": self.not_unimodal,
            "variance_between_chains": self.geometry.between,
            "variance_explained": self.geometry.explained.tolist(),
        }
        if self.across is not None:
            found["barriers_across_chains"] = self.across.summary()
        return found


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The draws before and after alignment, and the null; made by `diagnose`.

    The null is the same alignment of chains that share no mode (see `scramble`).

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> w = jax.random.normal(jax.random.key(0), (8, 3))
    >>> symmetry = ob.Symmetry.by_hand({"w": w[0]}, {"hidden": [("w", 0)]})
    >>> samples = ob.Samples({"w": w}, jnp.repeat(jnp.arange(2), 4))
    >>> found = ob.diagnose(samples, symmetry=symmetry, key=jax.random.key(1))
    >>> found.num_weights, found.aligned
    (3, Samples(3 parameters, 8 draws of 2 chains))
    """

    before: View
    after: View
    null: View
    within: Barriers | None
    """Barriers between draws half a chain apart, which need no alignment."""
    aligned: Samples
    chain: np.ndarray
    effective: float
    """Median effective number of draws within chains, for the test of unimodality."""
    num_weights: int
    """The number of weights for which R-hat, ESS and unimodality were computed."""
    leaf: np.ndarray
    """The key path of the leaf of each of these weights."""

    def __repr__(self) -> str:
        chains, draws = len(np.unique(self.chain)), len(self.chain)
        before, after, null = (np.nanmedian(v.weights.rhat) for v in self._views.values())
        rhat = f"median R-hat {before:.3f} → {after:.3f}, null {null:.3f}"
        return f"Diagnosis({chains} chains, {draws} draws, {rhat})"

    @property
    def between_expected(self) -> float:
        """The expected share for chains of one distribution: (chains − 1)/(effective draws − 1)."""
        chains = len(np.unique(self.chain))
        return (chains - 1) / max(self.effective - 1, chains - 1)

    @property
    def conclusion(self) -> str:
        """What the numbers say, in one sentence or two."""
        between = (self.after.geometry.between, self.null.geometry.between)
        removed = agreement_of_chains(*between, self.between_expected)
        rhat = float(np.nanmedian(self.after.weights.rhat))
        return conclusion(removed, rhat, self.after.across, self.within)

    def plot(self, *, ax: "AxesLike | None" = None) -> "Figure":
        """R-hat, σ, and projections of the draws before and after alignment.

        Args:
          ax: axes to draw in, instead of a new figure: of R-hat, σ, and the two projections.
        """
        from onebasin.figures.diagnosis import diagnosis_figure

        return diagnosis_figure(self, ax=ax)

    def summary(self) -> dict[str, Any]:
        """Everything as JSON-able numbers."""
        names, counts = np.unique(self.chain, return_counts=True)
        found = {
            "chains": len(names),
            "draws": int(counts.sum()),
            "weights_looked_at": self.num_weights,
            "effective_draws_within_chains": self.effective,
            "variance_between_chains_expected": self.before.geometry.between_expected,
            "variance_between_chains_expected_of_effective_draws": self.between_expected,
            "before": self.before.summary(),
            "after": self.after.summary(),
            "null": self.null.summary(),
            "conclusion": self.conclusion,
        }
        if self.within is not None:
            found["barriers_within_chains"] = self.within.summary()
        found["median_rhat_by_leaf"] = {
            str(name): {
                arrangement: float(np.nanmedian(view.weights.rhat[self.leaf == name]))
                for arrangement, view in self._views.items()
            }
            for name in dict.fromkeys(self.leaf)
        }
        return found

    @property
    def _views(self) -> dict[str, View]:
        return {"before": self.before, "after": self.after, "null": self.null}

    def table(self) -> str:
        """The main numbers as text, and what they say."""
        lines = [
            text_table(self._cells(), narrowest=9),
            f"(variance between chains of one law: {self.before.geometry.between_expected:.4f} for "
            f"independent draws, {self.between_expected:.4f} for as many as are effective; "
            "the null is the same alignment of chains that share no mode)",
        ]
        for name, found in (
            ("across chains, before", self.before.across),
            ("across chains, after", self.after.across),
            ("within chains", self.within),
        ):
            if found is not None and len(found.barrier):
                s = found.summary()
                lines.append(
                    f"barrier between draws {name}: {s['mean']:.4f} ± {s['stderr']:.4f} nats "
                    f"(largest {s['largest']:.4f}, {s['pairs']} pairs)"
                )
        lines.append(self.conclusion)
        return "\n".join(lines)

    def _cells(self) -> list[tuple[str, ...]]:
        """The main numbers by row, of each view."""
        whole, views = self.summary(), self._views
        one = [whole[name] for name in views]
        rows: list[tuple[str, list[float], str]] = [
            ("median R-hat of a weight", [s["rhat"]["0.5"] for s in one], ".3f"),
            *(
                (f"  in {name}", list(medians.values()), ".3f")
                for name, medians in whole["median_rhat_by_leaf"].items()
            ),
            ("95 % quantile of R-hat", [s["rhat"]["0.95"] for s in one], ".3f"),
            ("share with R-hat < 1.05", [s["share_rhat_below_1.05"] for s in one], ".3f"),
            ("median ESS of a weight", [s["ess"]["0.5"] for s in one], ".1f"),
            ("variance between chains", [s["variance_between_chains"] for s in one], ".4f"),
            ("weights not unimodal", [s["not_unimodal"] for s in one], ".4f"),
            ("median σ", [s["sigma_median"] for s in one], ".4f"),
        ]
        cells = [(name, *(format(v, spec) for v in values)) for name, values, spec in rows]
        return [("", *views), *cells]

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return html_table(self._cells())


def align_draws(
    samples: Samples,
    *,
    symmetry: Symmetry,
    per: Literal["draw", "chain"] = "draw",
    objective: ObjectiveLike = "l2",
    progress: Progress = "auto",
) -> Samples:
    """The draws in one basin, by one permutation per draw or one per chain.

    One per chain has far fewer degrees of freedom, so it is less optimistic; it is right if labels
    do not switch within chains.
    """
    if per == "draw":
        found = align_many(samples, symmetry=symmetry, objective=objective, progress=progress)
        return found.posteriors
    if per != "chain":
        raise ValueError(f"alignment is per draw or per chain, not per '{per}'")
    names, which = np.unique(np.asarray(samples.chain), return_inverse=True)
    chains = (samples.take(np.flatnonzero(which == number)) for number in range(len(names)))
    means = [chain.as_mean_field() for chain in chains]
    found = align_many(means, symmetry=symmetry, objective=objective, progress=progress)
    return symmetry.act(stack([found.permutations[number] for number in which]), samples)


def diagnose(
    samples: Samples,
    *,
    symmetry: Symmetry,
    key: jax.Array,
    align: Callable[[Samples], Samples | Permutation] | None = None,
    network: NetworkLike | None = None,
    data: Examples | None = None,
    likelihood: LikelihoodLike | None = None,
    weights: int | None = 20_000,
    pairs: int = 16,
    points: int = 11,
    progress: Progress = "auto",
) -> Diagnosis:
    """R-hat, ESS, unimodality, σ, projections and barriers, before and after alignment.

    Args:
      samples: unaligned draws of several chains.
      symmetry: the symmetry of the network.
      key: the key of the null and of the choice of weights and pairs.
      align: a function that brings draws into one basin, returning them moved or a stacked
        permutation; by default `align_draws`. It aligns the null as well.
      network, data: with both, barriers between pairs of draws are measured on the data.
      likelihood: of these barriers; by default that of the problem, else "categorical".
      weights: the number of weights, chosen at random, for statistics of single weights; None
        for all.
      pairs, points: pairs of draws for the barriers, and points along each line.
      progress: how to show progress, or a function of (what, done, total).

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> chain, noise = jnp.repeat(jnp.arange(2), 4), jax.random.normal(jax.random.key(0), (8, 2))
    >>> w = jnp.where(chain[:, None] == 0, jnp.array([1.0, 5.0]), jnp.array([5.0, 1.0]))
    >>> symmetry = ob.Symmetry.by_hand({"w": w[0]}, {"hidden": [("w", 0)]})
    >>> samples = ob.Samples({"w": w + 0.1 * noise}, chain)
    >>> found = ob.diagnose(samples, symmetry=symmetry, key=jax.random.key(1))
    >>> found.before.geometry.between > 0.9, found.after.geometry.between < 0.2
    (True, True)
    """
    if not isinstance(samples, Samples):
        raise TypeError(
            f"a {type(samples).__name__} has no chains; diagnose takes Samples of several chains"
        )
    names, counts = np.unique(np.asarray(samples.chain), return_counts=True)
    if len(names) < 2 or counts.min() < FEWEST_DRAWS:
        raise ValueError(
            f"there are {len(names)} chains with {counts.tolist()} draws; give at least two chains "
            f"of at least {FEWEST_DRAWS} draws"
        )
    if (network is None) != (data is None):
        raise ValueError("barriers need both network and data; give both or neither")
    symmetry.check_shapes(samples.like)
    with reporting(progress) as report:

        def moved(draws: Samples, what: str) -> Samples:
            report(f"aligning {what}", 0, 1)
            if align is None:
                return align_draws(draws, symmetry=symmetry, progress=report)
            found = align(draws)
            return symmetry.act(found, draws) if isinstance(found, Permutation) else found

        aligned = moved(samples, "draws")
        scrambled = scramble(aligned, symmetry=symmetry, key=subkey(key, "null"))
        null = moved(scrambled, "the null")
        which = choose_weights(samples, weights, key=subkey(key, "weights"))
        effective = effective_draws(aligned, which)
        across, within = choose_pairs(np.asarray(samples.chain), pairs, key=subkey(key, "pairs"))

        def barriers(draws: Samples, which: np.ndarray, what: str) -> Barriers | None:
            if network is None or data is None or not len(which):
                return None
            return pair_barriers(
                draws,
                which,
                network,
                data,
                likelihood=likelihood,
                points=points,
                progress=report,
                what=what,
            )

        def view(draws: Samples, what: str, found: Barriers | None) -> View:
            statistics = weight_statistics(draws, which, progress=report, what=what)
            share = folded_share(statistics.folding, effective)
            sigma = np.concatenate([np.ravel(s) for s in jax.tree.leaves(draws.moments()[1])])
            return View(statistics, sigma, geometry(draws), share, found)

        return Diagnosis(
            before=view(samples, "weights", barriers(samples, across, "barriers")),
            after=view(aligned, "aligned weights", barriers(aligned, across, "aligned barriers")),
            null=view(null, "weights of the null", None),
            within=barriers(samples, within, "barriers within chains"),
            aligned=aligned,
            chain=np.asarray(samples.chain),
            effective=effective,
            num_weights=len(which),
            leaf=leaf_of_weights(samples, which),
        )
