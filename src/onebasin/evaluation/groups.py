"""Draws in groups, which are resampled with replacement.

With G groups the bootstrap variance is too small by a factor of (G − 1)/G, which is corrected.
Strata (the components of a mixture) are resampled separately.
"""

from typing import Any

import numpy as np


class Groups:
    """The weights of groups of draws, and their resampling."""

    share: np.ndarray
    """The weight of each group in the predictive; weights sum to one."""
    stratum: np.ndarray
    """The stratum of each group; groups are resampled within their stratum."""
    chain: np.ndarray
    """The chain of each group (zero for draws that are not from a chain)."""
    draws: int

    def measured(
        self, reference: Any, y: np.ndarray, mine: np.ndarray, theirs: np.ndarray
    ) -> dict[str, float]:
        """The measures against a reference and targets, for these weights of the groups of both."""
        raise NotImplementedError

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

    def part(self, chains: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Which groups are of these chains, their weights, and the number of their draws."""
        own = np.isin(self.chain, chains)
        share = self.share[own] / self.share[own].sum()
        return own, share, round(self.draws * float(self.share[own].sum()))
