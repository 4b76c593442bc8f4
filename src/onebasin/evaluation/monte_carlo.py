"""The loss of the predictive at points of a path, its standard error and its bias.

With p_si the likelihood of draw s at example i and p̄_i = Σ_k w_k mean_{s∈k} p_si,

    L = −(1/N) Σ_i log p̄_i.

All examples share the draws, so the error of L is that of a mean over draws: to first
order, draw s of stratum k (with S_k draws) changes L by u_s / S_k, where

    u_s = −(1/N) Σ_i w_k (p_si − p̄_ki) / p̄_i,        Var L ≈ Σ_k Var_s(u_s) / S_k.

The logarithm is concave, so L is too large by ½ (1/N) Σ_i Var(p̄_i) / p̄_i² to the next order,
with Var(p̄_i) = Σ_k w_k² Var_s(p_si) / S_k. Both follow from the same log likelihoods; ratios
are taken in log space.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.expectations import ScoreName, averaged, deviations, score_name, width
from onebasin.evaluation.strata import Stratum
from onebasin.evaluation.streaming import Blocks, along, cut
from onebasin.likelihoods import Likelihood
from onebasin.networks import Apply
from onebasin.paths.repairing import Correction
from onebasin.progress import Reporter


@dataclass(frozen=True, eq=False)
class Points:
    """The loss at the points t and its error; arrays are [points] unless stated otherwise."""

    t: np.ndarray
    nll: np.ndarray
    bias: np.ndarray
    score: np.ndarray
    """The measure `score_name` of the predictive; NaN if there is none."""
    influences: tuple[np.ndarray, ...]  # one per stratum, [points, draws]
    draw_nlls: tuple[np.ndarray, ...]  # the loss of each single draw, shaped like influences
    exact: tuple[bool, ...]  # for each stratum, whether it is a single network
    score_name: ScoreName

    @property
    def accuracy(self) -> np.ndarray:
        """The accuracy at every point; NaN unless targets are classes."""
        return self.score if self.score_name == "accuracy" else np.full_like(self.score, np.nan)

    @property
    def rmse(self) -> np.ndarray:
        """The root mean squared error of the predictive mean; NaN unless targets are numbers."""
        return self.score if self.score_name == "rmse" else np.full_like(self.score, np.nan)

    def merged(self, other: "Points") -> "Points":
        """Both sets of points, in the order of t."""
        order = np.argsort(np.concatenate([self.t, other.t]), kind="stable")
        mine, theirs = (
            (p.t, p.nll, p.bias, p.score, p.influences, p.draw_nlls) for p in (self, other)
        )
        joined = jax.tree.map(lambda a, b: np.concatenate([a, b])[order], mine, theirs)
        return Points(*joined, exact=self.exact, score_name=self.score_name)

    def stderr(self, combination: np.ndarray) -> np.ndarray:
        """Standard error of `combination` @ nll, for each row of weights [rows, points].

        Points share their draws, so influences are combined before their variance is taken. The
        variance of a single draw is unknown: the result is NaN, unless nothing is random.
        """
        variance = np.zeros(len(combination))
        for influence, exact in zip(self.influences, self.exact, strict=True):
            if exact:
                continue
            combined = combination @ influence
            count = combined.shape[1]
            # A single draw has influence zero by construction, which says nothing of its variance.
            variance += combined.var(axis=1, ddof=1) / count if count > 1 else np.nan
        return np.sqrt(variance)


def prepare(
    sources: Sequence[Stratum],
    apply: Apply,
    x: np.ndarray,
    y: np.ndarray,
    likelihood: Likelihood,
    points: int,
    batch_size: int | None,
    data_shards: int = 1,
) -> Blocks:
    """The data in blocks whose log likelihoods and expectations fit into memory."""

    def bytes_per_row(outputs: int) -> int:
        return sum(4 * (points if s.moves else 1) * (s.count + 2 * outputs) for s in sources)

    params, state, _, _ = sources[0].ends(0)
    return cut(apply, params, state, x, bytes_per_row, batch_size, y, likelihood, data_shards)


def evaluate(
    sources: Sequence[Stratum],
    ts: np.ndarray,
    apply: Apply,
    blocks: Blocks,
    likelihood: Likelihood,
    correction: Correction | None = None,
    report: Reporter | None = None,
    what: str = "",
) -> Points:
    """The loss at every t, in one pass over data, draws and points."""
    nll, bias, score = np.zeros((3, len(ts)))
    influences, nlls = (tuple(np.zeros((len(ts), s.count)) for s in sources) for _ in range(2))
    exact = tuple(s.exact for s in sources)
    measure = score_name(likelihood)
    sums = Points(np.asarray(ts, np.float64), nll, bias, score, influences, nlls, exact, measure)
    done, work = 0, sum(s.count for s in sources) * len(blocks)
    wide = width(likelihood, blocks.outputs)
    for x, y, real in blocks:
        log_ps, expected, known = [], [], real * blocks.each
        for source in sources:
            own = jnp.asarray(ts if source.moves else ts[:1], jnp.float32)
            change = correction if source.moves else None
            log_p = np.empty((len(own), source.count, known), np.float32)
            summed = jnp.zeros((len(own), blocks.rows * blocks.each, wide), jnp.float32)
            pending = None
            for s in range(source.count):
                # The next draw is computed while the numbers of the last one are copied.
                found, summed = along(apply, likelihood, source.ends(s), own, change, x, y, summed)
                if pending is not None:
                    log_p[:, s - 1] = np.asarray(pending)[:, :known]
                pending = found
                done += 1
                if report is not None and what:
                    report(what, done, work)
            log_p[:, source.count - 1] = np.asarray(pending)[:, :known]
            log_ps.append(log_p)
            expected.append(np.asarray(summed)[:, :known])
        targets = np.asarray(y).reshape(blocks.rows, -1)[:real]
        _add(sums, sources, log_ps, expected, likelihood, targets)
    if not np.isfinite(sums.nll).all():
        where = ts[~np.isfinite(sums.nll)][0]
        raise ValueError(
            f"the network's likelihood is not finite at t = {where:g}; look for NaN or infinity "
            "in the posteriors and the data"
        )
    count = blocks.predictions
    influences, nlls = jax.tree.map(lambda total: total / count, (influences, nlls))
    scores = averaged(measure, score, count)
    return Points(sums.t, nll / count, bias / count, scores, influences, nlls, exact, measure)


def _add(
    sums: Points,
    sources: Sequence[Stratum],
    log_ps: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    likelihood: Likelihood,
    targets: np.ndarray,
) -> None:
    """Add a block of examples to the sums."""
    for j, t in enumerate(sums.t):
        at = [j if source.moves else 0 for source in sources]
        weights = [source.weight(float(t)) for source in sources]
        parts = [p[k] for p, k in zip(log_ps, at, strict=True)]
        log_mean = _log_mean(parts, weights)
        sums.nll[j] -= log_mean.sum(dtype=np.float64)
        for k, (log_p, weight) in enumerate(zip(parts, weights, strict=True)):
            sums.draw_nlls[k][j] -= log_p.sum(axis=1, dtype=np.float64)
            count = len(log_p)
            if weight == 0 or count == 1:
                continue
            ratio = np.exp(log_p - log_mean)
            deviation = ratio - ratio.mean(axis=0, dtype=np.float64).astype(np.float32)
            sums.influences[k][j] -= weight * deviation.sum(axis=1, dtype=np.float64)
            square = np.einsum("si,si->", deviation, deviation, dtype=np.float64)
            sums.bias[j] += 0.5 * weight**2 * (square / (count - 1)) / count
        mixed = np.sum(
            [
                (w / s.count) * p[k]
                for w, s, p, k in zip(weights, sources, expected, at, strict=True)
            ],
            axis=0,
        )
        sums.score[j] += deviations(likelihood, mixed, targets).sum(dtype=np.float64)


def _log_mean(parts: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """log Σ_k w_k mean_s exp(log p_s), for each example."""
    used = [(p, w) for p, w in zip(parts, weights, strict=True) if w > 0]
    top = np.max([p.max(axis=0) for p, _ in used], axis=0)
    # All draws at −∞ give −∞, not NaN.
    top = np.where(np.isfinite(top), top, 0.0).astype(np.float32)
    total = sum((w / len(p)) * np.exp(p - top).sum(axis=0, dtype=np.float64) for p, w in used)
    with np.errstate(divide="ignore"):
        return (top + np.log(total)).astype(np.float32)
