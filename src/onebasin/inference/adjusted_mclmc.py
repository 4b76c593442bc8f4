"""Microcanonical trajectories of fixed length with a Metropolis correction, step by step.

The momentum u has length one and the position moves by ε u per step; the weight of a state along
the trajectory changes with the kinetic energy that BlackJAX's isokinetic integrator returns. A
transition draws a new direction, takes a fixed number of steps and accepts with probability
min(1, exp(Δ log p − ΔK)), as that of BlackJAX's `adjusted_mclmc`. As for HMC, the unit of the loop
is one step of the integrator.

The step size of the method is the distance that a typical weight moves: ε = step_size √D. It then
compares with that of HMC, whatever the size D of the network.
"""

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.integrators import (
    IntegratorState,
    isokinetic_mclachlan,
    isokinetic_velocity_verlet,
)
from blackjax.mcmc.proposal import static_binomial_sampling
from blackjax.util import generate_unit_vector

from onebasin.inference.chains import chain_program, report
from onebasin.inference.full_batch import log_density, relative_log_prior
from onebasin.inference.hmc import DIVERGENCE_THRESHOLD
from onebasin.inference.methods import AdjustedMCLMC
from onebasin.inference.program import Info, Program
from onebasin.inference.shards import WHOLE, Shards
from onebasin.inference.warmup import Tuning, build_warmup
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters

# The isokinetic integrators, with their gradients per step.
INTEGRATORS = {"two-stage": (isokinetic_mclachlan, 2), "leapfrog": (isokinetic_velocity_verlet, 1)}


class AdjustedState(NamedTuple):
    """The chain, the `path` of its trajectory and the kinetic energy gained along it.

    `chain.logdensity` is the log likelihood alone, as for HMC.
    """

    chain: HMCState
    path: IntegratorState
    kinetic: jax.Array
    tuning: Tuning
    records: dict[str, jax.Array]


def build(problem: Problem, method: AdjustedMCLMC, shards: Shards = WHOLE) -> Program:
    size = check_dimension(problem, method)
    warmup = build_warmup(method)
    length = method.leapfrog_steps
    integrator, gradients = INTEGRATORS[method.integrator]

    def start(position: PyTree, key: jax.Array, data: Batch) -> AdjustedState:
        density = log_density(problem, data, origin=position, shards=shards)
        logdensity, gradient = jax.value_and_grad(density)(position)
        direction = generate_unit_vector(subkey(key, "direction"), position)
        zero = jnp.zeros_like(logdensity)
        records = {
            "acceptance": zero,
            "divergent": zero,
            "log_density": logdensity + relative_log_prior(problem, position),
        }
        return AdjustedState(
            HMCState(position, logdensity, gradient),
            IntegratorState(position, direction, logdensity, gradient),
            zero,
            warmup.init(jnp.ones(size, logdensity.dtype)),
            records,
        )

    def step(
        state: AdjustedState, key: jax.Array, t: jax.Array, data: Batch
    ) -> tuple[AdjustedState, Info]:
        n, place = t // length, t % length
        transition_key = jax.random.fold_in(subkey(key, "chain"), n)
        direction_key, accept_key, jitter_key = jax.random.split(transition_key, 3)
        step_size = state.tuning.step_size * math.sqrt(size)
        if method.jitter:
            jitter = jax.random.uniform(jitter_key, (), step_size.dtype, -1, 1)
            step_size = step_size * (1 + method.jitter * jitter)
        chain: Any = state.chain  # BlackJAX types these arrays as floats

        def begin() -> IntegratorState:
            direction: Any = generate_unit_vector(direction_key, chain.position)
            return IntegratorState(chain.position, direction, *chain[1:])

        density = log_density(problem, data, origin=chain.position, shards=shards)
        integrate = integrator(density, state.tuning.inverse_mass)
        before = jax.lax.cond(place == 0, begin, lambda: state.path)
        end, change = cast(Any, integrate(before, cast(Any, step_size)))
        kinetic = jnp.where(place == 0, 0, state.kinetic) + change.astype(state.kinetic.dtype)

        def accept_or_reject() -> AdjustedState:
            decrease = end.logdensity - chain.logdensity - kinetic
            log_accept = jnp.where(jnp.isnan(decrease), -jnp.inf, decrease)
            prior = relative_log_prior(problem, end.position, chain.position)
            proposal = HMCState(end.position, end.logdensity - prior, end.logdensity_grad)
            moved, (_, acceptance, _) = static_binomial_sampling(
                accept_key, cast(Any, log_accept), chain, proposal
            )
            records = {
                "acceptance": acceptance,
                "divergent": -log_accept > DIVERGENCE_THRESHOLD,
                "log_density": moved.logdensity + relative_log_prior(problem, moved.position),
            }
            records = {k: v.astype(chain.logdensity.dtype) for k, v in records.items()}
            tuning = warmup.update(state.tuning, n, moved.position, acceptance)
            return AdjustedState(moved, end, kinetic, tuning, records)

        ended = place == length - 1
        going_on = lambda: state._replace(path=end, kinetic=kinetic)
        state = jax.lax.cond(ended, accept_or_reject, going_on)
        count = ended.astype(chain.logdensity.dtype)
        return state, report(problem, state.records, state.tuning.step_size, count)

    return chain_program(
        problem,
        method,
        shards,
        start=start,
        step=step,
        steps_per_transition=length,
        gradients_per_step=gradients,
    )


def check_dimension(problem: Problem, method: object) -> int:
    """The number of weights, of which a direction needs at least two."""
    size = num_parameters(problem.shapes)
    if size < 2:
        raise ValueError(f"{type(method).__name__} needs at least two weights; use HMC for one")
    return size
