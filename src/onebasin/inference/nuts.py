"""The no-U-turn sampler: BlackJAX's kernel, one transition per step of the loop."""

from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState

from onebasin.inference.chains import REPORTS, chain_program, report
from onebasin.inference.full_batch import log_density
from onebasin.inference.methods import NUTS
from onebasin.inference.program import Info, Program
from onebasin.inference.shards import WHOLE, Shards
from onebasin.inference.warmup import Tuning, build_warmup
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters

TYPICAL_LEAPFROG_STEPS = 31  # only for the length of a chunk


class NUTSState(NamedTuple):
    chain: HMCState
    tuning: Tuning
    records: dict[str, jax.Array]


def build(problem: Problem, method: NUTS, shards: Shards = WHOLE) -> Program:
    warmup = build_warmup(method)
    kernel = blackjax.nuts.build_kernel()

    def start(position: PyTree, key: jax.Array, data: Batch) -> NUTSState:
        del key
        chain = blackjax.nuts.init(position, log_density(problem, data, shards=shards))
        zero = jnp.zeros_like(chain.logdensity)
        names = ("acceptance", "divergent", "energy", "leapfrog_steps")
        records = {**dict.fromkeys(names, zero), "log_density": chain.logdensity}
        inverse_mass = jnp.ones(num_parameters(problem.shapes), zero.dtype)
        return NUTSState(chain, warmup.init(inverse_mass), records)

    def step(state: NUTSState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[NUTSState, Info]:
        tuning = state.tuning
        transition_key = jax.random.fold_in(subkey(key, "chain"), t)
        # BlackJAX starts its sums with Python numbers, whose type must be that of the energy.
        with jax.enable_x64(jnp.asarray(state.chain.logdensity).dtype == jnp.float64):
            chain, info = kernel(
                transition_key,
                state.chain,
                log_density(problem, data, shards=shards),
                tuning.step_size,
                tuning.inverse_mass,
                method.max_doublings,
            )
        records = {
            "acceptance": info.acceptance_rate,
            "divergent": info.is_divergent,
            "energy": info.energy,
            "leapfrog_steps": info.num_integration_steps,
            "log_density": chain.logdensity,
        }
        records = {k: jnp.asarray(v, chain.logdensity.dtype) for k, v in records.items()}
        tuning = warmup.update(tuning, t, chain.position, records["acceptance"])
        ended = jnp.ones_like(chain.logdensity)
        said = report(problem, records, tuning.step_size, ended)
        said |= {"leapfrog_steps": records["leapfrog_steps"]}
        return NUTSState(chain, tuning, records), said

    return chain_program(
        problem,
        method,
        shards,
        start=start,
        step=step,
        gradients_per_step=TYPICAL_LEAPFROG_STEPS,
        reports=(*REPORTS, "leapfrog_steps"),
    )
