"""Simulation-based calibration: ranks of the truth among the draws are uniform (Talts et al. 2018).

Weights are drawn from the prior and data from the weights. If a sampler draws from the posterior of
the data, the rank of a true weight among the draws is uniform. The kernels are those of `fit`: the
programs are run here over many data sets at once.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from onebasin.inference.fitting import BUILDERS
from onebasin.inference.methods import HMC, NUTS, AdjustedMCLMC
from onebasin.likelihoods import Gaussian
from onebasin.problem import Batch, Problem

SETS, DRAWS, BINS = 500, 19, 10
X = jnp.linspace(-2, 2, 8)[:, None]
STARTED = {"draws": DRAWS, "chains": 1, "adapt_step_size": False, "step_size": 0.25}
METHODS = {
    "HMC": HMC(**STARTED, warmup=30, thin=6, leapfrog_steps=5, jitter=0.3),
    "NUTS": NUTS(**STARTED, warmup=30, thin=4, max_doublings=4, adapt_mass=False),
    "AdjustedMCLMC": AdjustedMCLMC(**STARTED, warmup=40, thin=10, leapfrog_steps=5, jitter=0.3),
}


def apply(p, x):
    """Three weights, of which two are multiplied: a curved posterior in one piece."""
    return p["out"] * jax.nn.softplus(x @ p["in"]) + p["bias"]


def problem(y):
    init = lambda _: {"in": jnp.full((1,), 0.1), "bias": jnp.zeros(()), "out": jnp.full((), 0.1)}
    return Problem(apply, init, (np.asarray(X), y), likelihood=Gaussian(0.7), prior_variance=1.0)


def ranks(method, key, shift=0.0):
    """The ranks of the three true weights and of the prediction at 1, [SETS, 4]."""
    fixed = problem(np.zeros(len(X), np.float32))
    program = BUILDERS[type(method)](fixed, method)
    assert program.draws is not None
    plan = program.draws

    def one(key):
        truth_key, noise_key, chain_key = jax.random.split(key, 3)
        values = jax.random.normal(truth_key, (3,))
        truth = {"in": values[:1], "bias": values[1], "out": values[2]}
        y = apply(truth, X) + 0.7 * jax.random.normal(noise_key, (len(X),))
        data = Batch(X[None], y[None])
        state = program.init(chain_key, data)
        numbers = lambda p: jnp.stack(
            [p["in"][0], p["bias"], p["out"], apply(p, jnp.ones((1, 1)))[0]]
        )

        def body(t, carry):
            state, below = carry
            state, _ = program.step(state, chain_key, t, data)
            lower = numbers(plan.read(state)["params"]) + shift < numbers(truth)
            return state, below + jnp.where(plan.keeps(t), lower, False)

        _, below = jax.lax.fori_loop(0, program.steps, body, (state, jnp.zeros(4, jnp.int32)))
        return below

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(key, SETS)))


def p_values(found):
    counts = [np.bincount(column * BINS // (DRAWS + 1), minlength=BINS) for column in found.T]
    return np.array([chisquare(count).pvalue for count in counts])


@pytest.mark.parametrize("name", METHODS)
def test_ranks_are_uniform(name):
    # Twelve p-values in all three: the smallest is below 1e-4 in one of 800 correct programs.
    assert p_values(ranks(METHODS[name], jax.random.key(1))).min() > 1e-4


def test_a_shift_of_a_fifth_is_found():
    """The control: draws off by 0.2, a third of a posterior standard deviation."""
    found = p_values(ranks(METHODS["HMC"], jax.random.key(1), shift=0.2))
    assert found.min() < 1e-4
