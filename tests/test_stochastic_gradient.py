"""SGLD and SGHMC against the exact stationary distributions of their discrete steps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from fit_process import problem as classifier
from onebasin.inference.fitting import fit
from onebasin.inference.map_estimate import posterior_loss
from onebasin.inference.methods import SGHMC, SGLD
from onebasin.inference.program import DrawPlan
from onebasin.inference.stochastic_gradient import build
from posterior_cases import check_moments, conjugate

KEY = jax.random.key(4)


def stationary(precision, step, momentum):
    """Covariance of θ, and the mean square of p, of the linear recursion on a Gaussian posterior.

    With momentum p' = βp − hPθ + √(2(1−β))ξ and θ' = θ + hp'; SGLD is the case β = 0.
    """
    size, h = len(precision), step
    eye = np.eye(size)
    kick = np.block([[eye, np.zeros((size, size))], [-h * precision, momentum * eye]])
    drift = np.block([[eye, h * eye], [np.zeros((size, size)), eye]])
    noise = np.zeros((2 * size, 2 * size))
    noise[size:, size:] = 2 * (1 - momentum) * eye
    joint = solve_discrete_lyapunov(drift @ kick, drift @ noise @ drift.T)
    return joint[:size, :size], np.trace(joint[size:, size:]) / size


@pytest.mark.parametrize("method", [SGLD, SGHMC])
@pytest.mark.usefixtures("x64")
def test_full_batches_have_the_bias_of_the_step_and_no_other(method):
    """An epoch is one step. The step is so long that the bias is a multiple of the error."""
    problem, mean, covariance = conjugate()
    precision, momentum = np.linalg.inv(covariance), 0.0 if method is SGLD else 0.7
    largest = np.linalg.eigvalsh(precision).max()
    rate = (0.5 if method is SGLD else 1.0) / largest * problem.num_examples
    expected, square = stationary(precision, np.sqrt(rate / problem.num_examples), momentum)
    chosen = method(draws=4000, warmup_epochs=200, thin_epochs=6, learning_rate=rate)
    if method is SGHMC:
        chosen = replace(chosen, momentum=momentum)
    result = fit(problem, chosen, key=KEY, progress="silent")
    check_moments(result.posterior, mean, expected)
    assert abs(expected[2, 2] / covariance[2, 2] - 1) > 0.2  # otherwise the bias is not tested
    if method is SGHMC:
        # A mean of 3 squares, 16,000 times, of autocorrelation time 3 at most.
        assert result.stats["kinetic_temperature"].mean() == pytest.approx(
            (1 - (1 - momentum) / 2) * square, rel=5 * np.sqrt(2 / 3 * 3 / 16_000)
        )


@pytest.mark.parametrize("method", [SGLD, SGHMC])
@pytest.mark.usefixtures("x64")
def test_short_steps_approach_the_posterior(method):
    problem, mean, covariance = conjugate()
    largest = 1 / np.linalg.eigvalsh(covariance).min()
    for part in (0.1, 0.01):
        biased, _ = stationary(np.linalg.inv(covariance), np.sqrt(part / largest), 0.0)
        assert np.abs(biased / covariance - 1).max() < 10 * part
    # Minibatches of 20 of 100, with steps so short that their noise vanishes in that added.
    rate = 0.02 / largest * problem.num_examples * (1 if method is SGLD else 0.1)
    found = fit(
        problem,
        method(draws=2000, warmup_epochs=100, thin_epochs=20, batch_size=20, learning_rate=rate),
        key=KEY,
        progress="silent",
    ).posterior
    draws = np.asarray(found.draws["w"])
    # 8,000 draws of autocorrelation time below 4 determine a std to 2 %; the noise adds some.
    np.testing.assert_allclose(draws.std(0), np.sqrt(np.diag(covariance)), rtol=0.08)
    error = np.sqrt(np.diag(covariance) * 4 / len(draws))
    assert (np.abs(draws.mean(0) - mean) < 5 * error).all()


def test_draws_come_at_the_ends_of_cycles():
    plan = DrawPlan(5, first=5, every=2, read=lambda s: s, cycle=10)
    assert plan.per_cycle == 3
    kept = [t for t in range(40) if bool(plan.keeps(jnp.asarray(t)))]
    assert kept[:6] == [5, 7, 9, 15, 17, 19]
    for t in range(40):
        assert plan.kept_before(t) == min(sum(k < t for k in kept), 5)


def test_the_step_size_falls_in_every_cycle():
    method = SGLD(
        draws=3, warmup_epochs=4, thin_epochs=1, cycle_epochs=6, chains=2, learning_rate=0.05
    )
    result = fit(classifier(), method, key=KEY, progress="silent", chunk_steps=1)
    steps = np.array([row["step_size"] for row in result.history])[:, 0]
    places = np.arange(len(steps)) % 6
    expected = np.sqrt(0.05 / 500 * 0.5 * (1 + np.cos(np.pi * places / 6)))
    np.testing.assert_allclose(steps, expected, rtol=1e-5)
    # Two draws of the first cycle, one of the second: 6 + 5 steps of one epoch each.
    assert len(steps) == 11
    again = fit(classifier(), method, key=KEY, progress="silent")
    np.testing.assert_array_equal(result.posterior.draws["out"], again.posterior.draws["out"])


@pytest.mark.parametrize("kind", [SGLD, SGHMC])
def test_a_cycle_begins_without_noise(kind):
    program = build(classifier(), kind(warmup_epochs=2, cycle_epochs=3, learning_rate=0.1))
    state = program.init(KEY, program.data)
    loss = lambda p: posterior_loss(classifier())(p, program.data)[0]
    quiet, _ = jax.jit(program.step)(state, KEY, jnp.int32(0), program.data)
    noisy, _ = jax.jit(program.step)(state, KEY, jnp.int32(2), program.data)
    gradient = jax.grad(loss)(state.params)
    for name in ("hidden", "out"):
        by_sgd = np.asarray(state.params[name] - 0.1 * gradient[name])
        np.testing.assert_allclose(quiet.params[name], by_sgd, atol=1e-6)
        assert np.abs(noisy.params[name] - state.params[name]).mean() > 1e-3


def test_a_cycle_too_short_for_a_draw_is_refused():
    with pytest.raises(ValueError, match=r"cycle_epochs of SGHMC is 30, .* give at least 51"):
        SGHMC(cycle_epochs=30)
