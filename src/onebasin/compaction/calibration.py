"""Scaling the noise of a compact Gaussian to the predictive of the draws it replaces.

The variance that the factors do not explain goes to the diagonal, as noise that is independent from
weight to weight. In the posterior, weights vary together, since the data constrain the outputs. So
the Gaussian that fits the weights best blurs the predictive and does not predict best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.mixture_predictive import MixturePredictive
from onebasin.evaluation.predicting import predicting_likelihood, predictive
from onebasin.keys import subkey
from onebasin.likelihoods import Classification, LikelihoodLike
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.posterior.noise import normal_like
from onebasin.trees import PyTree

SHARES = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.0)
STRENGTHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
TARGETS = 32  # samples of the targets of every input, for the divergence where they are numbers


@dataclass(frozen=True)
class Calibration:
    """A Gaussian with scaled noise, and the scales that were tried: the result of `calibrate`.

    >>> import onebasin as ob
    >>> q = ob.MeanField({"w": jnp.ones(2)}, {"w": jnp.ones(2)})
    >>> draws = ob.Samples({"w": jnp.ones((3, 2))})
    >>> net = lambda params, x: x * params["w"]
    >>> ob.calibrate(q, to=draws, network=net, x=jnp.eye(2), key=jax.random.key(0)).diagonal
    0.0
    """

    posterior: MeanField | LowRank
    diagonal: float
    """α, the factor of the diagonal variances."""
    factors: float
    """τ, the factor of the low-rank factors."""
    divergence: float
    """KL(draws ‖ Gaussian) of the predictives at the chosen (α, τ), in nats per input."""
    tried: dict[tuple[float, float], float]
    """The divergence at every (α, τ) that was tried."""

    def __repr__(self) -> str:
        scales = f"diagonal × {self.diagonal:g}, factors × {self.factors:g}"
        return f"Calibration({self.posterior!r}, {scales}, divergence {self.divergence:.3g} nats)"


def calibrate(
    posterior: MeanField | LowRank,
    *,
    to: Samples,
    network: NetworkLike,
    x: PyTree,
    key: jax.Array,
    likelihood: LikelihoodLike | None = None,
    num_samples: int = 64,
    diagonal: Sequence[float] = SHARES,
    factors: Sequence[float] = STRENGTHS,
) -> Calibration:
    """Scale the noise of a Gaussian so that it predicts on `x` as the draws `to` do.

    The mean is kept and the two kinds of noise are scaled, θ = m + τ·Fᵀz + √α·σε, so that
    KL(draws ‖ Gaussian) of the predictives on `x` is least. α and τ are chosen in turn, with the
    same z and ε, until neither changes. Where targets are numbers, the divergence is the mean of
    log p − log q over targets drawn from the predictive p of the draws, the same for all α and τ.

    >>> import onebasin as ob
    >>> q = ob.MeanField({"w": jnp.zeros(2)}, {"w": jnp.ones(2)})
    >>> draws = ob.Samples({"w": 0.3 * jax.random.normal(jax.random.key(1), (50, 2))})
    >>> net = lambda params, x: x * params["w"]
    >>> found = ob.calibrate(q, to=draws, network=net, x=9 * jnp.eye(2), key=jax.random.key(0))
    >>> found.diagonal, found.factors
    (0.03, 1.0)

    Args:
      posterior: the Gaussian, for example that of `compact`.
      to: the draws whose predictive is matched.
      network: the network's function, a `Network` or a `Problem`.
      x: a batch of inputs; no labels are used.
      key: the random key of the noise.
      likelihood: by default that of the problem, else "categorical".
      num_samples: draws of the Gaussian.
      diagonal: the factors α ≤ 1 of the diagonal variances to try.
      factors: the factors τ ≤ 1 of F to try.

    Returns:
      A `Calibration`; its `posterior` is the scaled Gaussian, of the same kind.
    """
    if not isinstance(to, Samples):
        raise TypeError(f"calibrate takes draws, as Samples, for to=, got a {type(to).__name__}")
    apply, resolved = apply_of(network), predicting_likelihood(network, likelihood)
    draws_key, noise_key = jax.random.split(key)
    reference = predictive(
        to, network, x, key=draws_key, likelihood=resolved, num_samples=to.num_draws
    )
    common, own = _noise(posterior, num_samples, noise_key)
    has_factors = isinstance(posterior, LowRank)
    if isinstance(reference, MixturePredictive):
        targets, entropy = _sampled_targets(reference, noise_key)
    else:
        targets = jnp.asarray(reference.probs, jnp.float32)
        entropy = float(-np.sum(reference.probs * reference.log_probs, axis=1).mean())

    @jax.jit
    def cross_entropy(alpha: jax.Array, tau: jax.Array) -> jax.Array:
        def one(noise: tuple[PyTree, PyTree]) -> jax.Array:
            params = jax.tree.map(
                lambda m, c, e: m + tau.astype(m.dtype) * c + jnp.sqrt(alpha).astype(m.dtype) * e,
                posterior.mean,
                *noise,
            )
            outputs = apply(params, x)
            if isinstance(resolved, Classification):
                return resolved.log_probs(outputs)
            return jax.lax.map(lambda y: resolved(outputs, y), targets)

        logs = jax.lax.map(one, (common, own))
        mixed = jax.nn.logsumexp(logs, axis=0) - jnp.log(num_samples)
        if isinstance(resolved, Classification):
            return -jnp.mean(jnp.sum(targets * mixed, axis=-1))
        return -jnp.mean(mixed)

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


def _sampled_targets(reference: MixturePredictive, key: jax.Array) -> tuple[jax.Array, float]:
    """Targets drawn from the predictive, [samples, n, ...], and its entropy by the same targets."""
    targets = reference.sample(TARGETS, key=subkey(key, "targets"))
    logs = [reference.log_likelihood(y).mean() for y in targets]
    return jnp.asarray(targets), -float(np.mean(logs))


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


def _scaled(posterior: MeanField | LowRank, alpha: float, tau: float) -> MeanField | LowRank:
    # With a std of exactly zero there is no density; this one vanishes in single precision.
    least = float(np.finfo(np.float32).eps)
    std = jax.tree.map(lambda s: s * max(alpha**0.5, least), posterior.std)
    if not isinstance(posterior, LowRank):
        return MeanField(posterior.mean, std, posterior.state)
    factors = jax.tree.map(lambda f: f * tau, posterior.factors)
    return LowRank(posterior.mean, std, factors, posterior.state)
