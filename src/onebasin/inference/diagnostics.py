"""Convergence of chains: rank-normalised split R-hat and bulk ESS (Vehtari et al. 2021).

For the weights of a network they are meaningful only after alignment, because every chain may be
near another of n! equivalent modes; for predictions they always are.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import rankdata

from onebasin.data.examples import HasExamples
from onebasin.inference.full_batch import chunked, log_density
from onebasin.likelihoods import Classification
from onebasin.networks import forward
from onebasin.posterior import Samples
from onebasin.problem import Problem
from onebasin.trees import PyTree, take_entry

PREDICTION_INPUTS = 32
DRAWS_AT_ONCE = 256
CHUNK = 2000
FEWEST_DRAWS = 4  # per chain, below which the statistics are not defined


@runtime_checkable
class HasTest(Protocol):
    """Data with a test split, such as a `Dataset`."""

    @property
    def test(self) -> HasExamples: ...


def rhat(draws: ArrayLike) -> np.ndarray:
    """Split R-hat of every quantity in `draws` [chains, draws, ...]; 1 when chains agree.

    The larger of two values: that of the rank-normalised draws (location) and that of their
    distances from the median (scale).
    """
    halves, shape = _halves(draws)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    values = np.maximum(_basic_rhat(_normal_scores(halves)), _basic_rhat(_normal_scores(folded)))
    return values.reshape(shape)


def ess(draws: ArrayLike) -> np.ndarray:
    """Bulk effective sample size of every quantity in `draws` [chains, draws, ...]."""
    halves, shape = _halves(draws)
    return _basic_ess(_normal_scores(halves)).reshape(shape)


def _halves(draws: ArrayLike) -> tuple[np.ndarray, tuple[int, ...]]:
    """Each chain cut in two, [2 chains, draws/2, quantities], and the shape of the quantities."""
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
    """Φ⁻¹((rank − 3/8)/(n + 1/4)), with ranks over all chains together."""
    flat = draws.reshape(-1, draws.shape[-1])
    ranks = rankdata(flat, axis=0)
    return ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(draws.shape)


def _basic_rhat(draws: np.ndarray) -> np.ndarray:
    """√((n−1)/n + B/(nW)): variance between chains relative to the variance within."""
    length = draws.shape[1]
    within = draws.var(1, ddof=1).mean(0)
    between = draws.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((length - 1) / length + between / within)


def _basic_ess(draws: np.ndarray) -> np.ndarray:
    """n/τ with the autocorrelation time τ = −1 + 2 Σ P_t, P_t = ρ_2t + ρ_2t+1.

    The sum ends at the first P_t that is not positive, and P_t is made monotone (Geyer).
    """
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
    # The even term of the first omitted pair, if it is positive, reduces the bias.
    last = np.minimum(positive.sum(0), len(pairs) - 1)
    next_even = np.take_along_axis(correlation[0::2], last[None], axis=0)[0]
    time = -1 + 2 * np.where(positive, monotone, 0).sum(0) + np.maximum(next_even, 0)
    total_draws = chains * length
    return total_draws / np.maximum(time, 1 / np.log10(total_draws))


def predictions(problem: Problem, samples: Samples, x: ArrayLike) -> np.ndarray:
    """The outputs of every draw, [chains, draws, ...]; class probabilities for a classifier.

    The last class is omitted: it follows from the others.
    """
    inputs = jnp.asarray(x)

    def outputs(draw: tuple[PyTree, PyTree | None]) -> jax.Array:
        out = forward(problem.apply, draw[0], inputs, draw[1])
        likelihood = problem.log_likelihood
        if isinstance(likelihood, Classification):
            return jnp.exp(likelihood.log_probs(out))[:, :-1]
        return out

    of_draws = jax.jit(lambda draws: jax.lax.map(outputs, draws))
    drawn = (samples.draws, samples.state)
    # Some draws at a time: the posterior may be larger than memory.
    values = [
        np.asarray(of_draws(take_entry(drawn, slice(start, start + DRAWS_AT_ONCE))))
        for start in range(0, samples.num_draws, DRAWS_AT_ONCE)
    ]
    return by_chain(np.concatenate(values), samples.chain)


def by_chain(values: np.ndarray, chain: ArrayLike) -> np.ndarray:
    """[draws, ...] → [chains, draws per chain, ...]."""
    chain = np.asarray(chain)
    names, counts = np.unique(chain, return_counts=True)
    if len(set(counts)) != 1:
        raise ValueError(f"the chains have {counts.tolist()} draws; give chains of equal length")
    return np.stack([values[chain == name] for name in names])


def energy_fraction(energy: np.ndarray) -> np.ndarray:
    """E-BFMI per chain: Σ (E_n − E_n−1)² / Σ (E_n − mean E)².

    Below about 0.3 the momentum changes the energy too little for the chain to reach the tails.
    """
    energy = np.asarray(energy, np.float64)
    squares = ((energy - energy.mean(-1, keepdims=True)) ** 2).sum(-1)
    changes = (np.diff(energy, axis=-1) ** 2).sum(-1)
    return changes / np.where(squares > 0, squares, np.nan)


def chain_statistics(
    problem: Problem, samples: Samples, records: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Acceptance, divergences and energy per chain; R-hat and ESS of predictions."""
    stats = record_statistics(records)
    if stats["log_density"].shape[1] < FEWEST_DRAWS:
        return stats
    x = np.asarray(problem.data.test.x) if isinstance(problem.data, HasTest) else problem.x
    values = predictions(problem, samples, x[:PREDICTION_INPUTS])
    r, n = rhat(values), ess(values)
    stats |= {
        "rhat_predictions_max": _over_defined(np.max, r),
        "rhat_predictions_median": _over_defined(np.median, r),
        "ess_predictions_min": _over_defined(np.min, n),
        "ess_predictions_median": _over_defined(np.median, n),
    }
    return stats


def loss_after_measuring(problem: Problem, samples: Samples, stats: dict[str, Any]) -> float:
    """How much the loss per example rises when measured statistics replace those that were held.

    It is the mean over the chains, each at its last draw; its log density was recorded.
    """
    data, per_chain = chunked(problem, CHUNK), stats["log_density"].shape[1]

    @jax.jit
    def density(params: PyTree, state: PyTree) -> jax.Array:
        return log_density(problem, data._replace(state=state))(params)

    rises = []
    for chain, recorded in enumerate(stats["log_density"][:, -1]):
        draw = take_entry((samples.draws, samples.state), (chain + 1) * per_chain - 1)
        rises.append((recorded - float(density(*draw))) / problem.num_examples)
    return float(np.mean(rises))


def record_statistics(records: dict[str, np.ndarray]) -> dict[str, Any]:
    """Acceptance, divergences and energy per chain, where the draws have records of them."""
    stats: dict[str, Any] = {
        name: records[name].mean(1)
        for name in (
            "acceptance",
            "leapfrog_steps",
            "energy_error",
            "equipartition",
            "kinetic_temperature",
        )
        if name in records
    }
    if "divergent" in records:
        stats["divergences"] = records["divergent"].sum(1).astype(int)
    stats |= {name: records[name] for name in ("energy", "log_density") if name in records}
    if "energy" in records and records["energy"].shape[1] >= FEWEST_DRAWS:
        stats["energy_fraction"] = energy_fraction(records["energy"])
    return stats


def _over_defined(function: Callable[[np.ndarray], Any], values: np.ndarray) -> float:
    """A statistic of the values that are not NaN; NaN if all are, as for constant chains."""
    defined = values[~np.isnan(values)]
    return float(function(defined)) if defined.size else float("nan")
