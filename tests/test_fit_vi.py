"""Variational and MAP fits against closed forms; members and runs against single fits."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.inference.fitting import fit
from onebasin.inference.methods import MAP, VI, Ensemble
from onebasin.inference.minibatches import Minibatches
from onebasin.inference.optimisers import direction, last_direction, schedule
from onebasin.inference.vi import Variational, analytic_kl, elbo_gradient, learning_rates
from onebasin.inference.vi_defaults import initial_stds, settled
from onebasin.likelihoods import Gaussian
from onebasin.problem import Batch, Problem

RNG = np.random.default_rng(1)


def conjugate(noise_std=0.5, prior_variance=0.4, examples=200, temperature=1.0):
    """Linear regression with correlated inputs; the posterior is Gaussian and known."""
    mixing = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.2, -0.3, 1.2]])
    x = RNG.normal(size=(examples, 3)) @ mixing.T
    y = x @ np.array([0.7, -1.1, 0.4]) + noise_std * RNG.normal(size=examples)
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda key: {"w": 0.1 * jax.random.normal(key, (3,))},
        data=(x, y),
        likelihood=Gaussian(noise_std),
        prior_variance=prior_variance,
        temperature=temperature,
    )
    precision = x.T @ x / noise_std**2 / temperature + np.eye(3) / prior_variance
    mean = np.linalg.solve(precision, x.T @ y / noise_std**2 / temperature)
    return problem, mean, precision


def classifier(examples=60, hidden=5):
    x = RNG.normal(size=(examples, 4))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)

    def init(key):
        first, second = jax.random.split(key)
        return {
            "in": 0.5 * jax.random.normal(first, (4, hidden)),
            "out": 0.5 * jax.random.normal(second, (hidden, 2)),
        }

    return Problem(apply=lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], init=init, data=(x, y))


@pytest.mark.parametrize("kl", [pytest.param("analytic", marks=pytest.mark.fast), "monte-carlo"])
@pytest.mark.usefixtures("x64")
def test_vi_reaches_the_exact_mean_field_optimum(kl):
    problem, mean, precision = conjugate(temperature=2.0)
    method = VI(epochs=4000, learning_rate=0.02, std_schedule="cosine", num_samples=8, kl=kl)
    q = fit(problem, method, key=jax.random.key(0), progress="silent").posterior
    # For a Gaussian target the optimum has its mean and the diagonal of its *precision*.
    std = 1 / np.sqrt(np.diag(precision))
    # The remaining error is the gradient noise of the last steps: a few hundredths of a std.
    np.testing.assert_allclose(q.mean["w"], mean, atol=0.05 * std.min())
    np.testing.assert_allclose(q.std["w"], std, rtol=0.02)


@pytest.mark.usefixtures("x64")
def test_map_reaches_the_mode_by_minibatches_and_by_sgd():
    problem, mean, _ = conjugate()
    adam = MAP(epochs=400, batch_size=50, learning_rate=0.02)
    sgd = MAP(epochs=300, batch_size=200, learning_rate=0.02, optimiser="sgd")
    for method in (adam, sgd):
        samples = fit(problem, method, key=jax.random.key(0), progress="silent").posterior
        assert samples.num_draws == 1
        np.testing.assert_allclose(samples.draw(0)["w"], mean, atol=2e-3)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.usefixtures("x64")
def test_monte_carlo_and_analytic_kl_have_the_same_expected_gradient(samples):
    problem = classifier()
    mean = problem.init(jax.random.key(0))
    params = Variational(mean, jax.tree.map(lambda m: jnp.full_like(m, -1.0), mean))
    batch = Batch(jnp.asarray(problem.x), jnp.asarray(problem.y))

    def gradients(kl):
        method = VI(kl=kl, num_samples=samples)
        both = jax.vmap(lambda key: elbo_gradient(problem, method, params, [batch], key=key))
        report, gradient, _ = jax.jit(both)(jax.random.split(jax.random.key(1), 4000))
        value = report["loss"]
        flat = jnp.concatenate([g.reshape(len(g), -1) for g in jax.tree.leaves(gradient)], axis=1)
        return np.asarray(value), np.asarray(flat)

    (value, exact), (mc_value, mc) = gradients("analytic"), gradients("monte-carlo")
    for one, other in ((exact, mc), (value[:, None], mc_value[:, None])):
        # The keys are the same, so the mean difference must vanish.
        difference = one - other
        error = difference.std(0) / np.sqrt(len(difference))
        assert (np.abs(difference.mean(0)) < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("kl", ["analytic", "monte-carlo"])
@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.usefixtures("x64")
def test_the_gradient_is_that_of_the_loss_it_reports(kl, antithetic):
    # JAX's derivative of the reported loss, through θ and the KL, is the same.
    problem = classifier()
    mean = problem.init(jax.random.key(0))
    params = Variational(mean, jax.tree.map(lambda m: 0.1 * m - 1.0, mean))
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
    parts = [Batch(x[:7], y[:7]), Batch(x[7:], y[7:])] if antithetic else [Batch(x, y)]
    method = VI(kl=kl, num_samples=2)

    def report(q):
        return elbo_gradient(problem, method, q, parts, key=jax.random.key(1))

    _, found, _ = jax.jit(report)(params)
    expected = jax.jit(jax.grad(lambda q: report(q)[0]["loss"]))(params)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_sticking_the_landing_has_no_noise_at_the_optimum():
    # A posterior that is its own mean-field optimum: orthogonal inputs.
    x = np.sqrt(10.0) * np.eye(3)
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda _: {"w": jnp.zeros(3)},
        data=(x, np.array([1.0, 2.0, 3.0])),
        likelihood="gaussian",
        prior_variance=0.5,
    )
    precision = 10.0 + 2.0
    mean = jnp.sqrt(10.0) * jnp.array([1.0, 2.0, 3.0]) / precision
    q = Variational({"w": mean}, {"w": jnp.full(3, -0.5 * np.log(precision))})
    batch = Batch(jnp.asarray(problem.x), jnp.asarray(problem.y))
    method = VI(kl="monte-carlo", antithetic=False)
    _, gradient, _ = elbo_gradient(problem, method, q, [batch], key=jax.random.key(3))
    for leaf in jax.tree.leaves(gradient):
        np.testing.assert_allclose(leaf, 0.0, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_analytic_kl_is_that_of_gaussians():
    problem = classifier()
    mean = problem.init(jax.random.key(0))
    q = Variational(mean, jax.tree.map(lambda m: 0.3 * m - 1, mean))
    expected = sum(
        float(jnp.sum(-r + 0.5 * (jnp.exp(2 * r) + m**2) - 0.5))
        for m, r in zip(jax.tree.leaves(q.mean), jax.tree.leaves(q.log_std), strict=True)
    )
    np.testing.assert_allclose(analytic_kl(problem, q), expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_members_and_runs_equal_single_fits():
    problem, key = classifier(), jax.random.key(5)
    options = {"epochs": 3, "batch_size": 20, "learning_rate": 0.05}
    together = fit(problem, Ensemble(members=2, **options), key=key, progress="silent").posterior
    np.testing.assert_array_equal(together.chain, [0, 1])
    for member in range(2):
        alone = fit(
            problem, MAP(**options), key=jax.random.fold_in(key, member), progress="silent"
        ).posterior
        for a, b in zip(
            jax.tree.leaves(together.draw(member)), jax.tree.leaves(alone.draw(0)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-10)
    runs = fit(problem, VI(**options), key=key, runs=2, progress="silent")
    for run, result in list(enumerate(runs))[1:]:
        alone = fit(problem, VI(**options), key=jax.random.fold_in(key, run), progress="silent")
        for a, b in zip(
            jax.tree.leaves(result.posterior), jax.tree.leaves(alone.posterior), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-10)
        np.testing.assert_allclose(result.history[-1]["loss"], alone.history[-1]["loss"])


@pytest.mark.fast
def test_the_network_is_traced_once_for_all_chunks():
    traces = []
    plain = classifier()

    def apply(params, x):
        traces.append(x.shape)
        return plain.apply(params, x)

    problem = Problem(apply, plain.init, plain.data)
    for antithetic, shapes in ((False, [(20, 4)]), (True, [(10, 4), (10, 4)])):
        traces.clear()
        # 21 steps: chunks of 4 and a last one of 1. Mirrored noise needs two calls.
        method = VI(epochs=7, batch_size=20, antithetic=antithetic)
        result = fit(problem, method, key=jax.random.key(0), chunk_steps=4, progress="silent")
        assert [row["step"] for row in result.history] == [4, 8, 12, 16, 20, 21]
        assert traces == shapes


def test_noise_is_fresh_at_every_step():
    """A network that records its weights shows that no draw occurs twice."""
    seen = []

    def apply(params, x):
        jax.debug.callback(lambda w: seen.append(np.asarray(w)), params["w"])
        return x @ params["w"]

    problem = Problem(
        apply,
        lambda _: {"w": jnp.zeros((3, 2))},
        (np.eye(3, dtype=np.float32), np.array([0, 1, 1])),
    )
    for calls, method in ((40, VI(epochs=40, antithetic=False)), (80, VI(epochs=40))):
        seen.clear()
        fit(problem, method, key=jax.random.key(0), progress="silent")
        jax.effects_barrier()
        draws = np.array(seen).reshape(len(seen), -1)
        assert len(draws) == calls
        assert len(np.unique(draws)) == draws.size


@pytest.mark.fast
def test_published_settings_are_reachable():
    # Learning rate 1e-7 on the summed ELBO of 60,000 examples is 0.006 on its mean.
    published = VI(
        epochs=1000,
        optimiser="sgd",
        learning_rate=1e-7,
        learning_rate_on="sum",
        schedule="constant",
    )
    rate, std_rate = learning_rates(published, Minibatches(60_000, 500))(jnp.asarray(3))
    np.testing.assert_allclose([rate, std_rate], [0.006, 0.006], rtol=1e-6)


def test_schedules_start_high_end_low_and_warm_up():
    for name in ("cosine", "linear", "exponential"):
        factor = schedule(name, 100)
        assert float(factor(0)) == pytest.approx(1.0)
        assert float(factor(100)) < 0.02
    assert float(schedule("constant", 100)(99)) == pytest.approx(1.0)
    risen = schedule("cosine", 100, warmup_steps=10)
    assert float(risen(0)) == 0.0
    assert float(risen(10)) == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "momentum"), [("adam", 0.9), ("sgd", 0.9), ("sgd", 0.0)])
def test_the_last_direction_can_be_read_off_the_state(name, momentum):
    params = {"w": jnp.arange(3.0), "b": jnp.ones(2)}
    optimiser = direction(name, momentum)
    state = optimiser.init(params)
    for leaf in jax.tree.leaves(last_direction(state, momentum)):
        np.testing.assert_array_equal(leaf, 0)
    for scale in (1.0, -0.3, 20.0):
        gradient = {name: scale * leaf for name, leaf in params.items()}
        move, state = optimiser.update(gradient, state, params)
        for one, other in zip(
            jax.tree.leaves(move), jax.tree.leaves(last_direction(state, momentum)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4)  # 1 − β₂ᵗ cancels in float32


def test_leftover_examples_are_not_always_the_same():
    # 7 examples in batches of 3: each epoch leaves one out.
    seen = []

    def apply(params, x):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)[:, 0]), x)
        return x @ params["w"]

    x = np.arange(7, dtype=np.float32)[:, None]
    problem = Problem(apply, lambda _: {"w": jnp.zeros((1, 2))}, (x, np.zeros(7, np.int32)))
    fit(problem, MAP(epochs=30, batch_size=3), key=jax.random.key(0), progress="silent")
    jax.effects_barrier()
    epochs = np.array(seen).reshape(30, 6)
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert len({frozenset(epoch) for epoch in epochs}) == 7


def test_what_is_not_given_follows_prior_steps_and_data():
    problem = classifier(examples=60)  # prior variance 1; batches of 20 make 3 steps per epoch
    found = settled(problem, VI(batch_size=20))
    assert found.epochs == 1667  # the fewest epochs with 5,000 steps
    steps = 3 * 1667
    assert found.learning_rate == pytest.approx(4 / np.sqrt(steps))
    assert found.std_learning_rate == pytest.approx(20 / steps)
    assert found.std_schedule == "cosine"
    assert settled(problem, found) == found
    for std in jax.tree.leaves(initial_stds(problem, found)):
        np.testing.assert_allclose(1 / std**2, 11 + 0.01 * 60)
    # A short fit has larger rates, up to a limit; ten times the prior std, ten times the rate.
    short = settled(problem, VI(epochs=2, batch_size=20))
    assert (short.learning_rate, short.std_learning_rate) == (0.3, 0.03)
    wide = replace(problem, prior_variance=100.0)
    wider = settled(wide, VI(batch_size=20)).learning_rate
    assert wider == pytest.approx(40 / np.sqrt(steps))
    # Whoever gives the start of σ gets a quarter of the rate of the means, constant.
    given = VI(epochs=30, learning_rate=3e-3, initial_std=0.01)
    assert settled(problem, given) == replace(given, std_schedule="constant")
    # What is recorded is what ran.
    fitted = fit(problem, VI(epochs=2, batch_size=20), key=jax.random.key(0), progress="silent")
    assert fitted.method == short


def test_a_fit_whose_deviations_are_on_their_way_says_so():
    problem = classifier()
    crawling = VI(epochs=20, initial_std=0.01, std_learning_rate=1e-4)
    stuck = fit(problem, crawling, key=jax.random.key(0), progress="silent")
    assert stuck.stats["std_speed"] > 0.9
    (note,) = stuck.notes
    assert "the standard deviations are still on their way" in note
    assert "std_learning_rate" in note
    settled_fit = fit(problem, VI(epochs=600), key=jax.random.key(0), progress="silent")
    assert settled_fit.stats["std_speed"] < 0.3
    assert settled_fit.notes == ()
