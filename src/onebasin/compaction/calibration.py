"""Fitting the spread of a compact Gaussian to the predictive of the draws it stands for.

n draws of d ≫ n weights show n − 1 directions of the posterior. What the low-rank part does not
take of a weight's variance goes to the diagonal, as noise that is independent from weight to
weight. But the posterior's own noise is far from independent: data hold the network's outputs in
place, so that weights vary together. Independent noise of the right variance therefore blurs the
predictive far more than the draws do: a Gaussian that fits the weights best does not predict
best.

`calibrate` keeps the mean and scales the two kinds of noise, θ = m + τ·Fᵀz + √α·σε, so that the
predictive on some inputs (no labels are used) is closest to that of the draws in the sense of
KL(draws ‖ Gaussian). α ≤ 1 says how much independent noise the function bears; τ ≤ 1 how much
of the common noise. The same noise is used for all α and τ, so they compare exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.predicting import predictive
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.posterior.noise import normal_like
from onebasin.trees import PyTree

SHARES = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.0)
STRENGTHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


@dataclass(frozen=True)
class Calibration:
    """A Gaussian whose noise was scaled, and what was tried."""

    posterior: MeanField | LowRank
    diagonal: float
    """α: the share of the diagonal variances that was kept."""
    factors: float
    """τ: what the factors were multiplied by."""
    divergence: float
    """KL(draws ‖ Gaussian) of the predictives, in nats per input, with the noise as chosen."""
    tried: dict[tuple[float, float], float]
    """The divergence at every (α, τ) that was tried."""


def calibrate(
    posterior: MeanField | LowRank,
    *,
    to: Samples,
    network: NetworkLike,
    x: Any,
    key: jax.Array,
    num_samples: int = 64,
    diagonal: Sequence[float] = SHARES,
    factors: Sequence[float] = STRENGTHS,
) -> Calibration:
    """Scale the noise of a Gaussian so that it predicts on `x` as the draws `to` do.

    α and τ are sought in turn among `diagonal` and `factors`, until neither changes.
    """
    apply = apply_of(network)
    draws_key, noise_key = jax.random.split(key)
    wanted = predictive(to, apply, x, key=draws_key, num_samples=to.num_draws)
    probabilities = jnp.asarray(wanted.probs, jnp.float32)
    entropy = float(-np.sum(wanted.probs * wanted.log_probs, axis=1).mean())
    common, own = _noise(posterior, num_samples, noise_key)
    has_factors = isinstance(posterior, LowRank)

    @jax.jit
    def cross_entropy(alpha: jax.Array, tau: jax.Array) -> jax.Array:
        def one(noise: tuple[PyTree, PyTree]) -> jax.Array:
            params = jax.tree.map(
                lambda m, c, e: m + tau.astype(m.dtype) * c + jnp.sqrt(alpha).astype(m.dtype) * e,
                posterior.mean,
                *noise,
            )
            return jax.nn.log_softmax(apply(params, x))

        logs = jax.lax.map(one, (common, own))
        mixed = jax.nn.logsumexp(logs, axis=0) - jnp.log(num_samples)
        return -jnp.mean(jnp.sum(probabilities * mixed, axis=-1))

    tried: dict[tuple[float, float], float] = {}

    def divergence(alpha: float, tau: float) -> float:
        if (alpha, tau) not in tried:
            value = cross_entropy(jnp.float32(alpha), jnp.float32(tau))
            tried[alpha, tau] = float(value) - entropy
        return tried[alpha, tau]

    alpha, tau = max(diagonal), max(factors) if has_factors else 1.0
    while True:
        before = alpha, tau
        alpha = min(diagonal, key=lambda a: divergence(a, tau))
        if has_factors:
            tau = min(factors, key=lambda t: divergence(alpha, t))
        if (alpha, tau) == before:
            break
    return Calibration(_scaled(posterior, alpha, tau), alpha, tau, divergence(alpha, tau), tried)


def _noise(posterior: MeanField | LowRank, count: int, key: jax.Array) -> tuple[PyTree, PyTree]:
    """Fᵀz and σε of `count` draws."""
    own_key, common_key = jax.random.split(key)
    noise = normal_like(posterior.mean, count, key=own_key)
    own = jax.tree.map(jnp.multiply, posterior.std, noise)
    if not isinstance(posterior, LowRank):
        return jax.tree.map(jnp.zeros_like, own), own
    z = jax.random.normal(common_key, (count, posterior.rank))
    common = jax.tree.map(lambda f: jnp.tensordot(z.astype(f.dtype), f, axes=1), posterior.factors)
    return common, own


def _scaled(posterior: Any, alpha: float, tau: float) -> Any:
    # A deviation of exactly zero has no density; this one is zero to any draw in single precision.
    least = float(np.finfo(np.float32).eps)
    std = jax.tree.map(lambda s: s * max(alpha**0.5, least), posterior.std)
    if not isinstance(posterior, LowRank):
        return MeanField(posterior.mean, std, posterior.state)
    factors = jax.tree.map(lambda f: f * tau, posterior.factors)
    return LowRank(posterior.mean, std, factors, posterior.state)
