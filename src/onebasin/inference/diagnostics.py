"""Have the chains converged? Rank-normalised split R-hat and bulk ESS (Vehtari et al. 2021).

On the weights of a network these mean nothing until the chains are aligned, because every chain
may sit in another of n! equivalent places; on predictions they always do.
"""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from onebasin.posterior import Samples
from onebasin.problem import Problem

PREDICTION_INPUTS = 32
DRAWS_AT_ONCE = 256
FEWEST_DRAWS = 4  # per chain, below which the statistics are not defined


def rhat(draws: Any) -> np.ndarray:
    """Split R-hat of every quantity in `draws` [chains, draws, ...]; 1 when chains agree."""
    return _by_quantity(blackjax.diagnostics.rhat, draws)


def ess(draws: Any) -> np.ndarray:
    """Bulk effective sample size of every quantity in `draws` [chains, draws, ...]."""
    return _by_quantity(blackjax.diagnostics.ess_bulk, draws)


def _by_quantity(statistic: Any, draws: Any) -> np.ndarray:
    draws = jnp.asarray(draws)
    if draws.ndim < 2 or draws.shape[1] < FEWEST_DRAWS:
        raise ValueError(
            f"draws have shape {draws.shape}; give [chains, draws, ...] with at least "
            f"{FEWEST_DRAWS} draws per chain"
        )
    shape = draws.shape[2:]
    # An extra column keeps the library from squeezing the quantities away.
    flat = draws.reshape(*draws.shape[:2], -1)
    values = np.asarray(jax.jit(statistic)(jnp.concatenate([flat, flat[..., :1]], axis=-1)))
    return values[:-1].reshape(shape)


def predictions(problem: Problem, samples: Samples, x: Any) -> np.ndarray:
    """Outputs of every draw, [chains, draws, ...]; class probabilities for a classifier.

    The last class is left out: it follows from the others.
    """
    x = jnp.asarray(x)

    def outputs(params: Any) -> jax.Array:
        out = problem.apply(params, x)
        return jax.nn.softmax(out)[:, :-1] if problem.likelihood == "categorical" else out

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
        "rhat_predictions_max": float(np.nanmax(r)),
        "rhat_predictions_median": float(np.nanmedian(r)),
        "ess_predictions_min": float(np.nanmin(n)),
        "ess_predictions_median": float(np.nanmedian(n)),
    }
    return stats
