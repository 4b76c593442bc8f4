"""A predictive kept as averages over groups of draws, from which its error can be estimated.

All examples share the draws, so the error of anything measured on a predictive is over draws.
Measures such as agreement are not smooth in the probabilities, so the error comes from the
bootstrap: groups of draws are resampled with replacement, and everything is measured again.
A group of a chain is a run of consecutive draws, long enough to be nearly independent of the
others (batch means), which accounts for correlation along the chain. For independent draws
any groups will do.

With G groups the bootstrap variance is too small by a factor of (G − 1)/G, which is corrected.
Strata (the components of a mixture) are resampled separately.
"""

from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.strata import Stratum, each_draw, strata
from onebasin.evaluation.streaming import cut, log_probabilities
from onebasin.likelihoods import check_logits
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior, Samples
from onebasin.progress import Progress, reporting

GROUPS = 32  # of all draws together; the relative error of a standard error is then about 1/8


@dataclass(frozen=True, eq=False)
class GroupedPredictive:
    """Log probabilities [groups, n, classes], averaged over the draws of each group."""

    log_probs: np.ndarray = field(repr=False)
    share: np.ndarray
    """The weight of each group in the predictive; weights sum to one."""
    stratum: np.ndarray
    """The stratum of each group; groups are resampled within their stratum."""
    chain: np.ndarray
    """The chain of each group (zero for draws that are not from a chain)."""
    draws: int

    def shares(self, rng: np.random.Generator | None) -> np.ndarray:
        """The weights of the groups, or those of one bootstrap sample."""
        if rng is None:
            return self.share
        found = np.zeros_like(self.share)
        for one in np.unique(self.stratum):
            own = np.flatnonzero(self.stratum == one)
            counts = rng.multinomial(len(own), np.full(len(own), 1 / len(own)))
            drawn = counts * self.share[own]
            found[own] = self.share[own].sum() * drawn / drawn.sum()
        return found

    @property
    def inflation(self) -> float:
        """√(G/(G−1)) of the smallest stratum that has more than one group."""
        counts = np.unique(self.stratum, return_counts=True)[1]
        several = counts[counts > 1]
        return float(np.sqrt(several.min() / (several.min() - 1))) if len(several) else 1.0

    def mixed(self, shares: np.ndarray) -> np.ndarray:
        """Probabilities [n, classes]."""
        return np.tensordot(shares.astype(np.float32), self._probs, axes=1)

    @cached_property
    def _probs(self) -> np.ndarray:
        return np.exp(self.log_probs)

    def of_chains(self, chains: np.ndarray) -> "GroupedPredictive":
        """The predictive of some of the chains alone."""
        own = np.isin(self.chain, chains)
        share = self.share[own] / self.share[own].sum()
        draws = round(self.draws * float(self.share[own].sum()))
        return GroupedPredictive(
            self.log_probs[own], share, self.stratum[own], self.chain[own], draws
        )


def grouped_predictive(
    posterior: Posterior,
    network: NetworkLike,
    x: np.ndarray,
    *,
    key: jax.Array,
    num_samples: int = 128,
    groups: int = GROUPS,
    batch_size: int | None = None,
    progress: Progress = "auto",
) -> GroupedPredictive:
    """The predictive over classes, with draws averaged in `groups` groups.

    Samples with more than `num_samples` draws are thinned evenly, chain by chain.
    """
    apply = apply_of(network)
    if isinstance(posterior, Samples):
        posterior = _in_order(posterior, num_samples)
    sources = strata(posterior, num_samples, key=key)
    params, state, _, _ = sources[0].ends(0)
    plan = [_groups_of(source, posterior, groups / len(sources)) for source in sources]
    sizes = [np.bincount(own) for own in plan]
    first = np.cumsum([0, *map(len, sizes)])
    numbers = np.concatenate([start + own for start, own in zip(first[:-1], plan, strict=True)])
    blocks = cut(apply, params, state, x, lambda width: 4 * width * (first[-1] + 3), batch_size)
    check_logits((2, *blocks.outputs))
    parts, done = [], 0
    log_sizes = np.log(np.concatenate(sizes)).astype(np.float32)
    with reporting(progress) as report:
        for part, _, real in blocks:
            totals: list[jax.Array | None] = [None] * first[-1]
            for number, (_, params, state) in zip(numbers, each_draw(sources), strict=True):
                log_p, _ = log_probabilities(apply, params, state, part)
                totals[number] = _add(totals[number], log_p)
                done += 1
                report("draws", done, len(numbers) * len(blocks))
            parts.append(np.stack([np.asarray(total)[:real] for total in totals]))
    return GroupedPredictive(
        log_probs=np.concatenate(parts, axis=1) - log_sizes[:, None, None],
        share=np.concatenate(
            [s.weight(0.0) * own / s.count for s, own in zip(sources, sizes, strict=True)]
        ),
        stratum=np.repeat(np.arange(len(sizes)), [len(own) for own in sizes]),
        chain=_chains(posterior, numbers),
        draws=len(numbers),
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
