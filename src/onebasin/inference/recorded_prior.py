"""The prior under which a posterior file was fitted, from the fit's own record."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from onebasin.likelihoods import check_positive
from onebasin.posterior import Header
from onebasin.trees import PyTree, leaves_by_path

LogPrior = Callable[[PyTree], jax.Array]


def recorded_prior(header: Header, variance: float | None = None) -> tuple[LogPrior | None, float]:
    """log N(θ; 0, v) and ρ/T, the weight of the log likelihood.

    Args:
      header: the header of the file; without a recorded fit ρ/T is 1.
      variance: v, in place of the recorded one. Without either there is no prior (None).
    """
    problem: dict[str, Any] = (header.provenance.get("fit") or {}).get("problem") or {}
    recorded: Any = problem.get("prior_variance")
    scale = problem.get("augmentation", 1.0) / problem.get("temperature", 1.0)
    if variance is not None:
        check_positive(variance, "prior_variance")
    elif not isinstance(recorded, Mapping):
        return None, scale

    def log_prior(params: PyTree) -> jax.Array:
        terms = []
        for name, leaf in leaves_by_path(params).items():
            v = recorded[name] if variance is None else variance
            terms.append(-0.5 * (jnp.sum(leaf**2) / v + leaf.size * jnp.log(2 * jnp.pi * v)))
        return reduce(jnp.add, terms)

    return log_prior, scale
