"""Have the chains converged? Rank-normalised split R-hat and bulk ESS (Vehtari et al. 2021).

On the weights of a network these mean nothing until the chains are aligned, because every chain
may sit in another of n! equivalent places; on predictions they always do.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from onebasin.posterior import Samples
from onebasin.problem import Problem

PREDICTION_INPUTS = 32
DRAWS_AT_ONCE = 256
FEWEST_DRAWS = 4  # per chain, below which the statistics are not defined


def rhat(draws: Any) -> np.ndarray:
    """Split R-hat of every quantity in `draws` [chains, draws, ...]; 1 when chains agree.

    The larger of two: of the rank-normalised draws (location) and of their distances from the
    median (scale).
    """
    halves, shape = _halves(draws)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    values = np.maximum(_plain_rhat(_normal_scores(halves)), _plain_rhat(_normal_scores(folded)))
    return values.reshape(shape)


def ess(draws: Any) -> np.ndarray:
    """Bulk effective sample size of every quantity in `draws` [chains, draws, ...]."""
    halves, shape = _halves(draws)
    return _plain_ess(_normal_scores(halves)).reshape(shape)


def _halves(draws: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """Each chain cut into two, [2 chains, draws/2, quantities], and the quantities' shape."""
    draws = np.asarray(draws, np.float64)
    if draws.ndim < 2 or draws.shape[1] < FEWEST_DRAWS:
        raise ValueError(
            f"draws have shape {draws.shape}; give [chains, draws, ...] with at least "
            f"{FEWEST_DRAWS} draws per chain"
        )
    half = draws.shape[1] // 2
    flat = draws.reshape(*draws.shape[:2], -1)
    return np.concatenate([flat[:, :half], flat[:, -half:]]), draws.shape[2:]


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    """Φ⁻¹((rank − 3/8)/(n + 1/4)) over all chains together."""
    flat = draws.reshape(-1, draws.shape[-1])
    ranks = rankdata(flat, axis=0)
    return ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(draws.shape)


def _plain_rhat(draws: np.ndarray) -> np.ndarray:
    """√((n−1)/n + B/(nW)): variance between chains against variance within."""
    length = draws.shape[1]
    within = draws.var(1, ddof=1).mean(0)
    between = draws.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((length - 1) / length + between / within)


def _plain_ess(draws: np.ndarray) -> np.ndarray:
    """n/τ, the autocorrelation time τ = −1 + 2 Σ P_t summed while P_t = ρ_2t + ρ_2t+1 is positive
    and made monotone (Geyer)."""
    chains, length, _ = draws.shape
    centred = draws - draws.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * length, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length].mean(0) / length
    within = covariance[0] * length / (length - 1)
    total = covariance[0] + draws.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    pairs = correlation[: length // 2 * 2].reshape(length // 2, 2, -1).sum(1)
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    monotone = np.minimum.accumulate(np.where(positive, pairs, np.inf), axis=0)
    # Half of the first pair that is left out, if its even part is positive, lowers the bias.
    last = np.minimum(positive.sum(0), len(pairs) - 1)
    next_even = np.take_along_axis(correlation[0::2], last[None], axis=0)[0]
    time = -1 + 2 * np.where(positive, monotone, 0).sum(0) + np.maximum(next_even, 0)
    draws_in_all = chains * length
    return draws_in_all / np.maximum(time, 1 / np.log10(draws_in_all))


def predictions(problem: Problem, samples: Samples, x: Any) -> np.ndarray:
    """Outputs of every draw, [chains, draws, ...]; class probabilities for a classifier.

    The last class is left out: it follows from the others.
    """
    x = jnp.asarray(x)

    def outputs(params: Any) -> jax.Array:
        out = problem.apply(params, x)
        return jax.nn.softmax(out)[:, :-1] if problem.log_likelihood.classifies else out

    together = jax.jit(lambda draws: jax.lax.map(outputs, draws))
    # A stretch of draws at a time: the posterior may be larger than memory.
    stretches = range(0, samples.num_draws, DRAWS_AT_ONCE)
    cut = lambda start: jax.tree.map(lambda d: d[start : start + DRAWS_AT_ONCE], samples.draws)
    values = [np.asarray(together(cut(start))) for start in stretches]
    return by_chain(np.concatenate(values), samples.chain)


def by_chain(values: np.ndarray, chain: Any) -> np.ndarray:
    """[draws, ...] → [chains, draws per chain, ...]."""
    chain = np.asarray(chain)
    names, counts = np.unique(chain, return_counts=True)
    if len(set(counts)) != 1:
        raise ValueError(f"the chains have {counts.tolist()} draws; they must be equally long")
    return np.stack([values[chain == name] for name in names])


def energy_fraction(energy: np.ndarray) -> np.ndarray:
    """E-BFMI per chain: how far the energy moves per transition, against its spread.

    Below about 0.3 the momentum refreshes too little of the energy for the tails to be reached.
    """
    energy = np.asarray(energy, np.float64)
    spread = ((energy - energy.mean(-1, keepdims=True)) ** 2).sum(-1)
    moved = (np.diff(energy, axis=-1) ** 2).sum(-1)
    return moved / np.where(spread > 0, spread, np.nan)


def chain_statistics(
    problem: Problem, samples: Samples, records: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Acceptance, divergences and energy per chain; R-hat and ESS of predictions."""
    stats: dict[str, Any] = {
        "acceptance": records["acceptance"].mean(1),
        "divergences": records["divergent"].sum(1).astype(int),
        "energy": records["energy"],
        "log_density": records["log_density"],
    }
    if "leapfrog_steps" in records:
        stats["leapfrog_steps"] = records["leapfrog_steps"].mean(1)
    if records["energy"].shape[1] < FEWEST_DRAWS:
        return stats
    stats["energy_fraction"] = energy_fraction(records["energy"])
    test = getattr(problem.data, "test", None)
    x = (problem.x if test is None else np.asarray(test.x))[:PREDICTION_INPUTS]
    values = predictions(problem, samples, x)
    r, n = rhat(values), ess(values)
    stats |= {
        "rhat_predictions_max": _over_defined(np.max, r),
        "rhat_predictions_median": _over_defined(np.median, r),
        "ess_predictions_min": _over_defined(np.min, n),
        "ess_predictions_median": _over_defined(np.median, n),
    }
    return stats


def _over_defined(function: Callable[[np.ndarray], Any], values: np.ndarray) -> float:
    """Over what is not NaN; NaN if nothing is, as for chains that never left one place."""
    defined = values[~np.isnan(values)]
    return float(function(defined)) if defined.size else float("nan")
