"""Hamiltonian Monte Carlo, one leapfrog step at a time.

On a large network one trajectory can take minutes, so the loop's unit is the leapfrog step, not
the transition: progress, Ctrl-C and checkpoints work inside a trajectory. Integrator, metric and
acceptance are BlackJAX's; a trajectory is the one its HMC kernel makes from the same key.

The acceptance needs a difference of two energies of the size of the number of weights. It is
formed from differences (see `full_batch.log_density`), the start's momentum being drawn again
from its key rather than kept.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.integrators import IntegratorState, velocity_verlet
from blackjax.mcmc.metrics import gaussian_euclidean
from blackjax.mcmc.proposal import static_binomial_sampling
from jax.flatten_util import ravel_pytree

from onebasin.inference.full_batch import (
    accurate_sum,
    chunked,
    log_density,
    relative_log_prior,
)
from onebasin.inference.methods import HMC
from onebasin.inference.program import DrawPlan, Info, Program, seconds_per_step
from onebasin.inference.warmup import Tuning, build_warmup
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters, shapes_by_path

DIVERGENCE_THRESHOLD = 1000.0
REPORTS = ("loss", "transitions", "acceptance", "divergences", "step_size")


class ChainState(NamedTuple):
    """Where the chain stands and where its trajectory is; `records` are of the last transition.

    `chain.logdensity` is the log likelihood alone: the prior is added relative to the start of
    each trajectory.
    """

    chain: HMCState
    path: IntegratorState
    tuning: Tuning
    records: dict[str, jax.Array]


def build(problem: Problem, method: HMC) -> Program:
    warmup = build_warmup(method)
    length = method.leapfrog_steps
    transitions = method.warmup + method.draws * method.thin
    data = chunked(problem, method.data_chunk)
    size = num_parameters(problem.shapes)
    inverse_mass = inverse_masses(method, problem.shapes)

    def init(key: jax.Array, data: Batch) -> ChainState:
        position = problem.init(subkey(key, "init"))
        density = log_density(problem, data, origin=position)
        logdensity, gradient = jax.value_and_grad(density)(position)
        chain = HMCState(position, logdensity, gradient)
        still = jax.tree.map(jnp.zeros_like, position)
        path = IntegratorState(position, still, logdensity, gradient)
        names = ("acceptance", "divergent", "energy")
        log_posterior = logdensity + relative_log_prior(problem, position)
        records: dict[str, jax.Array] = {
            **dict.fromkeys(names, jnp.zeros_like(logdensity)),
            "log_density": log_posterior,
        }
        tuning = warmup.init(jnp.asarray(inverse_mass, logdensity.dtype))
        return ChainState(chain, path, tuning, records)

    def step(
        state: ChainState, key: jax.Array, t: jax.Array, data: Batch
    ) -> tuple[ChainState, Info]:
        n, place = t // length, t % length
        transition_key = jax.random.fold_in(subkey(key, "chain"), n)
        momentum_key, accept_key = jax.random.split(transition_key)
        step_size = state.tuning.step_size
        if method.jitter:
            jitter = jax.random.uniform(
                subkey(transition_key, "jitter"), (), step_size.dtype, -1, 1
            )
            step_size = step_size * (1 + method.jitter * jitter)
        metric = gaussian_euclidean(state.tuning.inverse_mass)
        chain: Any = state.chain  # BlackJAX types these arrays as floats

        def begin() -> IntegratorState:
            momentum: Any = metric.sample_momentum(momentum_key, chain.position)
            return IntegratorState(chain.position, momentum, *chain[1:])

        density = log_density(problem, data, origin=chain.position)
        leapfrog = velocity_verlet(density, metric.kinetic_energy)
        path = jax.lax.cond(place == 0, begin, lambda: state.path)
        path: Any = leapfrog(path, cast(Any, step_size))

        def end() -> ChainState:
            momentum = metric.sample_momentum(momentum_key, chain.position)
            rise = kinetic_difference(path.momentum, momentum, state.tuning.inverse_mass)
            fall = path.logdensity - chain.logdensity - rise
            log_accept = jnp.where(jnp.isnan(fall), -jnp.inf, fall)
            prior = relative_log_prior(problem, path.position, chain.position)
            proposal = HMCState(path.position, path.logdensity - prior, path.logdensity_grad)
            moved, (accepted, acceptance, _) = static_binomial_sampling(
                accept_key, cast(Any, log_accept), chain, proposal
            )
            divergent = -log_accept > DIVERGENCE_THRESHOLD
            energy = metric.kinetic_energy(momentum) - state.records["log_density"]
            records = {
                "acceptance": acceptance,
                "divergent": divergent,
                "energy": energy - jnp.where(accepted, fall, 0),
                "log_density": moved.logdensity + relative_log_prior(problem, moved.position),
            }
            records = {k: v.astype(chain.logdensity.dtype) for k, v in records.items()}
            tuning = warmup.update(state.tuning, n, moved.position, acceptance)
            return ChainState(moved, path, tuning, records)

        ended = place == length - 1
        state = jax.lax.cond(ended, end, lambda: state._replace(path=path))
        count = ended.astype(chain.logdensity.dtype)
        info = {
            "loss": -state.records["log_density"] / problem.num_examples,
            "transitions": count,
            "acceptance": count * state.records["acceptance"],
            "divergences": count * state.records["divergent"],
            "step_size": state.tuning.step_size,
        }
        return state, info

    plan = DrawPlan(
        per_lane=method.draws,
        first=(method.warmup + method.thin) * length - 1,
        every=method.thin * length,
        read=lambda state: {"params": state.chain.position, "records": state.records},
    )
    return Program(
        lanes=method.chains,
        own_key=False,
        steps=transitions * length,
        data=data,
        reports=REPORTS,
        init=init,
        step=step,
        finish=lambda _, draws: draws,
        seconds_per_step=seconds_per_step(3 * problem.flops * problem.num_examples, 2 * size),
        steps_per_epoch=None,
        likely_cause="starting weights on which the network overflows",
        draws=plan,
        summarise=summarise,
    )


def inverse_masses(method: HMC, shapes: PyTree) -> np.ndarray:
    """One over the mass of every weight, in the order in which BlackJAX ravels them."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes_by_path(shapes).items()}
    masses = dict(method.masses)
    unknown = [name for name in masses if name not in sizes]
    if unknown:
        raise ValueError(
            f"HMC is given a mass of '{unknown[0]}', which is no array of this network; "
            f"it has {', '.join(sizes)}"
        )
    return np.concatenate([np.full(size, 1 / masses.get(name, 1)) for name, size in sizes.items()])


def kinetic_difference(end: PyTree, start: PyTree, inverse_mass: jax.Array) -> jax.Array:
    """½ Σ m⁻¹(p₁² − p₀²), summed as products of sums and differences."""
    last, first = ravel_pytree(end)[0], ravel_pytree(start)[0]
    return 0.5 * accurate_sum(inverse_mass * (last - first) * (last + first))


def summarise(sums: dict[str, np.ndarray], steps: int) -> dict[str, Any]:
    """Acceptance per transition that ended in the chunk, divergences counted, the rest averaged."""
    ended = sums["transitions"]
    return {
        "loss": sums["loss"] / steps,
        "transitions": ended,
        "acceptance": sums["acceptance"] / np.maximum(ended, 1),
        "divergences": sums["divergences"],
        "step_size": sums["step_size"] / steps,
    }
