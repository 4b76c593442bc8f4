"""Microcanonical Langevin Monte Carlo without a Metropolis correction: BlackJAX's integrators.

One step of the loop is one step of the integrator, after which noise turns the direction a little.
(BlackJAX turns it by half before and after, with Threefry: for a small network, drawing that noise
takes longer than the gradient.) The tuning follows BlackJAX's, as a state that is updated step by
step so that a fit can stop and resume anywhere:

- **Step size.** The variance of the energy error grows with the sixth power of the step size ε. So
  every step predicts the ε at which it would be D × `energy_error`, and a weighted average over
  about 150 steps is used. A step that is not finite lowers an upper bound.
- **Length** L after which the direction is forgotten: the root of the summed variances of the
  weights, from the second part of the warm-up (√D in coordinates of unit variance).

`step_size` and `length` of the method are per √D: distances that a typical weight moves.

The bias is measured as well. Whatever the posterior is, E[−(θ − c)·∇ log p] = D for any fixed c
(integrate by parts). For a Gaussian it is D(1 + b) if the variances are too large by b on average.
"""

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.integrators import IntegratorState
from blackjax.util import generate_unit_vector

from onebasin.inference.adjusted_mclmc import INTEGRATORS, check_dimension
from onebasin.inference.chains import chain_program
from onebasin.inference.full_batch import log_density, relative_log_prior
from onebasin.inference.methods import MCLMC
from onebasin.inference.noise import fast_normal_like
from onebasin.inference.program import Info, Program
from onebasin.inference.shards import WHOLE, Shards
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters, tree_dot

MEMORY = 150  # steps over which the prediction of the step size is averaged
TRUST = 1.5  # how far from its aim the energy error of a step may be before it counts less
SHRINK = 0.8  # factor on a step size at which a step was not finite
MEASURE, RETUNE = 0.4, 0.8  # parts of the warm-up at which variances are measured, and then used


class StepTuning(NamedTuple):
    """Step size and length, and the sums from which they follow."""

    step_size: jax.Array
    length: jax.Array
    weight: jax.Array
    average: jax.Array
    largest: jax.Array
    measured: jax.Array
    mean: PyTree
    squares: jax.Array


class MCLMCState(NamedTuple):
    """`chain.logdensity` is the log likelihood alone, as for HMC."""

    chain: IntegratorState
    tuning: StepTuning
    records: dict[str, jax.Array]


def build(problem: Problem, method: MCLMC, shards: Shards = WHOLE) -> Program:
    size = check_dimension(problem, method)
    scale = math.sqrt(size)
    integrator, gradients = INTEGRATORS[method.integrator]
    sizes = jax.tree.map(lambda leaf: math.prod(leaf.shape), problem.shapes)
    variances = jax.tree.map(lambda v, n: v * n, problem.prior_variances, sizes)
    prior_length = math.sqrt(sum(jax.tree.leaves(variances)))
    first_length = prior_length if method.length is None else method.length * scale
    measure, retune = (int(part * method.warmup) for part in (MEASURE, RETUNE))

    def start(position: PyTree, key: jax.Array, data: Batch) -> MCLMCState:
        density = log_density(problem, data, origin=position, shards=shards)
        logdensity, gradient = jax.value_and_grad(density)(position)
        direction = generate_unit_vector(subkey(key, "direction"), position)
        number = lambda value: jnp.asarray(value, logdensity.dtype)
        zero = number(0.0)
        tuning = StepTuning(
            *(number(method.step_size * scale), number(first_length)),
            *(zero, zero, number(jnp.finfo(logdensity.dtype).max)),
            *(zero, jax.tree.map(jnp.zeros_like, position), zero),
        )
        log_posterior = logdensity + relative_log_prior(problem, position)
        records = {
            "energy_error": zero,
            "divergent": zero,
            "equipartition": zero,
            "log_density": log_posterior,
        }
        chain = IntegratorState(position, direction, cast(Any, logdensity), gradient)
        return MCLMCState(chain, tuning, records)

    def step(
        state: MCLMCState, key: jax.Array, t: jax.Array, data: Batch
    ) -> tuple[MCLMCState, Info]:
        chain: Any = state.chain
        tuning = state.tuning
        step_key = jax.random.fold_in(subkey(key, "chain"), t)
        density = log_density(problem, data, origin=chain.position, shards=shards)
        length, step_size = cast(Any, tuning.length), cast(Any, tuning.step_size)
        moved, kinetic = cast(Any, integrator(density, cast(Any, 1.0))(chain, step_size))
        change = kinetic - moved.logdensity + chain.logdensity
        finite = jnp.isfinite(change)
        for leaf in jax.tree.leaves(moved.position):
            finite &= jnp.isfinite(leaf).all()
        # A step that was not finite leaves the chain where it was, with another direction.
        moved = jax.tree.map(lambda a, b: jnp.where(finite, a, b), moved, chain)
        noise = fast_normal_like(chain.position, key=step_key)
        spread = jnp.where(finite, jnp.sqrt(jnp.expm1(2 * step_size / length) / size), 1)
        moved = moved._replace(momentum=turned(moved.momentum, spread, noise, finite))
        prior = relative_log_prior(problem, moved.position, chain.position)
        log_likelihood = moved.logdensity - prior
        error = jnp.where(finite, change.astype(log_likelihood.dtype) ** 2 / size, 0)
        log_likelihood = jnp.where(finite, log_likelihood, chain.logdensity)
        records = {
            "energy_error": error,
            "divergent": (~finite).astype(error.dtype),
            "equipartition": equipartition(moved, tuning.mean).astype(error.dtype),
            "log_density": log_likelihood + relative_log_prior(problem, moved.position),
        }
        chain = moved._replace(logdensity=log_likelihood)
        tuning = update(tuning, t, chain.position, error, finite)
        report = {
            "loss": -records["log_density"] / problem.num_examples,
            "energy_error": error,
            "divergences": records["divergent"],
            "step_size": tuning.step_size / scale,
            "length": tuning.length / scale,
        }
        return MCLMCState(chain, tuning, records), report

    def update(
        tuning: StepTuning, t: jax.Array, position: PyTree, error: jax.Array, finite: jax.Array
    ) -> StepTuning:
        """The tuning after step t; it is constant after the warm-up."""
        ratio = error / method.energy_error + 1e-8
        sure = finite * jnp.exp(-0.5 * (jnp.log(ratio) / (6 * TRUST)) ** 2)
        decay = (MEMORY - 1) / (MEMORY + 1)
        weight = decay * tuning.weight + sure
        average = decay * tuning.average + sure * ratio / tuning.step_size**6
        largest = jnp.where(finite, tuning.largest, SHRINK * tuning.step_size)
        predicted = jnp.where(weight > 0, (average / weight) ** (-1 / 6), tuning.step_size)
        step_size = jnp.minimum(predicted, largest)
        counts = (t >= measure) & (t < retune)
        count = tuning.measured + counts
        before = jax.tree.map(jnp.subtract, position, tuning.mean)
        share = jnp.where(counts, 1 / jnp.maximum(count, 1), 0)
        mean = jax.tree.map(lambda m, d: m + share.astype(m.dtype) * d, tuning.mean, before)
        after = jax.tree.map(jnp.subtract, position, mean)
        squares = tuning.squares + jnp.where(counts, tree_dot(before, after), 0)
        length = tuning.length
        if method.length is None and retune - measure > 1:
            spread = jnp.sqrt(squares / jnp.maximum(count, 1))
            length = jnp.where(t == retune - 1, spread, length)
        new = StepTuning(step_size, length, weight, average, largest, count, mean, squares)
        return jax.tree.map(
            lambda a, b: jnp.where(t < method.warmup, a.astype(b.dtype), b), new, tuning
        )

    return chain_program(
        problem,
        method,
        shards,
        start=start,
        step=step,
        gradients_per_step=gradients,
        reports=("loss", "energy_error", "divergences", "step_size", "length"),
        summarise=summary,
    )


def turned(direction: PyTree, spread: jax.Array, noise: PyTree, keep: jax.Array) -> PyTree:
    """The direction with noise, or the noise alone, of length one."""
    raw = jax.tree.map(
        lambda u, z: jnp.where(keep, u, 0) + spread.astype(z.dtype) * z, direction, noise
    )
    length = jnp.sqrt(tree_dot(raw, raw))
    return jax.tree.map(lambda leaf: leaf / length.astype(leaf.dtype), raw)


def equipartition(chain: IntegratorState, centre: PyTree) -> jax.Array:
    """−(θ − c)·∇ log p / D, with the mean of the warm-up as c."""
    offset = jax.tree.map(jnp.subtract, chain.position, centre)
    return -tree_dot(offset, chain.logdensity_grad) / num_parameters(chain.position)


def summary(sums: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """Number of divergences, means per step of the rest."""
    return {n: total if n == "divergences" else total / steps for n, total in sums.items()}
