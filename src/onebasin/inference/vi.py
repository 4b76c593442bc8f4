"""Mean-field variational inference.

The loss per example is, with θ = m + s ε and the scaling of docs/scaling.md,

    L(m, s) = −(ρ/T)/M Σ_batch log p(y | θ) + KL(q ‖ p)/N.

The std is held as its logarithm. Where a weight does nothing, only the KL acts on it, with the
gradient −(1 − s²/v)/N in log s: tiny, but of constant sign, so under Adam log s walks at its
learning rate, whatever 1/N is, and takes log(√v/s₀)/lr steps to reach the prior. A rate that
decays with that of the means leaves it on the way in a short fit; a rate so high that it arrives at
once drowns the means in noise before they have found anything, and units that are switched off
then stay off. So log s has a constant learning rate of its own, a quarter of that of the means.

One draw of the weights serves a whole batch, so its noise does not average out over the examples.
With `antithetic` the second half of the batch sees m − s ε: still one draw per example and fresh
noise in every step, but what is odd in ε cancels between the halves, which is most of it.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from onebasin.inference.methods import VI
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.noise import fast_normal_like
from onebasin.inference.optimisers import direction, last_direction, schedule
from onebasin.inference.program import Info, Program, seconds_per_step, training_data
from onebasin.keys import subkey
from onebasin.posterior import MeanField
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters, tree_dot


class Variational(NamedTuple):
    """The variational parameters."""

    mean: PyTree
    log_std: PyTree


class VIState(NamedTuple):
    """Before the last step was taken: the optimiser's state holds its direction."""

    params: Variational
    optimiser: Any


def build(problem: Problem, method: VI) -> Program:
    batches = Minibatches.of(problem, method.batch_size)
    steps = method.epochs * batches.per_epoch
    halves = 2 if method.antithetic and batches.size > 1 else 1
    optimiser = direction(method.optimiser, method.momentum)
    rates = learning_rates(method, steps, batches.per_epoch, problem.num_examples)

    def init(key: jax.Array, data: Batch) -> VIState:
        del data
        mean = problem.init(subkey(key, "init"))
        log_std = jax.tree.map(lambda m: jnp.full_like(m, jnp.log(method.initial_std)), mean)
        params = Variational(mean, log_std)
        return VIState(params, optimiser.init(params))

    def moved(state: VIState, t: Any) -> Variational:
        """The parameters after step t; before the first there is nowhere to go."""
        way = last_direction(state.optimiser, method.momentum)
        return descend(state.params, way, rates(jnp.maximum(t, 0)))

    def step(state: VIState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[VIState, Info]:
        params = moved(state, t - 1)
        parts = batches.take(data, key, t, parts=halves)
        noise_key = jax.random.fold_in(subkey(key, "noise"), t)
        info, gradient = elbo_gradient(problem, method, params, parts, key=noise_key)
        return VIState(params, optimiser.update(gradient, state.optimiser, params)[1]), info

    def finish(states: VIState, draws: PyTree | None) -> MeanField:
        del draws
        mean, log_std = moved(jax.tree.map(lambda leaf: leaf[0], states), steps - 1)
        return MeanField(mean, jax.tree.map(jnp.exp, log_std))

    return Program(
        lanes=1,
        own_key=True,
        reports=("loss", "nll", problem.log_likelihood.score_name, "kl"),
        steps=steps,
        data=training_data(problem),
        init=init,
        step=step,
        finish=finish,
        seconds_per_step=seconds_per_step(
            3 * problem.flops * batches.size * method.num_samples,
            4 * num_parameters(problem.shapes),
        ),
        steps_per_epoch=batches.per_epoch,
        likely_cause=(
            f"a learning rate of {method.learning_rate:g} that is too high for this problem, or an "
            f"initial std of {method.initial_std:g} that is too large"
        ),
    )


def descend(params: Variational, move: Any, rates: tuple[jax.Array, jax.Array]) -> Variational:
    """Each of the two trees goes down its direction at its own rate."""

    def go(tree: PyTree, direction: PyTree, rate: jax.Array) -> PyTree:
        return jax.tree.map(lambda p, u: p - rate.astype(p.dtype) * u, tree, direction)

    return Variational(
        go(params.mean, move.mean, rates[0]), go(params.log_std, move.log_std, rates[1])
    )


def elbo_gradient(
    problem: Problem, method: VI, params: Variational, parts: Sequence[Batch], *, key: jax.Array
) -> tuple[Info, Variational]:
    """The loss per example with fresh noise (`loss` in the report), and its gradient.

    Args:
      parts: the batch, or its two halves, of which the second sees the mirrored noise.

    What is random enters through θ = m ± d with d = s ε, so with g± the gradients at the two
    points the chain rule is g₊ + g₋ for m and (g₊ − g₋) d for log s. Written out, and with d read
    off as θ − m, only one θ and two gradients are ever alive; differentiating through θ would
    keep three times that.
    """
    examples = problem.num_examples
    scale = 1 / (sum(len(part.x) for part in parts) * method.num_samples)
    share = 1 / (len(parts) * method.num_samples)

    def at(theta: PyTree, part: Batch) -> tuple[jax.Array, Info]:
        log_likelihood, aux = problem.summed_log_likelihood(theta, part)
        loss = -scale * log_likelihood
        if method.kl == "monte-carlo":
            kl = log_ratio(problem, params, theta) / examples
            aux = {**aux, "kl": kl}
            loss = loss + share * kl
        return loss, aux

    slope = jax.value_and_grad(at, has_aux=True)

    def one(sample_key: jax.Array) -> tuple[jax.Array, Info, Variational]:
        noise = fast_normal_like(params.mean, key=sample_key)
        theta = jax.tree.map(lambda m, r, e: m + jnp.exp(r) * e, *params, noise)
        (loss, aux), up = slope(theta, parts[0])
        if len(parts) == 1:
            stretch = jax.tree.map(lambda u, t, m: u * (t - m), up, theta, params.mean)
            return loss, aux, Variational(up, stretch)
        # One half after the other: side by side both would hold their own weights. A sum with
        # 0 × the first loss is an order XLA keeps (on CPU it drops optimisation barriers).
        theta = jax.tree.map(lambda m, t: (2 + 0 * loss) * m - t, params.mean, theta)
        (below, other), down = slope(theta, parts[1])
        stretch = jax.tree.map(lambda u, d, m, t: (u - d) * (m - t), up, down, params.mean, theta)
        gradient = Variational(jax.tree.map(jnp.add, up, down), stretch)
        return loss + below, jax.tree.map(lambda a, b: (a + b) / 2, aux, other), gradient

    if method.num_samples == 1:
        loss, info, gradient = one(key)
    else:
        losses, infos, gradients = jax.vmap(one)(jax.random.split(key, method.num_samples))
        loss, info = losses.sum(), jax.tree.map(lambda a: a.mean(0), infos)
        gradient = jax.tree.map(lambda a: a.sum(0), gradients)
    if method.kl == "analytic":
        kl, pull = jax.value_and_grad(lambda q: analytic_kl(problem, q) / examples)(params)
        loss, info = loss + kl, {**info, "kl": kl}
        gradient = jax.tree.map(jnp.add, gradient, pull)
    return {"loss": loss, **info}, gradient


def analytic_kl(problem: Problem, params: Variational) -> jax.Array:
    """KL(q ‖ p) = Σ ½[(s² + m²)/v − 1 − log(s²/v)]."""
    terms = jax.tree.map(
        lambda m, r, v: jnp.sum(
            0.5 * ((jnp.exp(2 * r) + m**2) / v - 1 + jnp.log(jnp.asarray(v, m.dtype))) - r
        ),
        *params,
        problem.prior_variances,
    )
    return jax.tree.reduce(jnp.add, terms)


def log_ratio(problem: Problem, params: Variational, theta: PyTree) -> jax.Array:
    """log q(θ) − log p(θ), whose mean under q is the KL (eq. 11 of the published appendix).

    The density of q is taken at fixed m and s (sticking the landing): the dropped score has mean
    zero, and without it the gradient's noise vanishes as q comes to the posterior.
    """
    mean, log_std = jax.lax.stop_gradient(params)
    deviation = jax.tree.map(lambda t, m, r: (t - m) * jnp.exp(-r), theta, mean, log_std)
    log_std_sum = jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, log_std))
    constant = 0.5 * num_parameters(theta) * math.log(2 * math.pi)
    log_q = -0.5 * tree_dot(deviation, deviation) - log_std_sum - constant
    return log_q - problem.log_prior(theta)


def learning_rates(method: VI, steps: int, per_epoch: int, examples: int):
    """t → the learning rates of the means and of log std."""
    warmup_steps = method.warmup_epochs * per_epoch
    course = schedule(method.schedule, steps, warmup_steps)
    std_course = schedule(method.std_schedule, steps, warmup_steps)
    unit = examples if method.learning_rate_on == "sum" else 1
    std_rate = method.std_learning_rate
    if std_rate is None:
        std_rate = method.learning_rate / (4 if method.optimiser == "adam" else 1)

    def rates(t: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (
            jnp.asarray(unit * method.learning_rate * course(t)),
            jnp.asarray(unit * std_rate * std_course(t)),
        )

    return rates
