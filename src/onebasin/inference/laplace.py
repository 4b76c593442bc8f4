"""The Laplace approximation: a Gaussian at a mode, with the curvature there as its precision.

P = G + τ diag(1/v) with G the generalised Gauss–Newton matrix of `curvature.py` (for a linear
network exactly the Hessian) and τ = 1, or the τ that maximises the estimate of the evidence

    log Z ≈ log p(y | θ*) − τ/2 Σ θ*²/v − ½ Σ log(1 + λ/τ),

where λ are the eigenvalues of √v G √v, and θ* is kept: the mode for τ = 1.

The steps of the loop are the epochs of training, then one pass for the log likelihood and its
gradient at the mode, then those of the curvature.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar

from onebasin.inference.curvature import Diagonal, LowRank, Structure
from onebasin.inference.full_batch import chunked, log_likelihood
from onebasin.inference.kronecker import KroneckerFactored
from onebasin.inference.map_estimate import MAPState
from onebasin.inference.methods import Laplace
from onebasin.inference.opening import opening
from onebasin.inference.program import Info, Program, seconds_per_step
from onebasin.keys import subkey
from onebasin.posterior import Kronecker, LowRankPrecision, MeanField
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree, num_parameters, take_entry

WIDEST, NARROWEST = math.log(1e-6), math.log(1e6)  # the range of log τ


class LaplaceState(NamedTuple):
    """The training, log likelihood and gradient of the log posterior at its end, the curvature."""

    mode: MAPState
    log_likelihood: jax.Array
    gradient: PyTree
    kept: Any


def build(problem: Problem, method: Laplace) -> Program:
    data = chunked(problem, method.data_chunk)
    structure = structure_of(problem, method, len(data.x))
    epochs = method.mode_epochs
    train = opening(problem, max(epochs, 1), method.mode_rate)

    def init(key: jax.Array, data: Batch) -> LaplaceState:
        del data
        mode = train.init(key)
        zeros = jax.tree.map(jnp.zeros_like, mode.params)
        number = jnp.zeros((), jax.tree.leaves(zeros)[0].dtype)
        kept = structure.init(mode.params, subkey(key, "curvature"))
        return LaplaceState(mode, number, zeros, kept)

    def step(
        state: LaplaceState, key: jax.Array, t: jax.Array, data: Batch
    ) -> tuple[LaplaceState, Info]:
        params = state.mode.params

        def learn() -> tuple[LaplaceState, jax.Array]:
            mode, info = train.epoch(state.mode, key, t, data)
            return state._replace(mode=mode), info["loss"].astype(state.log_likelihood.dtype)

        def loss(after: LaplaceState) -> jax.Array:
            prior = problem.log_prior(params).astype(after.log_likelihood.dtype)
            return -(after.log_likelihood + prior) / problem.num_examples

        def measure() -> tuple[LaplaceState, jax.Array]:
            value, gradient = jax.value_and_grad(log_likelihood(problem, data))(params)
            gradient = jax.tree.map(
                lambda g, p, v: g - p / v, gradient, params, problem.prior_variances
            )
            after = state._replace(log_likelihood=value, gradient=gradient)
            return after, loss(after)

        def curve() -> tuple[LaplaceState, jax.Array]:
            own = subkey(key, "curvature")
            kept = structure.step(state.kept, params, t - epochs - 1, own, data)
            return state._replace(kept=kept), loss(state)

        stage = (t >= epochs).astype(jnp.int32) + (t > epochs)
        after, value = jax.lax.switch(stage, [learn, measure, curve])
        return after, {"loss": value}

    def precision(state: LaplaceState) -> float:
        if not method.tune_prior:
            return 1.0
        squares = squared_norm(problem, state.mode.params)
        return best_precision(structure.eigenvalues(state.kept), squares)

    def finish(states: PyTree) -> MeanField | LowRankPrecision | Kronecker:
        state = take_entry(states, 0)
        mean = jax.tree.map(jnp.asarray, state.mode.params)
        return structure.posterior(state.kept, mean, precision(state))

    def statistics(states: PyTree) -> dict[str, Any]:
        state = take_entry(states, 0)
        values, tau = structure.eigenvalues(state.kept), precision(state)
        scaled = jax.tree.map(
            lambda g, v: math.sqrt(v) * jnp.asarray(g), state.gradient, problem.prior_variances
        )
        squares = squared_norm(problem, state.mode.params)
        gain = log_evidence_gain(values, squares, tau)
        return {
            "log_evidence": float(state.log_likelihood) + gain,
            "effective_parameters": float(np.sum(values / (values + tau))),
            "newton_gain": structure.newton_gain(state.kept, scaled),
            **({"prior_variance_factor": 1 / tau} if method.tune_prior else {}),
        }

    shapes = problem.shapes
    return Program(
        replicas=1,
        uses_run_key=True,
        steps=epochs + 1 + structure.steps,
        data=data,
        reports=("loss",),
        init=init,
        step=step,
        finish=finish,
        statistics=statistics,
        seconds_per_step=seconds_per_step(
            4 * problem.flops * problem.num_examples, 2 * num_parameters(shapes)
        ),
        likely_cause=f"a mode_rate of {method.mode_rate:g} that is too high",
        posterior_trees=structure.trees,
    )


def structure_of(problem: Problem, method: Laplace, chunks: int) -> Structure:
    """What the method keeps of the curvature."""
    if method.structure == "diagonal":
        return Diagonal(problem, chunks)
    if method.structure == "kronecker":
        return KroneckerFactored(problem, chunks)
    return LowRank(problem, method.rank)


def squared_norm(problem: Problem, params: PyTree) -> float:
    """Σ θ²/v."""
    terms = jax.tree.map(
        lambda p, v: np.sum(np.asarray(p, np.float64) ** 2) / v, params, problem.prior_variances
    )
    return float(sum(jax.tree.leaves(terms)))


def log_evidence_gain(eigenvalues: np.ndarray, squared_norm: float, precision: float) -> float:
    """log Z − log p(y | θ*): −τ/2 Σ θ*²/v − ½ Σ log(1 + λ/τ)."""
    values = np.asarray(eigenvalues, np.float64)
    return -0.5 * (precision * squared_norm + float(np.log1p(values / precision).sum()))


def best_precision(eigenvalues: np.ndarray, squared_norm: float) -> float:
    """The τ that maximises the estimate of the evidence, by Brent's method on log τ."""
    found = minimize_scalar(
        lambda log: -log_evidence_gain(eigenvalues, squared_norm, math.exp(log)),
        bounds=(WIDEST, NARROWEST),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return math.exp(float(found.x))  # pyright: ignore[reportAttributeAccessIssue]
