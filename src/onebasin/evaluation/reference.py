"""Posteriors against a reference posterior: Table 1 of Xiao et al. as a function.

For each posterior: agreement (share of examples with the reference's most probable class), total
variation (½ Σ|p − p_ref|, averaged over examples), NLL, calibration error and accuracy of its
predictive, and the accuracy of its mean network. Where targets are numbers: the Cramér distance to
the reference and the shift of the mean, NLL, CRPS and RMSE, and the RMSE of the mean network.
Standard errors are over draws: those of the posterior and, for the measures against the reference,
of the reference as well.

Total variation and Cramér distance between two predictives of finitely many draws are biased
upwards: they are positive even if both come from the same distribution. The row of one half of the
reference's chains against the other half shows by how much, and is the ceiling for any
approximation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from onebasin.data.examples import Examples, examples_of
from onebasin.evaluation.expectations import ScoreName, score_name
from onebasin.evaluation.grouped_numbers import GroupedNumbers, grouped_numbers
from onebasin.evaluation.grouped_predictive import GROUPS, GroupedPredictive, grouped_predictive
from onebasin.evaluation.groups import Groups
from onebasin.evaluation.measures import accuracy
from onebasin.evaluation.number_measures import rmse
from onebasin.evaluation.predicting import Predictive, predicting_likelihood, predictive
from onebasin.evaluation.tables import html_table, text_table
from onebasin.keys import subkey
from onebasin.likelihoods import LikelihoodLike, Regression, check_classes
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Kronecker, LowRank, LowRankPrecision, MeanField, Posterior, Samples
from onebasin.progress import Progress, reporting
from onebasin.trees import add_axis

RESAMPLES = 100  # the relative error of a standard error is then about 7 %
REFERENCE = "reference"
CEILING = "reference, half against half"


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error over draws."""

    value: float
    stderr: float

    def __format__(self, spec: str) -> str:
        # If the error is exactly zero, nothing was random.
        error = f" ± {format(self.stderr, spec)}" if self.stderr > 0 else ""
        return format(self.value, spec) + error


@dataclass(frozen=True)
class ReferenceRow:
    """One posterior against the reference; the measures are attributes too, as `row.nll`."""

    name: str
    draws: int
    measures: Mapping[str, Estimate]
    score_name: ScoreName
    mean_score: float | None
    """Accuracy or RMSE of the mean network; None for draws, whose mean is not one of them."""

    def __getattr__(self, name: str) -> Estimate:
        try:
            return self.__dict__["measures"][name]
        except KeyError:
            raise AttributeError(f"a row has no '{name}'") from None

    @property
    def mean_accuracy(self) -> float | None:
        """The accuracy of the mean network, if targets are classes."""
        return self.mean_score if self.score_name == "accuracy" else None

    def summary(self) -> dict[str, Any]:
        """The row as JSON-able numbers."""
        found: dict[str, Any] = {"name": self.name, "draws": self.draws}
        for name, one in self.measures.items():
            found |= {name: one.value, f"{name}_stderr": one.stderr}
        return {**found, f"mean_{self.score_name}": self.mean_score}


MEASURES = ("agreement", "total_variation", "nll", "calibration_error", "accuracy")
HEADS = {
    "agreement": "agreement",
    "total_variation": "TV",
    "calibration_error": "calibration",
    "nll": "NLL",
    "accuracy": "accuracy %",
    "cramer_distance": "Cramér distance",
    "mean_shift": "mean shift",
    "crps": "CRPS",
    "rmse": "RMSE",
}


@dataclass(frozen=True)
class ReferenceTable:
    """Posteriors against one reference on the same examples; made by `reference_table`.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> draws = ob.Samples({"w": jnp.arange(24.0).reshape(4, 2, 3)}, jnp.array([0, 0, 1, 1]))
    >>> q = ob.MeanField(*draws.moments())
    >>> data = jnp.eye(2), jnp.array([2, 2])
    >>> found = ob.reference_table({"q": q}, draws, lambda p, x: x @ p["w"], data,
    ...                            key=jax.random.key(0), num_samples=4)
    >>> found
    ReferenceTable(3 rows, 2 examples, 4 samples)
    >>> found["q"].mean_accuracy
    1.0
    """

    rows: tuple[ReferenceRow, ...]
    num_examples: int
    num_samples: int

    def __getitem__(self, name: str) -> ReferenceRow:
        by_name = {row.name: row for row in self.rows}
        if name not in by_name:
            raise KeyError(f"there is no row '{name}'; there are {list(by_name)}")
        return by_name[name]

    def summary(self) -> dict[str, Any]:
        """The table as JSON-able numbers."""
        rows = [row.summary() for row in self.rows]
        return {"examples": self.num_examples, "samples": self.num_samples, "rows": rows}

    def table(self) -> str:
        """The table as text, one row for each posterior; ± is one standard error over draws."""
        return text_table(self._cells())

    def _cells(self) -> list[tuple[str, ...]]:
        classes = self.rows[0].score_name == "accuracy"
        heads = [HEADS[name] for name in self.rows[0].measures]
        lines: list[tuple[str, ...]] = [("", *heads, f"of the mean{' %' * classes}")]
        for row in self.rows:
            mean = "–" if row.mean_score is None else _shown(row.score_name, row.mean_score)
            cells = (_shown(name, one) for name, one in row.measures.items())
            lines.append((row.name, *cells, mean))
        return lines

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        sizes = f"{self.num_examples:,} examples, {self.num_samples} samples"
        return f"ReferenceTable({len(self.rows)} rows, {sizes})"

    def _repr_html_(self) -> str:
        return html_table(self._cells())


def reference_table(
    posteriors: Mapping[str, Posterior],
    reference: Posterior,
    network: NetworkLike,
    data: Examples,
    *,
    key: jax.Array,
    likelihood: LikelihoodLike | None = None,
    num_samples: int = 128,
    ceiling: bool = True,
    groups: int = GROUPS,
    resamples: int = RESAMPLES,
    batch_size: int | None = None,
    progress: Progress = "auto",
) -> ReferenceTable:
    """Compare the predictives of posteriors with that of a reference.

    Args:
      posteriors: posteriors over the network's params, by name.
      reference: the posterior that counts as the truth, usually HMC draws. If a posterior was
        fitted to draws, give chains that were not used in the fit (and those that were as one of
        the posteriors).
      network: `apply(params, x)`, a `Network` or a `Problem`.
      data: a split with .x and .y, or a pair.
      key: the key of the draws and of the bootstrap.
      likelihood: by default that of the problem, else "categorical".
      num_samples: draws of each posterior; larger Samples are thinned evenly. A reference that is
        a set of Samples is used whole.
      ceiling: if the reference has several chains, add a row of one half of them against the
        other.
      groups, resamples: groups of draws in the bootstrap, and bootstrap samples.
      batch_size, progress: as for `predict`.

    Returns:
      a `ReferenceTable`; its first row is the reference itself.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> draws = ob.Samples({"w": jnp.arange(24.0).reshape(4, 2, 3)})
    >>> found = ob.reference_table({"same": draws}, draws, lambda p, x: x @ p["w"],
    ...                            (jnp.eye(2), jnp.array([2, 0])), key=jax.random.key(0))
    >>> f"{found['same'].agreement:.2f}", f"{found['same'].accuracy:.2f}"
    ('1.00', '0.50')
    """
    apply, resolved = apply_of(network), predicting_likelihood(network, likelihood)
    if num_samples < 2 or resamples < 2:
        raise ValueError("standard errors need at least 2 samples and 2 resamples")
    for name in posteriors:
        if name in (REFERENCE, CEILING):
            raise ValueError(f"'{name}' names a row of the reference; rename the posterior")
    x, y = examples_of(data)
    y = resolved.targets(y)
    whole = reference.num_draws if isinstance(reference, Samples) else num_samples

    def grouped(name: str, q: Posterior, count: int) -> GroupedPredictive | GroupedNumbers:
        with reporting(progress) as report:
            given: Any = {
                "key": subkey(key, name),
                "likelihood": resolved,
                "num_samples": count,
                "groups": groups,
                "batch_size": batch_size,
                "progress": lambda _, done, total: report(name, done, total),
            }
            if isinstance(resolved, Regression):
                return grouped_numbers(q, apply, x, y, **given)
            return grouped_predictive(q, apply, x, **given)

    truth = grouped(REFERENCE, reference, whole)
    if isinstance(truth, GroupedPredictive):
        scored = check_classes(y.reshape(-1), truth.log_probs.shape[-1])  # at every position
    else:
        scored = y
    seed = np.asarray(jax.random.key_data(subkey(key, "bootstrap"))).ravel().tolist()

    def row(name: str, own: Groups, against: Groups, q: Posterior | None) -> ReferenceRow:
        found = compare(own, against, scored, resamples, seed)
        mean = None
        if isinstance(q, MeanField | LowRank | LowRankPrecision | Kronecker):
            point = Samples(add_axis(q.mean), state=add_axis(q.state))
            mean = score_of_one(point, apply, resolved, x, y, batch_size)
        return ReferenceRow(name, own.draws, found, score_name(resolved), mean)

    rows = [row(REFERENCE, truth, truth, reference)]
    chains = np.unique(truth.chain)
    if ceiling and isinstance(reference, Samples) and len(chains) > 1:
        first, second = np.array_split(chains, 2)
        rows.append(row(CEILING, truth.of_chains(first), truth.of_chains(second), None))
    for name, q in posteriors.items():
        own = truth if q is reference else grouped(name, q, num_samples)
        rows.append(row(name, own, truth, q))
    return ReferenceTable(tuple(rows), len(y), num_samples)


def _shown(name: str, value: Estimate | float) -> str:
    if name != "accuracy":
        return f"{value:.4f}"
    if isinstance(value, Estimate):
        return f"{Estimate(100 * value.value, 100 * value.stderr):.2f}"
    return f"{100 * value:.2f}"


def compare(
    own: Groups, reference: Groups, y: np.ndarray, resamples: int, seed: list[int]
) -> dict[str, Estimate]:
    """The measures of one predictive against another and the targets, with bootstrap errors.

    Both sides are resampled; a predictive that is its own reference is resampled with it.
    """
    value = own.measured(reference, y, own.share, reference.share)
    rng = np.random.default_rng(seed)
    again = []
    for _ in range(resamples):
        mine = own.shares(rng)
        theirs = mine if own is reference else reference.shares(rng)
        again.append(list(own.measured(reference, y, mine, theirs).values()))
    # The computed std of equal numbers may differ from zero by rounding.
    std = np.where(np.ptp(again, axis=0) == 0, 0.0, np.std(again, axis=0, ddof=1))
    factor = max(own.inflation, reference.inflation)
    pairs = zip(value.items(), std * factor, strict=True)
    return {name: Estimate(v, float(s)) for (name, v), s in pairs}


def score_of_one(
    point: Samples,
    network: NetworkLike,
    likelihood: LikelihoodLike,
    x: np.ndarray,
    y: np.ndarray,
    batch_size: int | None,
) -> float:
    """Accuracy or RMSE of a single network."""
    key = jax.random.key(0)  # has no effect: the one draw is used
    found = predictive(
        point, network, x, key=key, likelihood=likelihood, num_samples=1, batch_size=batch_size
    )
    return accuracy(found, y) if isinstance(found, Predictive) else rmse(found, y)
