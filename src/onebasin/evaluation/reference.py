"""Posteriors against a reference posterior: Table 1 of Xiao et al. as a function.

For each posterior: agreement (share of examples with the reference's most probable class), total
variation (½ Σ|p − p_ref|, averaged over examples), NLL, calibration error and accuracy of the
predictive of its draws, and the accuracy of the network of its mean. Standard errors are over
draws, those of the posterior and, for agreement and total variation, of the reference as well.

Total variation between two predictives of finitely many draws is too large: it is above zero even
if both are of the same law. The row of one half of the reference's chains against the other half
shows by how much, and is the ceiling of what any stand-in can be seen to reach.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from onebasin.data.examples import Examples, examples_of
from onebasin.evaluation import measures
from onebasin.evaluation.grouped_predictive import GROUPS, GroupedPredictive, grouped_predictive
from onebasin.evaluation.predicting import predictive
from onebasin.keys import subkey
from onebasin.likelihoods import check_classes
from onebasin.networks import Apply, NetworkLike, apply_of
from onebasin.posterior import LowRank, MeanField, Posterior, Samples
from onebasin.progress import Progress, reporting
from onebasin.trees import add_axis

RESAMPLES = 100  # the error of a standard error is then about 7 %
REFERENCE = "reference"
CEILING = "reference, half against half"


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error over draws."""

    value: float
    stderr: float

    def __format__(self, spec: str) -> str:
        error = format(self.stderr, spec)
        # An error of exactly zero is none: nothing was random.
        return format(self.value, spec) + (f" ± {error}" if self.stderr > 0 else "")


@dataclass(frozen=True)
class ReferenceRow:
    """One posterior against the reference."""

    name: str
    draws: int
    agreement: Estimate
    total_variation: Estimate
    nll: Estimate
    calibration_error: Estimate
    accuracy: Estimate
    mean_accuracy: float | None
    """Of the network of the mean; None for draws, whose mean is no member of them."""

    def summary(self) -> dict[str, Any]:
        """The row as JSON-able numbers."""
        found: dict[str, Any] = {"name": self.name, "draws": self.draws}
        for name in MEASURES:
            one: Estimate = getattr(self, name)
            found |= {name: one.value, f"{name}_stderr": one.stderr}
        return {**found, "mean_accuracy": self.mean_accuracy}


MEASURES = ("agreement", "total_variation", "nll", "calibration_error", "accuracy")


@dataclass(frozen=True)
class ReferenceTable:
    """Every posterior against one reference, on the same examples."""

    rows: tuple[ReferenceRow, ...]
    num_examples: int
    num_samples: int
    _by_name: dict[str, ReferenceRow] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {row.name: row for row in self.rows})

    def __getitem__(self, name: str) -> ReferenceRow:
        if name not in self._by_name:
            raise KeyError(f"there is no row '{name}'; there are {list(self._by_name)}")
        return self._by_name[name]

    def summary(self) -> dict[str, Any]:
        """The table as JSON-able numbers."""
        rows = [row.summary() for row in self.rows]
        return {"examples": self.num_examples, "samples": self.num_samples, "rows": rows}

    def table(self) -> str:
        """The table as text, one row for each posterior; ± is one standard error over draws."""
        heads = ("", "agreement", "TV", "NLL", "calibration", "accuracy %", "of the mean %")
        lines: list[tuple[str, ...]] = [heads]
        for row in self.rows:
            mean = "–" if row.mean_accuracy is None else f"{100 * row.mean_accuracy:.2f}"
            percent = Estimate(100 * row.accuracy.value, 100 * row.accuracy.stderr)
            four = (row.agreement, row.total_variation, row.nll, row.calibration_error)
            lines.append((row.name, *(f"{one:.4f}" for one in four), f"{percent:.2f}", mean))
        wide = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, wide, strict=True))
            ).rstrip()
            for line in lines
        )

    def __str__(self) -> str:
        return self.table()


def reference_table(
    posteriors: Mapping[str, Posterior],
    reference: Posterior,
    network: NetworkLike,
    data: Examples,
    *,
    key: jax.Array,
    num_samples: int = 128,
    ceiling: bool = True,
    groups: int = GROUPS,
    resamples: int = RESAMPLES,
    batch_size: int | None = None,
    progress: Progress = "auto",
) -> ReferenceTable:
    """Compare posteriors with a reference by what they predict.

    Args:
      posteriors: by name, any posteriors over the network's params.
      reference: the posterior that counts as the truth, usually HMC draws. To be fair to a
        posterior that was fitted to draws, give chains here that were not used in the fit (and
        those that were as one of the posteriors).
      network: `apply(params, x)`, a `Network` or a `Problem`.
      data: a split with .x and .y, or a pair.
      num_samples: draws of each posterior; of more draws than that, evenly spaced ones are used. The
        reference is used whole if it is a set of draws.
      ceiling: if the reference has two chains or more, add a row of half of them against the
        other half, both with half of the draws.
      groups, resamples: of the bootstrap over draws; see `grouped`.
      progress: how to show progress, or a function of (what, done, total).

    Returns:
      a `ReferenceTable`; its first row is the reference itself.
    """
    apply = apply_of(network)
    if num_samples < 2 or resamples < 2:
        raise ValueError("standard errors need at least 2 samples and 2 resamples")
    for name in posteriors:
        if name in (REFERENCE, CEILING):
            raise ValueError(f"'{name}' is the name of a row of its own; rename the posterior")
    x, y = examples_of(data)
    whole = reference.num_draws if isinstance(reference, Samples) else num_samples

    def grouped(name: str, q: Posterior, count: int) -> GroupedPredictive:
        with reporting(progress) as report:
            return grouped_predictive(
                q,
                apply,
                x,
                key=subkey(key, name),
                num_samples=count,
                groups=groups,
                batch_size=batch_size,
                progress=lambda _, done, total: report(name, done, total),
            )

    truth = grouped(REFERENCE, reference, whole)
    y = check_classes(y, truth.log_probs.shape[-1])
    seed = np.asarray(jax.random.key_data(subkey(key, "bootstrap"))).ravel().tolist()

    def row(name: str, own: GroupedPredictive, against: GroupedPredictive, q: Any) -> ReferenceRow:
        found = compare(own, against, y, resamples, seed)
        mean = _mean_accuracy(q, apply, x, y, batch_size)
        return ReferenceRow(name, own.draws, mean_accuracy=mean, **found)

    rows = [row(REFERENCE, truth, truth, reference)]
    chains = np.unique(truth.chain)
    if ceiling and isinstance(reference, Samples) and len(chains) > 1:
        first, second = np.array_split(chains, 2)
        rows.append(row(CEILING, truth.of_chains(first), truth.of_chains(second), None))
    for name, q in posteriors.items():
        own = truth if q is reference else grouped(name, q, num_samples)
        rows.append(row(name, own, truth, q))
    return ReferenceTable(tuple(rows), len(y), num_samples)


def compare(
    own: GroupedPredictive,
    reference: GroupedPredictive,
    y: np.ndarray,
    resamples: int,
    seed: list[int],
) -> dict[str, Estimate]:
    """The measures of one predictive against another and the labels, with bootstrap errors.

    Both sides are drawn anew; a predictive that is its own reference moves with it.
    """
    value = _measured(own, reference, y, own.share, reference.share)
    rng = np.random.default_rng(seed)
    again = []
    for _ in range(resamples):
        mine = own.shares(rng)
        theirs = mine if own is reference else reference.shares(rng)
        again.append(_measured(own, reference, y, mine, theirs))
    # What never moved has no error; the standard deviation of equal numbers may round to some.
    spread = np.where(np.ptp(again, axis=0) == 0, 0.0, np.std(again, axis=0, ddof=1))
    factor = max(own.inflation, reference.inflation)
    pairs = zip(MEASURES, value, spread * factor, strict=True)
    return {name: Estimate(float(v), float(s)) for name, v, s in pairs}


def _measured(
    own: GroupedPredictive,
    reference: GroupedPredictive,
    y: np.ndarray,
    mine: np.ndarray,
    theirs: np.ndarray,
) -> list[float]:
    p = own.mixed(mine)
    q = p if own is reference else reference.mixed(theirs)
    # The label's probability in logs, of the groups that are in: it may be too small for the sum
    # of probabilities, and smaller still without the group where it is largest.
    used = mine > 0
    label = own.log_probs[used][:, np.arange(len(y)), y]
    top = label.max(axis=0)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        log_p = top + np.log(mine[used] @ np.exp(label - top))
    return [
        float((p.argmax(-1) == q.argmax(-1)).mean()),
        float(0.5 * np.abs(p - q).sum(-1).mean(dtype=np.float64)),
        -float(log_p.mean(dtype=np.float64)),
        measures.calibration_error(p, y),
        float((p.argmax(-1) == y).mean()),
    ]


def _mean_accuracy(
    q: Any, apply: Apply, x: np.ndarray, y: np.ndarray, batch_size: int | None
) -> float | None:
    if not isinstance(q, MeanField | LowRank):
        return None
    point = Samples(add_axis(q.mean), state=add_axis(q.state))
    found = predictive(point, apply, x, key=jax.random.key(0), num_samples=1, batch_size=batch_size)
    return measures.accuracy(found, y)
