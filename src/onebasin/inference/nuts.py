"""The no-U-turn sampler: BlackJAX's kernel, one transition per step of the loop."""

from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState

from onebasin.inference.full_batch import chunked, log_density
from onebasin.inference.hmc import REPORTS, summarise
from onebasin.inference.methods import NUTS
from onebasin.inference.program import DrawPlan, Info, Program, seconds_per_step
from onebasin.inference.warmup import Tuning, build_warmup
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import num_parameters

TYPICAL_LEAPFROG_STEPS = 31  # only for the length of a chunk


class NUTSState(NamedTuple):
    chain: HMCState
    tuning: Tuning
    records: dict[str, jax.Array]


def build(problem: Problem, method: NUTS) -> Program:
    warmup = build_warmup(method)
    kernel = blackjax.nuts.build_kernel()
    data = chunked(problem, method.data_chunk)
    size = num_parameters(problem.shapes)

    def init(key: jax.Array, data: Batch) -> NUTSState:
        position = problem.init(subkey(key, "init"))
        chain = blackjax.nuts.init(position, log_density(problem, data))
        zero = jnp.zeros_like(chain.logdensity)
        names = ("acceptance", "divergent", "energy", "leapfrog_steps")
        records = {**dict.fromkeys(names, zero), "log_density": chain.logdensity}
        return NUTSState(chain, warmup.init(jnp.ones(size, zero.dtype)), records)

    def step(state: NUTSState, key: jax.Array, t: jax.Array, data: Batch) -> tuple[NUTSState, Info]:
        step_key = jax.random.fold_in(subkey(key, "chain"), t)
        tuning = state.tuning
        chain, info = kernel(
            step_key,
            state.chain,
            log_density(problem, data),
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
        report = {
            "loss": -chain.logdensity / problem.num_examples,
            "transitions": jnp.ones_like(chain.logdensity),
            "acceptance": records["acceptance"],
            "divergences": records["divergent"],
            "step_size": tuning.step_size,
        }
        return NUTSState(chain, tuning, records), report

    plan = DrawPlan(
        per_lane=method.draws,
        first=method.warmup + method.thin - 1,
        every=method.thin,
        read=lambda state: {"params": state.chain.position, "records": state.records},
    )
    gradient_flops = 3 * problem.flops * problem.num_examples
    return Program(
        lanes=method.chains,
        own_key=False,
        steps=method.warmup + method.draws * method.thin,
        data=data,
        reports=REPORTS,
        init=init,
        step=step,
        finish=lambda _, draws: draws,
        seconds_per_step=TYPICAL_LEAPFROG_STEPS * seconds_per_step(gradient_flops, 2 * size),
        steps_per_epoch=None,
        likely_cause="starting weights on which the network overflows",
        draws=plan,
        summarise=summarise,
    )
