"""A predictive of numbers with its draws in groups: its measures for any weights of the groups.

CRPS and Cramér distance are quadratic in the weights (see `number_measures`), so with the mean
absolute differences between groups at hand a resampled value is a product with a small matrix.
"""

from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.grouped_predictive import GROUPS, Plan
from onebasin.evaluation.groups import Groups
from onebasin.evaluation.mixture_predictive import MixturePredictive, log_mean
from onebasin.evaluation.predicting import of_numbers, predicting_likelihood
from onebasin.likelihoods import LikelihoodLike, Regression
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior
from onebasin.progress import Progress, reporting


@dataclass(frozen=True, eq=False)
class GroupedNumbers(Groups):
    """A mixture predictive, the group of every draw, and the targets it is measured against."""

    predictive: MixturePredictive = field(repr=False)
    number: np.ndarray = field(repr=False)
    """The group of every draw."""
    share: np.ndarray
    stratum: np.ndarray
    chain: np.ndarray
    draws: int
    y: np.ndarray = field(repr=False)
    differences: dict[int, np.ndarray] = field(repr=False, default_factory=dict)
    """E|Y_g − Y_h| of the groups of this and of another, by its id."""

    def of_chains(self, chains: np.ndarray) -> "GroupedNumbers":
        """The predictive of some of the chains alone."""
        own, share, draws = self.part(chains)
        kept = own[self.number]
        number = (np.cumsum(own) - 1)[self.number[kept]]
        p = self.predictive
        weights = p.weights[kept] / p.weights[kept].sum()
        part = MixturePredictive(p.outputs[kept], weights, p.likelihood, p.target_shape, p.key)
        stratum, chain = self.stratum[own], self.chain[own]
        return GroupedNumbers(part, number, share, stratum, chain, draws, self.y)

    def measured(
        self, reference: "GroupedNumbers", y: np.ndarray, mine: np.ndarray, theirs: np.ndarray
    ) -> dict[str, float]:
        """The measures against a reference and targets, for these weights of the groups of both."""
        del y  # those of the predictive
        spread = mine @ self.difference(self) @ mine
        other_spread = theirs @ reference.difference(reference) @ theirs
        cross = mine @ self.difference(reference) @ theirs
        mean = np.tensordot(mine, self._means, axes=1)
        other = np.tensordot(theirs, reference._means, axes=1)
        square = np.tensordot(theirs, reference._squares, axes=1)
        std = np.sqrt(square - other**2)
        used = mine > 0
        logs = log_mean(self._logs[used], mine[used])
        return {
            "cramer_distance": float(cross - 0.5 * (spread + other_spread)),
            "mean_shift": float((np.abs(mean - other) / std).mean()),
            "nll": -float(logs.mean()),
            "crps": float(mine @ self._errors - 0.5 * spread),
            "rmse": float(np.sqrt((mean**2).mean())),
        }

    def difference(self, other: "GroupedNumbers") -> np.ndarray:
        """E|Y_g − Y_h| of every pair of groups."""
        if id(other) not in self.differences:
            same = other is self
            of_draws = self.predictive.own_difference if same else self._between(other)
            self.differences[id(other)] = self._averaging @ of_draws @ other._averaging.T
        return self.differences[id(other)]

    def _between(self, other: "GroupedNumbers") -> np.ndarray:
        return self.predictive.difference(other.predictive)

    @cached_property
    def _averaging(self) -> np.ndarray:
        """The matrix that averages over the draws of every group, [groups, draws]."""
        member = self.number == np.arange(len(self.share))[:, None]
        return member / member.sum(axis=1, keepdims=True)

    @property
    def _centre(self) -> np.ndarray:
        """Subtracted from all means, so that squares keep their digits."""
        return self.predictive.targets(self.y)

    @cached_property
    def _means(self) -> np.ndarray:
        """Mean of the targets by group, about the observed targets, [groups, n, targets]."""
        return np.tensordot(self._averaging, self.predictive.means - self._centre, axes=1)

    @cached_property
    def _squares(self) -> np.ndarray:
        """Mean square of the targets by group, about the observed targets."""
        p = self.predictive
        variance = np.asarray(p.likelihood.variance(jnp.asarray(p.flat)), np.float64)
        return np.tensordot(self._averaging, variance + (p.means - self._centre) ** 2, axes=1)

    @cached_property
    def _logs(self) -> np.ndarray:
        """Log of the mean density of every group at the targets, [groups, n]."""
        logs = self.predictive.log_densities(self.y)
        return np.stack([log_mean(logs, row) for row in self._averaging])

    @cached_property
    def _errors(self) -> np.ndarray:
        return self._averaging @ self.predictive.error(self.y)


def grouped_numbers(
    posterior: Posterior,
    network: NetworkLike,
    x: np.ndarray,
    y: np.ndarray,
    *,
    key: jax.Array,
    likelihood: LikelihoodLike | None = None,
    num_samples: int = 128,
    groups: int = GROUPS,
    batch_size: int | None = None,
    progress: Progress = "auto",
) -> GroupedNumbers:
    """The predictive of numbers, with its draws in `groups` groups."""
    resolved = predicting_likelihood(network, likelihood)
    assert isinstance(resolved, Regression)
    plan = Plan.of(posterior, num_samples, groups, key=key)
    shape = resolved.targets(y).shape[1:]
    with reporting(progress) as report:
        found = of_numbers(
            plan.sources, apply_of(network), resolved, x, shape, batch_size, report, key=key
        )
    found.targets(y)
    return GroupedNumbers(
        found, plan.numbers, plan.share, plan.stratum, plan.chain, len(plan.numbers), y
    )
