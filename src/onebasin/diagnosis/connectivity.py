"""Are draws connected by straight lines? Barriers between pairs of single draws."""

from dataclasses import dataclass, field

import jax
import numpy as np

from onebasin.data.examples import Examples
from onebasin.evaluation.profiles import profile
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import NetworkLike
from onebasin.paths import line
from onebasin.posterior import Samples
from onebasin.progress import Progress, reporting
from onebasin.trees import take_entry


@dataclass(frozen=True, eq=False)
class Barriers:
    """The loss barrier of the straight line between two draws, for several pairs."""

    pairs: np.ndarray = field(repr=False)
    """Indices of the draws, [pairs, 2]."""
    barrier: np.ndarray
    excess: np.ndarray
    """The signed largest excess over interior points."""

    def summary(self) -> dict[str, float]:
        """Mean over pairs, its standard error, and the largest."""
        count = len(self.barrier)
        error = self.barrier.std(ddof=1) / np.sqrt(count) if count > 1 else float("nan")
        return {
            "pairs": count,
            "mean": float(self.barrier.mean()),
            "stderr": float(error),
            "largest": float(self.barrier.max()),
            "mean_excess": float(self.excess.mean()),
        }


def choose_pairs(chain: np.ndarray, count: int, *, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """`count` pairs of draws from different chains, and as many half a chain apart.

    Pairs within a chain need no alignment and are the baseline.
    """
    chain = np.asarray(chain)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    members = [np.flatnonzero(chain == one) for one in np.unique(chain)]
    across, within = [], []
    for _ in range(count if len(members) > 1 else 0):
        a, b = rng.choice(len(members), 2, replace=False)
        across.append((rng.choice(members[a]), rng.choice(members[b])))
    long = [own for own in members if len(own) > 1]
    for i in range(count if long else 0):
        own = long[i % len(long)]
        start = rng.integers(len(own) - len(own) // 2)
        within.append((own[start], own[start + len(own) // 2]))
    return np.array(across, int).reshape(-1, 2), np.array(within, int).reshape(-1, 2)


def pair_barriers(
    samples: Samples,
    pairs: np.ndarray,
    network: NetworkLike,
    data: Examples,
    *,
    likelihood: LikelihoodLike | None = None,
    points: int = 11,
    progress: Progress = "auto",
    what: str = "barriers",
) -> Barriers:
    """The barrier of each pair. Nothing is random along a line between two networks."""
    barriers, excesses = [], []
    with reporting(progress) as report:
        for done, (i, j) in enumerate(np.asarray(pairs)):
            states = (take_entry(samples.state, k) for k in (i, j))
            path = line(samples.draw(i), samples.draw(j), *states)
            key = jax.random.key(0)  # has no effect
            found = profile(
                path,
                network,
                data,
                key=key,
                points=points,
                num_samples=1,
                likelihood=likelihood,
            )
            barriers.append(found.barrier)
            excesses.append(found.largest_excess)
            report(what, done + 1, len(pairs))
    return Barriers(np.asarray(pairs), np.array(barriers), np.array(excesses))
