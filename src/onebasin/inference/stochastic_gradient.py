"""Langevin dynamics with minibatch gradients: SGLD and SGHMC, with constant or cyclical steps.

With the learning rate ℓ of the loss per example and N examples, h² = ℓ/N is the step in units of
the log posterior, whose gradient is estimated by g from a minibatch. ξ is standard normal noise.

- SGLD (Welling and Teh 2011): θ ← θ + h² g + √2 h ξ, the step of BlackJAX.
- SGHMC (Chen et al. 2014, eq. 15): p ← β p + h g + √(2(1 − β)) ξ, then θ ← θ + h p. Without noise
  it is SGD with momentum β. (BlackJAX's kernel moves θ by the old p, which is stable only for steps
  of h² λ < 1 − β, and draws p anew at every call.)

Both are biased, by the step size and by the noise of the gradient, which nothing corrects. As h → 0
the kinetic temperature (1 − (1 − β)/2) E p² is one, and minibatch noise raises it: it is recorded
with every draw of SGHMC.

With `cycle_epochs` the learning rate falls from ℓ to zero along half a cosine in every cycle, and
begins again (Zhang et al. 2020). The epochs of a cycle before its draws are without noise: SGD,
which leads from one mode to another.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.sgmcmc.diffusions import overdamped_langevin

from onebasin.inference.map_estimate import posterior_loss
from onebasin.inference.methods import SGHMC, SGLD
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.noise import fast_normal_like
from onebasin.inference.program import DrawPlan, Info, Program, seconds_per_step
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters


class LangevinState(NamedTuple):
    """The weights, the momentum p (of SGHMC) and the records of the last step."""

    params: PyTree
    momentum: PyTree
    records: dict[str, jax.Array]
    state: PyTree | None = None


def build(problem: Problem, method: SGLD | SGHMC) -> Program:
    """One replica per chain."""
    batches = Minibatches.of(problem, method.batch_size)
    examples, size = problem.num_examples, num_parameters(problem.shapes)
    plan = draw_plan(method, batches.per_epoch)
    loss = posterior_loss(problem)
    langevin = overdamped_langevin()
    quiet = method.warmup_epochs * batches.per_epoch

    def init(key: jax.Array, data: Batch) -> LangevinState:
        del data
        params = problem.init(subkey(key, "init"))
        zero = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
        if isinstance(method, SGLD):
            return LangevinState(params, (), {"log_density": zero}, problem.state)
        still = jax.tree.map(jnp.zeros_like, params)
        records = {"log_density": zero, "kinetic_temperature": zero}
        return LangevinState(params, still, records, problem.state)

    def step(
        state: LangevinState, key: jax.Array, t: jax.Array, data: Batch
    ) -> tuple[LangevinState, Info]:
        (batch,) = batches.take(data, key, t)
        batch = batch._replace(state=state.state)
        (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
        info, after = aux
        force: PyTree = jax.tree.map(lambda g: -examples * g, gradient)
        squared = method.learning_rate / examples
        temperature: Any = 1.0
        if plan.cycle is not None:
            place = t % plan.cycle
            squared *= 0.5 * (1 + jnp.cos(jnp.pi * place / plan.cycle))
            temperature = jnp.where(place < quiet, 0.0, 1.0)
        squared = jnp.asarray(squared, value.dtype)
        temperature = jnp.asarray(temperature, value.dtype)
        noise_key = jax.random.fold_in(subkey(key, "noise"), t)
        records = {"log_density": -examples * value}  # estimated from the minibatch
        if isinstance(method, SGLD):
            step_size: Any = squared
            params = langevin(noise_key, state.params, force, step_size, temperature)
            momentum: PyTree = ()
        else:
            share, h = method.momentum, jnp.sqrt(squared)
            friction = 1 - share
            spread = jnp.sqrt(2 * friction * temperature)
            noise = fast_normal_like(state.params, key=noise_key)
            momentum = jax.tree.map(
                lambda p, g, e: share * p + h * g + spread * e,
                *(state.momentum, force, noise),
            )
            params = jax.tree.map(lambda w, p: w + h * p, state.params, momentum)
            squares = jax.tree.map(lambda p: jnp.sum(p**2), momentum)
            mean_square = jax.tree.reduce(jnp.add, squares) / size
            records["kinetic_temperature"] = (1 - friction / 2) * mean_square
        records = {name: record.astype(value.dtype) for name, record in records.items()}
        info = info | {"step_size": jnp.sqrt(squared)}
        return LangevinState(params, momentum, records, after), info

    last = method.draws - 1
    cycles, place = divmod(last, plan.per_cycle) if plan.cycle is not None else (0, last)
    return Program(
        replicas=method.chains,
        uses_run_key=False,
        steps=cycles * (plan.cycle or 0) + plan.first + place * plan.every + 1,
        steps_per_epoch=batches.per_epoch,
        data=Batch(jnp.asarray(problem.x), jnp.asarray(problem.y)),
        reports=("loss", "nll", problem.log_likelihood.score_name, "step_size"),
        init=init,
        step=step,
        draws=plan,
        measures_state=True,
        seconds_per_step=seconds_per_step(3 * problem.flops * batches.size, 2 * size),
        likely_cause=f"a learning rate of {method.learning_rate:g} that is too high",
    )


def draw_plan(method: SGLD | SGHMC, per_epoch: int) -> DrawPlan:
    """A draw every `thin_epochs`, after the `warmup_epochs` of the fit or of every cycle."""
    return DrawPlan(
        per_replica=method.draws,
        first=(method.warmup_epochs + method.thin_epochs) * per_epoch - 1,
        every=method.thin_epochs * per_epoch,
        read=lambda state: {"params": state.params, "records": state.records},
        cycle=method.cycle_epochs * per_epoch if method.cycle_epochs else None,
    )
