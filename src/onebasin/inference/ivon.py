"""IVON: mean-field variational inference by natural gradients (Shen et al. 2024, arXiv 2402.17641).

With λ = N ρ/T examples in effect, the loss per example ℓ and the prior N(0, v), δ = 1/(λ v) is the
curvature of the prior per example. The posterior N(m, σ²) has σ² = 1/(λ (h + δ)). At every step,
with θ = m + σ ε, the gradient ĝ of ℓ at θ, and Price's estimate ĥ = ĝ (θ − m)/σ² of the Hessian's
diagonal:

    g ← β₁ g + (1 − β₁) ĝ
    h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)²/(h + δ)
    m ← m − α (g/(1 − β₁ᵗ) + δ m)/(h + δ)

The last term of h keeps h + δ positive whatever ĥ is (algorithm 1 there). A fixed point has the
mean and variance at which the ELBO is stationary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from onebasin.inference.methods import IVON
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.noise import fast_normal_like
from onebasin.inference.program import Info, Program, seconds_per_step
from onebasin.inference.vi import Variational, analytic_kl
from onebasin.keys import subkey
from onebasin.posterior import MeanField
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters, take_entry


class IVONState(NamedTuple):
    mean: PyTree
    gradient: PyTree
    hessian: PyTree
    state: PyTree | None = None


def build(problem: Problem, method: IVON) -> Program:
    batches = Minibatches.of(problem, method.batch_size)
    rate = batches.learning_rate(method, method.learning_rate, method.schedule)
    examples = problem.num_examples
    effective = examples * problem.likelihood_scale
    prior = jax.tree.map(lambda v: 1 / (effective * v), problem.prior_variances)
    first, second = method.momentum, method.hessian_momentum

    def init(key: jax.Array, data: Batch) -> IVONState:
        del data
        mean = problem.init(subkey(key, "init"))
        hessian = jax.tree.map(lambda m: jnp.full_like(m, method.initial_hessian), mean)
        return IVONState(mean, jax.tree.map(jnp.zeros_like, mean), hessian, problem.state)

    def stds(hessian: PyTree) -> PyTree:
        return jax.tree.map(lambda h, d: 1 / jnp.sqrt(effective * (h + d)), hessian, prior)

    def loss(theta: PyTree, batch: Batch) -> tuple[jax.Array, tuple[Info, PyTree | None]]:
        log_likelihood, aux, after = problem.training_log_likelihood(theta, batch)
        # The mean per example at temperature 1: ρ/T is in the effective number of examples.
        return -log_likelihood / (len(batch.x) * problem.likelihood_scale), (aux, after)

    def sampled(
        state: IVONState, std: PyTree, batch: Batch, key: jax.Array
    ) -> tuple[Info, PyTree | None, PyTree, PyTree]:
        """The report, the new statistics, gradient and curvature of one draw of the weights."""
        noise = fast_normal_like(state.mean, key=key)
        theta = jax.tree.map(lambda m, s, e: m + s * e, state.mean, std, noise)
        (value, (aux, after)), gradient = jax.value_and_grad(loss, has_aux=True)(theta, batch)
        curvature = jax.tree.map(lambda g, e, s: g * e / s, gradient, noise, std)
        return {"loss": problem.likelihood_scale * value, **aux}, after, gradient, curvature

    def step(state: IVONState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[IVONState, Info]:
        (batch,) = batches.take(data, key, t)
        batch = batch._replace(state=state.state)
        noise_key = jax.random.fold_in(subkey(key, "noise"), t)
        std = stds(state.hessian)
        if method.num_samples == 1:
            info, after, gradient, curvature = sampled(state, std, batch, noise_key)
        else:
            keys = jax.random.split(noise_key, method.num_samples)
            drawn = jax.vmap(lambda k: sampled(state, std, batch, k))(keys)
            info, after, gradient, curvature = jax.tree.map(lambda a: a.mean(0), drawn)
        log_std = jax.tree.map(jnp.log, std)
        kl = analytic_kl(problem, Variational(state.mean, log_std)) / examples
        info = {**info, "loss": info["loss"] + kl, "kl": kl}
        average = jax.tree.map(lambda a, g: first * a + (1 - first) * g, state.gradient, gradient)

        def new_hessian(h: jax.Array, c: jax.Array, d: float) -> jax.Array:
            kept = second * h + (1 - second) * c
            return kept + 0.5 * (1 - second) ** 2 * (h - c) ** 2 / (h + d)

        hessian = jax.tree.map(new_hessian, state.hessian, curvature, prior)
        count = (t + 1).astype(jnp.float32)

        def moved(m: jax.Array, g: jax.Array, h: jax.Array, d: float) -> jax.Array:
            unbiased = g / (1 - jnp.float32(first) ** count).astype(m.dtype)
            newton = (unbiased + d * m) / (h + d)
            newton = jnp.clip(newton, -method.clip_radius, method.clip_radius)
            return m - rate(t).astype(m.dtype) * newton

        mean = jax.tree.map(moved, state.mean, average, hessian, prior)
        return IVONState(mean, average, hessian, after), info

    def finish(states: IVONState) -> MeanField:
        last = take_entry(states, 0)
        mean, state = jax.tree.map(jnp.asarray, (last.mean, last.state))
        return MeanField(mean, stds(last.hessian), state)

    return batches.program(problem, method)(
        replicas=1,
        uses_run_key=True,
        reports=("loss", "nll", problem.log_likelihood.score_name, "kl"),
        init=init,
        step=step,
        finish=finish,
        seconds_per_step=seconds_per_step(
            3 * problem.flops * batches.size * method.num_samples,
            4 * num_parameters(problem.shapes),
        ),
        likely_cause=(
            f"a learning rate of {method.learning_rate:g} that is too high, or an initial_hessian "
            f"of {method.initial_hessian:g} that is too small"
        ),
    )
