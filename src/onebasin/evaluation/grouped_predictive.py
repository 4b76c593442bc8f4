"""A predictive kept as the averages of groups of draws, so that its error can be told.

Draws are shared by all examples: the error of anything measured on a predictive is over draws.
Measures such as agreement are not smooth in the probabilities, so the error comes from the
bootstrap: groups of draws are drawn anew, with replacement, and everything is measured again.
For a chain a group is a stretch of it, long enough to be nearly independent of the others (batch
means), so correlation along the chain counts; for independent draws any groups do.

With G groups the bootstrap's variance is too small by (G − 1)/G, which is put right. Strata (the
components of a mixture) are drawn anew each by itself.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.strata import Stratum, strata
from onebasin.evaluation.streaming import cut, log_probabilities
from onebasin.likelihoods import check_logits
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior, Samples
from onebasin.progress import Progress, reporting

GROUPS = 32  # of all draws together; enough for an error that is itself good to about an eighth


@dataclass(frozen=True, eq=False)
class GroupedPredictive:
    """Log probabilities [groups, n, classes], averaged over the draws of each group."""

    log_probs: np.ndarray = field(repr=False)
    share: np.ndarray
    """What each group weighs in the predictive; they sum to one."""
    stratum: np.ndarray
    """Groups of one number are drawn anew together."""
    chain: np.ndarray
    """The chain each group is from (zero for draws that are from none)."""
    draws: int

    def shares(self, rng: np.random.Generator | None) -> np.ndarray:
        """The groups' weights: as they are, or of one bootstrap sample."""
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

    Samples with more than `num_samples` draws are thinned at even steps, chain by chain.
    """
    apply = apply_of(network)
    if isinstance(posterior, Samples):
        posterior = _in_order(posterior, num_samples)
    sources = strata(posterior, num_samples, key=key)
    params, state, _, _ = sources[0].ends(0)
    plan = [_groups_of(source, posterior, groups / len(sources)) for source in sources]
    count = sum(own.max() + 1 for own in plan)
    blocks, shape = cut(
        apply, params, state, x, None, None, lambda width: 4 * width * (count + 3), batch_size
    )
    check_logits((2, *shape))
    parts, done = [], 0
    work = sum(source.count for source in sources) * -(-len(x) // blocks.rows)
    with reporting(progress) as report:
        for part, _, real in blocks:
            found = []
            for source, own in zip(sources, plan, strict=True):
                totals: list[Any] = [None] * (own.max() + 1)
                for s in range(source.count):
                    params, state, _, _ = source.ends(s)
                    log_p, _ = log_probabilities(apply, params, state, part)
                    totals[own[s]] = _add(totals[own[s]], log_p)
                    done += 1
                    report("draws", done, work)
                sizes = np.bincount(own)
                found += [
                    np.asarray(total)[:real] - np.log(size).astype(np.float32)
                    for total, size in zip(totals, sizes, strict=True)
                ]
            parts.append(np.stack(found))
    share = [
        source.weight(0.0) * np.bincount(own) / len(own)
        for source, own in zip(sources, plan, strict=True)
    ]
    return GroupedPredictive(
        log_probs=np.concatenate(parts, axis=1),
        share=np.concatenate(share),
        stratum=np.repeat(np.arange(len(plan)), [own.max() + 1 for own in plan]),
        chain=_chains(posterior, plan),
        draws=sum(source.count for source in sources),
    )


@jax.jit
def _add(total: Any, log_p: jax.Array) -> jax.Array:
    return log_p if total is None else jnp.logaddexp(total, log_p)


def _in_order(q: Samples, most: int) -> Samples:
    """At most so many draws at even steps, chain after chain."""
    order = np.argsort(np.asarray(q.chain), kind="stable")
    if most < q.num_draws:
        order = order[np.arange(most) * q.num_draws // most]
    return q.take(order)


def _groups_of(source: Stratum, posterior: Any, groups: float) -> np.ndarray:
    """The number of each draw's group: stretches of even length, none over two chains."""
    chain = np.asarray(posterior.chain) if isinstance(posterior, Samples) else None
    chain = np.zeros(source.count, int) if chain is None else chain
    names, counts = np.unique(chain, return_counts=True)
    each = max(2, int(groups // len(names)))
    numbers, first = [], 0
    for count in counts:
        own = np.arange(count) * min(each, count) // count
        numbers.append(first + own)
        first += own[-1] + 1
    return np.concatenate(numbers)


def _chains(posterior: Any, plan: list[np.ndarray]) -> np.ndarray:
    if not isinstance(posterior, Samples):
        return np.zeros(sum(own.max() + 1 for own in plan), int)
    (own,) = plan
    return np.asarray(posterior.chain)[np.searchsorted(own, np.arange(own.max() + 1))]
