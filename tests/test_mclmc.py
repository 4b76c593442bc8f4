"""Microcanonical sampling against exact posteriors; chains that begin at a mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fit_process import problem as classifier
from onebasin.inference.closing import advice
from onebasin.inference.fitting import fit
from onebasin.inference.methods import HMC, MCLMC, AdjustedMCLMC, Ensemble, to_config
from onebasin.likelihoods import Gaussian
from onebasin.problem import Problem
from posterior_cases import check_moments, conjugate, logistic


@pytest.mark.parametrize(
    ("target", "integrator"), [(conjugate, "two-stage"), (logistic, "leapfrog")]
)
@pytest.mark.usefixtures("x64")
def test_adjusted_trajectories_match_exact_moments(target, integrator):
    problem, mean, covariance = target()
    method = AdjustedMCLMC(
        draws=2500,
        warmup=300,
        chains=2,
        leapfrog_steps=4 if integrator == "two-stage" else 8,
        step_size=0.01,
        jitter=0.3,
        integrator=integrator,
    )
    result = fit(problem, method, key=jax.random.key(4), progress="silent")
    check_moments(result.posterior, mean, covariance)
    stats = result.stats
    assert stats["rhat_predictions_max"] < 1.02
    # Dual averaging aims at 0.9.
    assert ((stats["acceptance"] > 0.85) & (stats["acceptance"] < 0.98)).all()
    assert "energy" not in stats  # a microcanonical chain has a fixed one


@pytest.mark.parametrize(
    ("target", "integrator"), [(conjugate, "leapfrog"), (logistic, "two-stage")]
)
@pytest.mark.usefixtures("x64")
def test_short_steps_without_a_correction_match_exact_moments(target, integrator):
    problem, mean, covariance = target()
    # A step of leapfrog is shorter at the same energy error.
    thin = 4 if integrator == "two-stage" else 8
    method = MCLMC(
        draws=3000, warmup=2000, thin=thin, chains=2, step_size=0.01, integrator=integrator
    )
    result = fit(problem, method, key=jax.random.key(4), progress="silent")
    check_moments(result.posterior, mean, covariance)
    assert result.stats["rhat_predictions_max"] < 1.02
    assert result.stats["divergences"].sum() == 0


@pytest.mark.usefixtures("x64")
def test_the_bias_grows_with_the_energy_error_and_the_correction_removes_it():
    """A standard normal of 20 dimensions: without a correction, long steps change the variance."""
    size = 20
    problem = Problem(
        apply=lambda p, x: x * p["w"],
        init=lambda key: {"w": jax.random.normal(key, (size,))},
        data=(np.eye(size), np.zeros((size, size))),
        likelihood=Gaussian(1.0),
        prior_variance=1e6,
    )

    def variance_and_error(method):
        result = fit(problem, method, key=jax.random.key(2), progress="silent")
        draws = np.asarray(result.posterior.draws["w"])
        # Every coordinate is standard normal; 2 × 2,000 draws of 20 of them.
        return draws.var(), result.stats

    options = {"draws": 2000, "chains": 2, "warmup": 600, "step_size": 0.1}
    close, stats = variance_and_error(MCLMC(thin=3, energy_error=5e-4, **options))
    far, worse = variance_and_error(MCLMC(thin=3, energy_error=0.3, **options))
    corrected, _ = variance_and_error(AdjustedMCLMC(leapfrog_steps=3, **options))
    # The tuning aims at these energy errors, and its averages over 150 steps are noisy.
    np.testing.assert_allclose(np.log(stats["energy_error"].mean() / 5e-4), 0, atol=np.log(3))
    assert worse["energy_error"].mean() > 100 * stats["energy_error"].mean()
    # 80,000 values of autocorrelation time 3 at most determine a variance to √(6/80000) ≈ 0.9 %.
    assert abs(close - 1) < 0.03
    assert abs(corrected - 1) < 0.03
    assert abs(far - 1) > 0.05
    # Every fit reports its bias: the excess of the variance on average over the directions.
    for found, own in ((close, stats), (far, worse)):
        np.testing.assert_allclose(own["equipartition"].mean(), found, atol=0.01)


@pytest.mark.parametrize("kind", [HMC, MCLMC])
def test_chains_begin_at_the_mode_that_map_finds(kind):
    key = jax.random.key(5)
    still = {"step_size": 1e-9, "draws": 1, "warmup": 0, "thin": 1, "chains": 2}
    if kind is HMC:
        still |= {"leapfrog_steps": 1}
    begun = fit(classifier(), kind(mode_epochs=7, **still), key=key, progress="silent")
    modes = fit(classifier(), Ensemble(members=2, epochs=7), key=key, progress="silent")
    for name in ("hidden", "out"):
        np.testing.assert_allclose(
            begun.posterior.draws[name], modes.posterior.draws[name], atol=1e-5
        )


def test_a_config_without_an_opening_is_that_of_earlier_files():
    assert "mode_epochs" not in to_config(HMC())
    assert to_config(MCLMC(mode_epochs=3))["mode_rate"] == 1e-3


def test_one_weight_has_no_direction():
    problem = Problem(
        apply=lambda p, x: x * p["w"],
        init=lambda _: {"w": jnp.zeros(1)},
        data=(np.ones((4, 1)), np.zeros((4, 1))),
        likelihood="gaussian",
    )
    for kind in (MCLMC, AdjustedMCLMC):
        with pytest.raises(ValueError, match=f"{kind.__name__} needs at least two weights"):
            fit(problem, kind(), key=jax.random.key(0))


def test_a_fit_says_that_its_draws_have_a_bias():
    (note,) = advice({"equipartition": np.array([1.2, 1.18, 1.22, 1.2])}, 100)
    assert "variances are 20 % too large on average" in note
    assert "smaller energy_error" in note
    assert "too small" in advice({"equipartition": np.array([0.8, 0.81])}, 100)[0]
    # Within the differences between chains, or small.
    assert not advice({"equipartition": np.array([1.3, 0.9, 1.0])}, 100)
    assert not advice({"equipartition": np.array([1.03, 1.03])}, 100)
