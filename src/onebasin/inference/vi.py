"""Mean-field variational inference.

The loss per example is, with θ = m + s ε and the scaling of docs/scaling.md,

    L(m, s) = −(ρ/T)/M Σ_batch log p(y | θ) + KL(q ‖ p)/N.

The parameter is log s. On a weight without influence on the outputs only the KL acts, with the
gradient −(1 − s²/v)/N in log s. It is tiny but of constant sign, so Adam changes log s by its
learning rate per step, whatever 1/N is, and reaches the prior after log(√v/s₀)/lr steps. If the
rate decays with that of the means, a short fit ends before that. If the noise is large before the
means have found the signal, units that are switched off then stay off. Hence log s starts below the
prior and has a learning rate of its own; `vi_defaults.py` says which. The fit reports how
fast log s moves relative to that rate: 1 if all of it is on its way, about 0.15 at the optimum,
where only the noise of the gradient is left.

All examples of a batch share one draw of the weights, so its noise does not average out over the
examples. With `antithetic` the second half of the batch uses m − s ε. That is still one draw per
example and new noise at every step, but all terms odd in ε, which are most of the noise, cancel
between the halves.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from onebasin.inference.methods import VI
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.noise import fast_normal_like
from onebasin.inference.optimisers import descend, direction, last_direction
from onebasin.inference.program import Info, Program, seconds_per_step
from onebasin.inference.shards import WHOLE, Shards
from onebasin.inference.vi_defaults import initial_stds, settled
from onebasin.keys import subkey
from onebasin.posterior import MeanField
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters, take_entry, tree_dot


class Variational(NamedTuple):
    """The variational parameters."""

    mean: PyTree
    log_std: PyTree


class VIState(NamedTuple):
    """The parameters before the last step; the state of the optimiser holds its direction."""

    params: Variational
    optimiser: optax.OptState
    state: PyTree | None = None


def build(problem: Problem, method: VI, shards: Shards = WHOLE) -> Program:
    method = settled(problem, method)
    starts = initial_stds(problem, method)
    assert method.epochs is not None
    batches = Minibatches.of(problem, method.batch_size)
    last = method.epochs * batches.per_epoch - 1
    halves = 2 if method.antithetic and batches.size > 1 else 1
    batches.check_shares(shards, halves)
    optimiser = direction(method.optimiser, method.momentum)
    rates = learning_rates(method, batches)

    def init(key: jax.Array, data: Batch) -> VIState:
        del data
        mean = problem.init(subkey(key, "init"))
        log_std = jax.tree.map(lambda m, s: jnp.full_like(m, jnp.log(s)), mean, starts)
        params = Variational(mean, log_std)
        return VIState(params, optimiser.init(params), problem.state)

    def params_after(state: VIState, t: int | jax.Array) -> tuple[Variational, jax.Array]:
        """The parameters after step t, and how fast log std moved, relative to its rate.

        The direction is zero before the first step.
        """
        update: Variational = last_direction(state.optimiser, method.momentum)
        moved = map(descend, state.params, update, rates(jnp.maximum(t, 0)))
        return Variational(*moved), mean_size(update.log_std)

    def step(state: VIState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[VIState, Info]:
        params, speed = params_after(state, t - 1)
        parts = batches.take(data, key, t, halves, shards)
        parts = [part._replace(state=state.state) for part in parts]
        noise_key = jax.random.fold_in(subkey(key, "noise"), t)
        info, gradient, after = elbo_gradient(problem, method, params, parts, key=noise_key)
        info, gradient = shards.mean((info, gradient))
        _, optimiser_state = optimiser.update(gradient, state.optimiser, params)
        return VIState(params, optimiser_state, after), {**info, "std_speed": speed}

    def finish(states: VIState) -> MeanField:
        own = take_entry(states, 0)
        (mean, log_std), _ = params_after(own, last)
        return MeanField(mean, jax.tree.map(jnp.exp, log_std), jax.tree.map(jnp.asarray, own.state))

    def statistics(states: VIState) -> dict[str, Any]:
        _, speed = params_after(take_entry(states, 0), last)
        return {"std_speed": float(speed)} if method.optimiser == "adam" else {}

    flops = 3 * problem.flops * batches.size * method.num_samples
    return batches.program(problem, method)(
        replicas=1,
        uses_run_key=True,
        reports=("loss", "nll", problem.log_likelihood.score_name, "kl", "std_speed"),
        init=init,
        step=step,
        finish=finish,
        statistics=statistics,
        seconds_per_step=seconds_per_step(flops, 4 * num_parameters(problem.shapes)),
        likely_cause=(
            f"a learning rate of {method.learning_rate:g} that is too high for this problem, or an "
            f"initial std of {max(jax.tree.leaves(starts)):g} that is too large"
        ),
    )


def elbo_gradient(
    problem: Problem, method: VI, params: Variational, parts: Sequence[Batch], *, key: jax.Array
) -> tuple[Info, Variational, PyTree | None]:
    """The loss per example with new noise (`loss` of the first result), and its gradient.

    The third result are the running statistics after the batch, if the network has any.

    Args:
      problem: the likelihood and the prior.
      method: the number of samples and the form of the KL.
      params: where the gradient is taken.
      parts: the batch, or its two halves, of which the second uses the mirrored noise. Running
        statistics are updated by one half after the other.
      key: random key of the noise.

    Randomness enters through θ = m ± d with d = s ε. With g± the gradients at the two points, the
    chain rule gives g₊ + g₋ for m and (g₊ − g₋) d for log s. In this explicit form, with d computed
    as θ − m, only one θ and two gradients are in memory at a time; differentiation through θ would
    need three times as much.
    """
    examples = problem.num_examples
    scale = 1 / (sum(len(part.x) for part in parts) * method.num_samples)
    share = 1 / (len(parts) * method.num_samples)

    def loss_at(theta: PyTree, part: Batch) -> tuple[jax.Array, tuple[Info, PyTree | None]]:
        log_likelihood, aux, state = problem.training_log_likelihood(theta, part)
        loss = -scale * log_likelihood
        if method.kl == "monte-carlo":
            kl = log_ratio(problem, params, theta) / examples
            aux = {**aux, "kl": kl}
            loss = loss + share * kl
        return loss, (aux, state)

    gradient_at = jax.value_and_grad(loss_at, has_aux=True)

    def one(sample_key: jax.Array) -> tuple[jax.Array, tuple[Info, PyTree | None], Variational]:
        noise = fast_normal_like(params.mean, key=sample_key)
        theta = jax.tree.map(lambda m, r, e: m + jnp.exp(r) * e, *params, noise)
        (loss, (aux, state)), plus = gradient_at(theta, parts[0])
        if len(parts) == 1:
            log_std = jax.tree.map(lambda g, t, m: g * (t - m), plus, theta, params.mean)
            return loss, (aux, state), Variational(plus, log_std)
        # The halves must run one after the other: in parallel each would hold its own weights. XLA
        # respects the dependence on 0 × the first loss (on CPU it drops optimisation barriers).
        theta = jax.tree.map(lambda m, t: (2 + 0 * loss) * m - t, params.mean, theta)
        second = parts[1]._replace(state=state)
        (other_loss, (other_aux, state)), minus = gradient_at(theta, second)
        log_std = jax.tree.map(
            lambda p, n, m, t: (p - n) * (m - t), plus, minus, params.mean, theta
        )
        gradient = Variational(jax.tree.map(jnp.add, plus, minus), log_std)
        aux = jax.tree.map(lambda a, b: (a + b) / 2, aux, other_aux)
        return loss + other_loss, (aux, state), gradient

    if method.num_samples == 1:
        loss, (info, state), gradient = one(key)
    else:
        losses, found, gradients = jax.vmap(one)(jax.random.split(key, method.num_samples))
        loss, (info, state) = losses.sum(), jax.tree.map(lambda a: a.mean(0), found)
        gradient = jax.tree.map(lambda a: a.sum(0), gradients)
    if method.kl == "analytic":
        kl, kl_gradient = jax.value_and_grad(lambda q: analytic_kl(problem, q) / examples)(params)
        loss, info = loss + kl, {**info, "kl": kl}
        gradient = jax.tree.map(jnp.add, gradient, kl_gradient)
    return {"loss": loss, **info}, gradient, state


def mean_size(tree: PyTree) -> jax.Array:
    """The mean absolute value of all entries."""
    sums = [jnp.abs(leaf).sum() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(sums).sum() / num_parameters(tree)


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

    The density of q is taken at fixed m and s (sticking the landing): the omitted score has mean
    zero, and without it the noise of the gradient vanishes as q approaches the posterior.
    """
    mean, log_std = jax.lax.stop_gradient(params)
    standardised = jax.tree.map(lambda t, m, r: (t - m) * jnp.exp(-r), theta, mean, log_std)
    log_std_sum = jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, log_std))
    constant = 0.5 * num_parameters(theta) * math.log(2 * math.pi)
    log_q = -0.5 * tree_dot(standardised, standardised) - log_std_sum - constant
    return log_q - problem.log_prior(theta)


def learning_rates(
    method: VI, batches: Minibatches
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """t → the learning rates of the means and of log std."""
    assert method.learning_rate is not None
    std_rate = method.std_learning_rate
    if std_rate is None:
        std_rate = method.learning_rate / (4 if method.optimiser == "adam" else 1)
    of_mean = batches.learning_rate(method, method.learning_rate, method.schedule)
    of_log_std = batches.learning_rate(method, std_rate, method.std_schedule or "constant")
    return lambda t: (of_mean(t), of_log_std(t))
