"""A predictive kept as averages over groups of draws, from which its error can be estimated.

All examples share the draws, so the error of anything measured on a predictive is over draws.
Measures such as agreement are not smooth in the probabilities, so the error comes from the
bootstrap: groups of draws are resampled with replacement, and everything is measured again.
A group of a chain is a run of consecutive draws, long enough to be nearly independent of the
others (batch means), which accounts for correlation along the chain. For independent draws
any groups will do.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation import measures
from onebasin.evaluation.groups import Groups
from onebasin.evaluation.strata import Stratum, each_draw, strata
from onebasin.evaluation.streaming import cut, log_probabilities
from onebasin.likelihoods import Classification, LikelihoodLike
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior, Samples
from onebasin.problem import likelihood_for
from onebasin.progress import Progress, reporting

GROUPS = 32  # of all draws together; the relative error of a standard error is then about 1/8


@dataclass(frozen=True, eq=False)
class GroupedPredictive(Groups):
    """Log probabilities [groups, n, classes], averaged over the draws of each group."""

    log_probs: np.ndarray = field(repr=False)
    share: np.ndarray
    stratum: np.ndarray
    chain: np.ndarray
    draws: int

    def mixed(self, shares: np.ndarray) -> np.ndarray:
        """Probabilities [n, classes]."""
        return np.tensordot(shares.astype(np.float32), self._probs, axes=1)

    @cached_property
    def _probs(self) -> np.ndarray:
        return np.exp(self.log_probs)

    def of_chains(self, chains: np.ndarray) -> "GroupedPredictive":
        """The predictive of some of the chains alone."""
        own, share, draws = self.part(chains)
        return GroupedPredictive(
            self.log_probs[own], share, self.stratum[own], self.chain[own], draws
        )

    def measured(
        self,
        reference: "GroupedPredictive",
        y: np.ndarray,
        mine: np.ndarray,
        theirs: np.ndarray,
    ) -> dict[str, float]:
        """The measures against a reference and labels, for these weights of the groups of both."""
        p = self.mixed(mine)
        q = p if self is reference else reference.mixed(theirs)
        # The label's probability is summed in log space over the groups in use: it may be too small
        # for float32, above all without the group in which it is largest.
        used = mine > 0
        label = self.log_probs[used][:, np.arange(len(y)), y]
        top = label.max(axis=0)
        top = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            log_p = top + np.log(mine[used] @ np.exp(label - top))
        return {
            "agreement": float((p.argmax(-1) == q.argmax(-1)).mean()),
            "total_variation": float(0.5 * np.abs(p - q).sum(-1).mean(dtype=np.float64)),
            "nll": -float(log_p.mean(dtype=np.float64)),
            "calibration_error": measures.calibration_error(p, y),
            "accuracy": float((p.argmax(-1) == y).mean()),
        }


class Plan(NamedTuple):
    """The draws of a posterior in order, the number of the group of each, and the groups."""

    sources: list[Stratum]
    numbers: np.ndarray
    sizes: np.ndarray
    """The number of draws of every group."""
    share: np.ndarray
    stratum: np.ndarray
    chain: np.ndarray

    @classmethod
    def of(cls, posterior: Posterior, num_samples: int, groups: int, *, key: jax.Array) -> "Plan":
        """Samples with more than `num_samples` draws are thinned evenly, chain by chain."""
        if isinstance(posterior, Samples):
            posterior = _in_order(posterior, num_samples)
        sources = strata(posterior, num_samples, key=key)
        plan = [_groups_of(source, posterior, groups / len(sources)) for source in sources]
        sizes = [np.bincount(own) for own in plan]
        first = np.cumsum([0, *map(len, sizes)])
        numbers = np.concatenate([start + own for start, own in zip(first[:-1], plan, strict=True)])
        share = [s.weight(0.0) * own / s.count for s, own in zip(sources, sizes, strict=True)]
        return cls(
            sources,
            numbers,
            np.concatenate(sizes),
            np.concatenate(share),
            np.repeat(np.arange(len(sizes)), [len(own) for own in sizes]),
            _chains(posterior, numbers),
        )


def grouped_predictive(
    posterior: Posterior,
    network: NetworkLike,
    x: np.ndarray,
    *,
    key: jax.Array,
    likelihood: LikelihoodLike | None = None,
    num_samples: int = 128,
    groups: int = GROUPS,
    batch_size: int | None = None,
    progress: Progress = "auto",
) -> GroupedPredictive:
    """The predictive over classes, with draws averaged in `groups` groups.

    Samples with more than `num_samples` draws are thinned evenly, chain by chain.
    """
    apply = apply_of(network)
    resolved = likelihood_for(network, likelihood)
    assert isinstance(resolved, Classification)
    plan = Plan.of(posterior, num_samples, groups, key=key)
    params, state, _, _ = plan.sources[0].ends(0)
    count = len(plan.sizes)
    bytes_per_row = lambda width: 4 * max(width, 2) * (count + 3)
    blocks = cut(apply, params, state, x, bytes_per_row, batch_size, likelihood=resolved)
    parts, done = [], 0
    log_sizes = np.log(plan.sizes).astype(np.float32)
    with reporting(progress) as report:
        for part, _, real in blocks:
            totals: list[jax.Array | None] = [None] * count
            for number, (_, params, state) in zip(
                plan.numbers, each_draw(plan.sources), strict=True
            ):
                log_p, _ = log_probabilities(apply, resolved, params, state, part)
                totals[number] = _add(totals[number], log_p)
                done += 1
                report("draws", done, len(plan.numbers) * len(blocks))
            parts.append(np.stack([np.asarray(total)[: real * blocks.each] for total in totals]))
    return GroupedPredictive(
        log_probs=np.concatenate(parts, axis=1) - log_sizes[:, None, None],
        share=plan.share,
        stratum=plan.stratum,
        chain=plan.chain,
        draws=len(plan.numbers),
    )


@jax.jit
def _add(total: jax.Array | None, log_p: jax.Array) -> jax.Array:
    return log_p if total is None else jnp.logaddexp(total, log_p)


def _in_order(q: Samples, most: int) -> Samples:
    """At most `most` evenly spaced draws, sorted by chain."""
    order = np.argsort(np.asarray(q.chain), kind="stable")
    if most < q.num_draws:
        order = order[np.arange(most) * q.num_draws // most]
    return q.take(order)


def _groups_of(source: Stratum, posterior: Posterior, groups: float) -> np.ndarray:
    """The number of each draw's group: consecutive draws of one chain, in equal numbers."""
    chain = posterior.chain if isinstance(posterior, Samples) else np.zeros(source.count, int)
    names, counts = np.unique(np.asarray(chain), return_counts=True)
    each = max(2, int(groups // len(names)))
    numbers, first = [], 0
    for count in counts:
        own = np.arange(count) * min(each, count) // count
        numbers.append(first + own)
        first += own[-1] + 1
    return np.concatenate(numbers)


def _chains(posterior: Posterior, numbers: np.ndarray) -> np.ndarray:
    """The chain of each group."""
    groups = np.arange(numbers[-1] + 1)
    if not isinstance(posterior, Samples):
        return np.zeros_like(groups)
    return np.asarray(posterior.chain)[np.searchsorted(numbers, groups)]
