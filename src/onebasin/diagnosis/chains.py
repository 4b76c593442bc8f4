"""Do chains agree on the weights, once permutations are out of the way? `diagnose`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment import align_many
from onebasin.alignment.objective import ObjectiveLike
from onebasin.data.examples import Examples
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
from onebasin.inference.diagnostics import FEWEST_DRAWS
from onebasin.keys import subkey
from onebasin.networks import NetworkLike
from onebasin.posterior import MeanField, Samples
from onebasin.progress import Progress, reporting
from onebasin.symmetry import Permutation, Symmetry, stack
from onebasin.trees import take_entry

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class View:
    """What is known of the draws as they lie in one arrangement."""

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
    """The draws before and after alignment, and the null: what alignment does to chains that
    share no mode (see `scramble`)."""

    before: View
    after: View
    null: View
    within: Barriers | None
    """Barriers between draws half a chain apart: they need no alignment."""
    aligned: Samples = field(repr=False)
    chain: np.ndarray = field(repr=False)
    effective: float
    """Median effective number of draws within chains, which the test of unimodality uses."""
    num_weights: int
    """Weights that R-hat, ESS and unimodality were worked out for."""
    leaf: np.ndarray = field(repr=False)
    """The key path of the leaf that each of them is in."""

    @property
    def between_expected(self) -> float:
        """The variance between chains to expect of one law: (chains − 1)/(effective draws − 1)."""
        chains = len(np.unique(self.chain))
        return (chains - 1) / max(self.effective - 1, chains - 1)

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
        """The main numbers as text."""
        views = self._views.values()
        one = [v.summary() for v in views]
        rows: list[tuple[str, list[float], str]] = [
            ("median R-hat of a weight", [s["rhat"]["0.5"] for s in one], ".3f"),
            *(
                (f"  in {name}", list(medians.values()), ".3f")
                for name, medians in self.summary()["median_rhat_by_leaf"].items()
            ),
            ("95 % quantile of R-hat", [s["rhat"]["0.95"] for s in one], ".3f"),
            ("share with R-hat < 1.05", [s["share_rhat_below_1.05"] for s in one], ".3f"),
            ("median ESS of a weight", [s["ess"]["0.5"] for s in one], ".1f"),
            ("variance between chains", [v.geometry.between for v in views], ".4f"),
            ("weights not unimodal", [v.not_unimodal for v in views], ".4f"),
            ("median σ", [s["sigma_median"] for s in one], ".4f"),
        ]
        wide = max(len(name) for name, _, _ in rows)
        lines = [f"{'':<{wide}}  {'before':>9}  {'after':>9}  {'null':>9}"]
        for name, values, spec in rows:
            cells = "  ".join(f"{format(v, spec):>9}" for v in values)
            lines.append(f"{name:<{wide}}  {cells}")
        lines.append(
            f"(variance between chains of one law: {self.before.geometry.between_expected:.4f} for "
            f"independent draws, {self.between_expected:.4f} for as many as are effective; "
            "the null is the same alignment of chains that share no mode)"
        )
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
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def align_draws(
    samples: Samples,
    *,
    symmetry: Symmetry,
    per: Literal["draw", "chain"] = "draw",
    objective: ObjectiveLike = "l2",
    progress: Progress = "auto",
) -> Samples:
    """The draws in one basin: each moved by its own permutation, or each chain by one.

    One for each chain has far fewer choices to make, so it flatters less; it is right where
    labels do not switch within chains.
    """
    if per == "draw":
        found = align_many(samples, symmetry=symmetry, objective=objective, progress=progress)
        return found.posteriors
    if per != "chain":
        raise ValueError(f"align per draw or per chain, not per '{per}'")
    names, which = np.unique(np.asarray(samples.chain), return_inverse=True)
    means = []
    for number in range(len(names)):
        own = np.flatnonzero(which == number)
        means.append(MeanField(*Samples(take_entry(samples.draws, own)).moments()))
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
    weights: int | None = 20_000,
    pairs: int = 16,
    points: int = 11,
    progress: Progress = "auto",
) -> Diagnosis:
    """R-hat, ESS, modes, spread, projections and barriers, before and after alignment.

    Args:
      samples: draws of several chains, as they were drawn.
      symmetry: the network's.
      align: what brings draws into one basin, returning them moved or a stacked permutation;
        by default `align_draws`. The null is aligned by it as well.
      network, data: with both, barriers between pairs of draws are measured on the data.
      weights: at most so many weights, chosen at random, are looked at one by one; None for all.
      pairs, points: how many pairs of draws, and points along the line between two.
      progress: how to show progress, or a function of (what, done, total).
    """
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
                draws, which, network, data, points=points, progress=report, what=what
            )

        def view(draws: Samples, what: str, found: Barriers | None) -> View:
            statistics = weight_statistics(draws, which, progress=report, what=what)
            share = folded_share(statistics.folding, effective)
            return View(statistics, _sigma(draws), geometry(draws), share, found)

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


def _sigma(samples: Samples) -> np.ndarray:
    _, std = samples.moments()
    return np.concatenate([np.asarray(jnp.ravel(leaf)) for leaf in jax.tree.leaves(std)])
