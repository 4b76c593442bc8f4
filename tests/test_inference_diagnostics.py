"""R-hat and ESS against BlackJAX, against ArviZ if it is installed, and against closed forms."""

import blackjax
import jax
import numpy as np
import pytest

from onebasin.inference.diagnostics import by_chain, energy_fraction, ess, rhat

RNG = np.random.default_rng(3)


def autoregressive(phi, chains=4, draws=2000):
    x = np.zeros((chains, draws))
    noise = RNG.normal(size=(chains, draws))
    x[:, 0] = noise[:, 0] / np.sqrt(1 - phi**2)
    for t in range(1, draws):
        x[:, t] = phi * x[:, t - 1] + noise[:, t]
    return x


def test_ess_of_an_autoregression():
    for phi in (0.0, 0.5, 0.8):
        draws = autoregressive(phi, draws=5000)
        # The variance of a mean of n such draws is that of n(1−φ)/(1+φ) independent ones.
        assert ess(draws) == pytest.approx(draws.size * (1 - phi) / (1 + phi), rel=0.2)


def test_rhat_is_one_for_chains_that_agree_and_not_for_others():
    draws = RNG.normal(size=(4, 1000, 3))
    np.testing.assert_allclose(rhat(draws), 1.0, atol=0.01)
    shifted = draws.copy()
    shifted[0, :, 1] += 2.0
    wider = draws.copy()
    wider[0, :, 2] *= 4.0
    assert rhat(shifted)[1] > 1.1
    assert rhat(wider)[2] > 1.05  # only the folded part sees a difference in scale
    assert rhat(shifted)[0] < 1.01


def test_same_as_arviz():
    arviz = pytest.importorskip("arviz")
    for phi in (-0.3, 0.0, 0.7, 0.97):
        for draws in (autoregressive(phi, draws=400), autoregressive(phi, chains=2, draws=301)):
            assert rhat(draws) == pytest.approx(float(arviz.rhat(draws)), rel=1e-6)
            # ArviZ truncates the sum by another rule for the last term, which matters when the
            # sum is long and the effective size small.
            assert ess(draws) == pytest.approx(float(arviz.ess(draws)), rel=3e-2)


def test_same_as_blackjax():
    draws = autoregressive(0.7, draws=400)
    assert rhat(draws) == pytest.approx(float(jax.jit(blackjax.diagnostics.rhat)(draws)), rel=1e-4)
    assert ess(draws) == pytest.approx(
        float(jax.jit(blackjax.diagnostics.ess_bulk)(draws)), rel=0.02
    )


def test_shapes_are_kept_and_too_few_draws_refused():
    draws = RNG.normal(size=(2, 50, 3, 2))
    assert rhat(draws).shape == (3, 2)
    assert ess(RNG.normal(size=(1, 50))).shape == ()
    with pytest.raises(ValueError, match="at least 4 draws"):
        rhat(RNG.normal(size=(2, 3)))


def test_by_chain_and_energy():
    values = np.arange(6.0)
    np.testing.assert_array_equal(by_chain(values, [0, 1, 0, 1, 0, 1]), [[0, 2, 4], [1, 3, 5]])
    with pytest.raises(ValueError, match="chains of equal length"):
        by_chain(values, [0, 0, 0, 0, 1, 1])
    # For independent energies the mean squared change is twice the variance.
    assert energy_fraction(RNG.normal(size=(1, 20_000)))[0] == pytest.approx(2.0, rel=0.05)


def test_chains_that_agree_and_chains_that_do_not():
    same = RNG.normal(size=(2, 200, 3))
    assert rhat(same).max() < 1.03
    assert ess(same).min() > 200
    # Chains that differ by a shift of every quantity disagree on all of them.
    assert rhat(same + 5.0 * np.arange(2)[:, None, None]).min() > 1.5
