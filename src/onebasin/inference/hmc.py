"""Hamiltonian Monte Carlo, one leapfrog step at a time.

A trajectory of a large network can take minutes, so the unit of the loop is the leapfrog step, not
the transition: progress, Ctrl-C and checkpoints work within a trajectory. Integrator, metric and
acceptance are those of BlackJAX; a transition equals that of its HMC kernel with the same key.

The acceptance needs the difference of two energies whose size grows with the number of weights. It
is therefore computed from differences (see `full_batch.log_density`). The momentum at the start is
drawn again from its key instead of being stored.
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

from onebasin.inference.chains import chain_program, report
from onebasin.inference.full_batch import accurate_sum, log_density, relative_log_prior
from onebasin.inference.methods import HMC
from onebasin.inference.program import Info, Program
from onebasin.inference.shards import WHOLE, Shards
from onebasin.inference.warmup import Tuning, build_warmup
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, shapes_by_path

DIVERGENCE_THRESHOLD = 1000.0


class ChainState(NamedTuple):
    """The chain, the `path` of its current trajectory, and `records` of the last transition.

    `chain.logdensity` is the log likelihood alone; the prior is added relative to the start of
    each trajectory.
    """

    chain: HMCState
    path: IntegratorState
    tuning: Tuning
    records: dict[str, jax.Array]


def build(problem: Problem, method: HMC, shards: Shards = WHOLE) -> Program:
    warmup = build_warmup(method)
    length = method.leapfrog_steps
    inverse_mass = inverse_masses(method, problem.shapes)

    def start(position: PyTree, key: jax.Array, data: Batch) -> ChainState:
        del key
        density = log_density(problem, data, origin=position, shards=shards)
        logdensity, gradient = jax.value_and_grad(density)(position)
        chain = HMCState(position, logdensity, gradient)
        at_rest = jax.tree.map(jnp.zeros_like, position)
        path = IntegratorState(position, at_rest, logdensity, gradient)
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
            jitter_key = subkey(transition_key, "jitter")
            jitter = jax.random.uniform(jitter_key, (), step_size.dtype, -1, 1)
            step_size = step_size * (1 + method.jitter * jitter)
        metric = gaussian_euclidean(state.tuning.inverse_mass)
        chain: Any = state.chain  # BlackJAX types these arrays as floats

        def begin() -> IntegratorState:
            momentum: Any = metric.sample_momentum(momentum_key, chain.position)
            return IntegratorState(chain.position, momentum, *chain[1:])

        density = log_density(problem, data, origin=chain.position, shards=shards)
        leapfrog = velocity_verlet(density, metric.kinetic_energy)
        before = jax.lax.cond(place == 0, begin, lambda: state.path)
        end: Any = leapfrog(before, cast(Any, step_size))

        def accept_or_reject() -> ChainState:
            momentum = metric.sample_momentum(momentum_key, chain.position)
            kinetic = kinetic_difference(end.momentum, momentum, state.tuning.inverse_mass)
            decrease = end.logdensity - chain.logdensity - kinetic
            log_accept = jnp.where(jnp.isnan(decrease), -jnp.inf, decrease)
            prior = relative_log_prior(problem, end.position, chain.position)
            proposal = HMCState(end.position, end.logdensity - prior, end.logdensity_grad)
            moved, (accepted, acceptance, _) = static_binomial_sampling(
                accept_key, cast(Any, log_accept), chain, proposal
            )
            divergent = -log_accept > DIVERGENCE_THRESHOLD
            energy = metric.kinetic_energy(momentum) - state.records["log_density"]
            records = {
                "acceptance": acceptance,
                "divergent": divergent,
                "energy": energy - jnp.where(accepted, decrease, 0),
                "log_density": moved.logdensity + relative_log_prior(problem, moved.position),
            }
            records = {k: v.astype(chain.logdensity.dtype) for k, v in records.items()}
            tuning = warmup.update(state.tuning, n, moved.position, acceptance)
            return ChainState(moved, end, tuning, records)

        ended = place == length - 1
        state = jax.lax.cond(ended, accept_or_reject, lambda: state._replace(path=end))
        count = ended.astype(chain.logdensity.dtype)
        return state, report(problem, state.records, state.tuning.step_size, count)

    return chain_program(
        problem, method, shards, start=start, step=step, steps_per_transition=length
    )


def inverse_masses(method: HMC, shapes: PyTree) -> np.ndarray:
    """The inverse mass of every weight, in the order of `ravel_pytree`."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes_by_path(shapes).items()}
    masses = dict(method.masses)
    unknown = [name for name in masses if name not in sizes]
    if unknown:
        raise ValueError(
            f"HMC is given a mass of '{unknown[0]}', which is not an array of this network; "
            f"choose among {', '.join(sizes)}"
        )
    return np.concatenate([np.full(size, 1 / masses.get(name, 1)) for name, size in sizes.items()])


def kinetic_difference(end: PyTree, start: PyTree, inverse_mass: jax.Array) -> jax.Array:
    """½ Σ m⁻¹(p₁² − p₀²), summed as products of sums and differences."""
    last, first = ravel_pytree(end)[0], ravel_pytree(start)[0]
    return 0.5 * accurate_sum(inverse_mass * (last - first) * (last + first))
