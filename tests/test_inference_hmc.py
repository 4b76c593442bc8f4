"""HMC and NUTS against exact posteriors and BlackJAX's kernels."""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from onebasin.inference.diagnostics import by_chain
from onebasin.inference.fitting import fit
from onebasin.inference.full_batch import accurate_sum, chunked, log_density
from onebasin.inference.hmc import inverse_masses
from onebasin.inference.methods import HMC, NUTS
from onebasin.inference.warmup import build_warmup
from onebasin.keys import subkey
from onebasin.likelihoods import Gaussian
from onebasin.posterior import load, save
from onebasin.problem import Problem
from posterior_cases import check_moments, conjugate, logistic

RNG = np.random.default_rng(2)


@pytest.mark.parametrize("target", [conjugate, logistic])
@pytest.mark.parametrize(
    "method",
    [
        HMC(draws=2500, warmup=300, leapfrog_steps=9, step_size=0.01, jitter=0.3, chains=2),
        NUTS(draws=1500, warmup=300, chains=2),
    ],
    ids=["HMC", "NUTS"],
)
@pytest.mark.usefixtures("x64")
def test_samplers_match_exact_moments(target, method):
    problem, mean, covariance = target()
    result = fit(problem, method, key=jax.random.key(4), progress="silent")
    check_moments(result.posterior, mean, covariance)
    stats = result.stats
    assert stats["rhat_predictions_max"] < 1.02
    assert stats["divergences"].sum() == 0
    assert stats["energy"].shape == (2, method.draws)
    assert (stats["energy_fraction"] > 0.5).all()
    # Dual averaging aims at 0.8; its final step size usually gives somewhat more.
    assert ((stats["acceptance"] > 0.7) & (stats["acceptance"] < 0.98)).all()


@pytest.mark.parametrize("mass", [1.0, 0.6])
@pytest.mark.usefixtures("x64")
def test_a_transition_is_that_of_blackjax(mass):
    problem, _, _ = logistic()
    method = HMC(
        draws=12,
        warmup=0,
        leapfrog_steps=7,
        step_size=0.4,
        jitter=0.0,
        adapt_step_size=False,
        masses=(("w", mass),),
        chains=1,
    )
    key = jax.random.key(9)
    inverse_mass = jnp.full(2, 1 / mass)
    ours = fit(problem, method, key=key, progress="silent", chunk_steps=5)
    chain_key = jax.random.fold_in(key, 0)
    density = lambda p: problem.log_posterior(p, (problem.x, problem.y))[0]
    kernel = jax.jit(
        lambda key, state: blackjax.hmc.build_kernel()(key, state, density, 0.4, inverse_mass, 7)
    )
    state = blackjax.hmc.init(problem.init(subkey(chain_key, "init")), density)
    accepted = []
    for n in range(12):
        state, info = kernel(jax.random.fold_in(subkey(chain_key, "chain"), n), state)
        accepted.append(float(info.acceptance_rate))
        np.testing.assert_allclose(ours.posterior.draw(n)["w"], state.position["w"], rtol=1e-9)
    np.testing.assert_allclose(ours.stats["acceptance"], np.mean(accepted), rtol=1e-9)
    assert min(accepted) < 0.95  # otherwise the acceptance would not be tested


@pytest.mark.parametrize("size", [100, 40, 7])
@pytest.mark.usefixtures("x64")
def test_the_chunked_density_and_gradient_are_those_of_all_data(size):
    problem, _, _ = conjugate()
    params = {"w": jnp.array([0.3, -0.2, 0.9])}
    density = log_density(problem, chunked(problem, size))
    value, gradient = jax.jit(jax.value_and_grad(density))(params)
    whole = lambda p: problem.log_posterior(p, (problem.x, problem.y))[0]
    expected, expected_gradient = jax.value_and_grad(whole)(params)
    constant = problem.log_prior({"w": jnp.zeros(3)})
    np.testing.assert_allclose(value + constant, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient["w"], expected_gradient["w"], rtol=1e-12)
    np.testing.assert_allclose(density(params), value, rtol=1e-12)


def test_memory_does_not_grow_with_the_data():
    def temporaries(examples):
        x = RNG.normal(size=(examples, 20)).astype(np.float32)
        problem = Problem(
            apply=lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"],
            init=lambda _: {"a": jnp.zeros((20, 300)), "b": jnp.zeros((300, 2))},
            data=(x, np.zeros(examples, np.int32)),
        )
        method = HMC(draws=1, warmup=0, leapfrog_steps=1, chains=1, data_chunk=100)
        result = fit(problem, method, key=jax.random.key(0), progress="silent")
        return result.stats["memory"]["temporaries"]

    assert temporaries(4000) < 1.1 * temporaries(400)


def test_draws_on_disk_are_thinned(tmp_path):
    problem, _, _ = conjugate()
    thin = 3
    method = HMC(draws=8, warmup=5, leapfrog_steps=4, thin=thin, chains=2, step_size=0.02)
    key = jax.random.key(3)
    out = tmp_path / "draws.safetensors"
    result = fit(problem, method, key=key, out=out, progress="silent", chunk_steps=7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draws.safetensors"]
    loaded = load(out)
    np.testing.assert_array_equal(loaded.chain, np.repeat([0, 1], 8))
    np.testing.assert_array_equal(result.posterior.draws["w"], loaded.draws["w"])
    # They equal draws that are saved at the end,
    again = load(save(tmp_path / "again.safetensors", result.posterior))
    np.testing.assert_array_equal(again.draws["w"], loaded.draws["w"])
    # and every third draw of a fit without thinning.
    every = fit(
        problem,
        HMC(draws=8 * thin, warmup=5, leapfrog_steps=4, chains=2, step_size=0.02),
        key=key,
        progress="silent",
    ).posterior
    kept = by_chain(np.asarray(every.draws["w"]), every.chain)[:, thin - 1 :: thin]
    np.testing.assert_array_equal(kept.reshape(-1, 3), loaded.draws["w"])


@pytest.mark.usefixtures("x64")
def test_a_heavy_array_allows_longer_steps():
    """Weights with stds 0.02 and 1 have the same frequency if the first has a mass of 2,500."""
    scales = {"narrow": 0.02, "wide": 1.0}
    problem = Problem(
        apply=lambda p, x: x * jnp.concatenate([p["narrow"], p["wide"]]),
        init=lambda key: {n: s * jax.random.normal(key, (1,)) for n, s in scales.items()},
        data=(np.diag(1 / np.array(list(scales.values()))), np.zeros((2, 2))),
        likelihood="gaussian",
        prior_variance=1e6,
    )
    settings: dict[str, Any] = {
        "draws": 1000,
        "warmup": 20,
        "leapfrog_steps": 7,
        "step_size": 0.2,
        "chains": 2,
        "adapt_step_size": False,
    }
    heavy = HMC(**settings, masses=(("narrow", 2500.0),))
    result = fit(problem, heavy, key=jax.random.key(3), progress="silent")
    assert (result.stats["acceptance"] > 0.95).all()
    for name, scale in scales.items():
        # 2,000 almost independent draws determine a std to 1.6 %.
        np.testing.assert_allclose(np.std(result.posterior.draws[name]), scale, rtol=0.07)
    unit = fit(problem, HMC(**settings), key=jax.random.key(3), progress="silent")
    assert (unit.stats["acceptance"] < 0.01).all()


@pytest.mark.parametrize("kind", [HMC, NUTS])
def test_a_given_step_size_is_reached_gradually(kind):
    warmup = build_warmup(kind(warmup=6, step_size=0.3, adapt_step_size=False, adapt_mass=False))
    tuning = warmup.init(jnp.ones(2))
    sizes = [float(tuning.step_size)]
    for n in range(8):
        tuning = warmup.update(tuning, jnp.asarray(n), {"w": jnp.zeros(2)}, jnp.asarray(0.0))
        sizes.append(float(tuning.step_size))
    np.testing.assert_allclose(sizes, 0.3 * np.array([1 / 3, 2 / 3, *[1] * 7]), rtol=1e-6)
    none = build_warmup(kind(warmup=0, step_size=0.3, adapt_step_size=False, adapt_mass=False))
    np.testing.assert_allclose(none.init(jnp.ones(2)).step_size, 0.3, rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_a_chain_leaves_a_stiff_start():
    """Outputs are cubes of the weight: steps of 0.4 are unstable at 6 and stable near the mode."""
    problem = Problem(
        apply=lambda p, x: x * p["w"] ** 3,
        init=lambda _: {"w": jnp.full(1, 6.0)},
        data=(np.ones((4, 1)), np.zeros((4, 1))),
        likelihood=Gaussian(20.0),
    )
    settings: dict[str, Any] = {
        "draws": 20,
        "leapfrog_steps": 8,
        "step_size": 0.4,
        "chains": 2,
        "jitter": 0.0,
    }
    stuck = HMC(**settings, warmup=0, adapt_step_size=False)
    grown = HMC(**settings, warmup=20, adapt_step_size=False)
    first, second = (
        fit(problem, method, key=jax.random.key(2), progress="silent") for method in (stuck, grown)
    )
    assert (first.posterior.draws["w"] == 6.0).all()
    assert (np.abs(second.posterior.draws["w"]) < 4.0).all()
    assert (second.stats["acceptance"] > 0.6).all()


def test_masses_are_in_the_order_of_the_weights():
    shapes = {"b": jnp.zeros((2, 2)), "a": {"c": jnp.zeros(3), "d": jnp.zeros(())}}
    method = HMC(masses=(("b", 4.0), ("a/d", 2.0)))
    per_weight = {"b": jnp.full((2, 2), 0.25), "a": {"c": jnp.ones(3), "d": jnp.asarray(0.5)}}
    expected = ravel_pytree(per_weight)[0]
    np.testing.assert_array_equal(inverse_masses(method, shapes), expected)


@pytest.mark.usefixtures("x64")
def test_mass_adaptation_learns_the_scales():
    scales = np.array([0.01, 1.0, 30.0])
    problem = Problem(
        apply=lambda p, x: x * p["w"],
        init=lambda key: {"w": jnp.asarray(scales) * jax.random.normal(key, (3,))},
        data=(np.diag(1 / scales)[:, :], np.zeros((3, 3))),
        likelihood="gaussian",
        prior_variance=1e6,
    )
    method = NUTS(draws=400, warmup=400, chains=2, step_size=0.01)
    result = fit(problem, method, key=jax.random.key(1), progress="silent")
    draws = np.asarray(result.posterior.draws["w"])
    np.testing.assert_allclose(draws.std(0) / scales, 1.0, atol=0.25)
    assert (result.stats["leapfrog_steps"] < 12).all()


def test_sums_in_stages_are_accurate():
    values = np.abs(RNG.normal(size=1_000_003)).astype(np.float32)
    exact = values.astype(np.float64).sum()
    assert abs(float(accurate_sum(jnp.asarray(values))) - exact) < 2e-6 * exact


def test_ravelling_order_is_that_of_the_metric():
    tree = {"b": jnp.ones(2), "a": jnp.zeros(3)}
    np.testing.assert_array_equal(ravel_pytree(tree)[0], [0, 0, 0, 1, 1])
