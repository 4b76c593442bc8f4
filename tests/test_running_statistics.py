"""Networks with running statistics: fitted by momentum or held, and measured anew."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

from onebasin.inference.fitting import fit
from onebasin.inference.methods import HMC, IVON, MAP, SGHMC, SWAG, VI, Ensemble
from onebasin.inference.refreshing import refresh_state
from onebasin.keys import subkey
from onebasin.networks import Network, from_equinox, from_linen, from_nnx
from onebasin.posterior import MeanField, Mixture, Samples, load
from onebasin.problem import Batch, Problem
from onebasin.trees import leaves_by_path, take_entry

RNG = np.random.default_rng(3)
X = RNG.normal(size=(41, 5)).astype(np.float32) * 2 + 1
Y = (X[:, 0] * X[:, 1] > 1).astype(np.int32)
QUIET = {"key": jax.random.key(0), "progress": "silent"}


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        for width in (6, 4):
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(width)(x))
            x = nn.relu(x)
        return nn.Dense(2)(x)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.List([nnx.Linear(5, 6, rngs=rngs), nnx.Linear(6, 4, rngs=rngs)])
        self.norms = nnx.List([nnx.BatchNorm(n, momentum=0.9, rngs=rngs) for n in (6, 4)])
        self.out = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        for dense, norm in zip(self.dense, self.norms, strict=True):
            x = nnx.relu(norm(dense(x)))
        return self.out(x)


class EqxNet(eqx.Module):
    dense: list
    norms: list
    out: eqx.nn.Linear

    def __init__(self, mode, key):
        keys = jax.random.split(key, 3)
        self.dense = [eqx.nn.Linear(5, 6, key=keys[0]), eqx.nn.Linear(6, 4, key=keys[1])]
        self.norms = [eqx.nn.BatchNorm(n, "batch", momentum=0.9, mode=mode) for n in (6, 4)]
        self.out = eqx.nn.Linear(4, 2, key=keys[2])

    def __call__(self, x, state):
        for dense, norm in zip(self.dense, self.norms, strict=True):
            x, state = norm(dense(x), state)
            x = jax.nn.relu(x)
        return self.out(x), state


def linen():
    return from_linen(LinenNet(), LinenNet().init(jax.random.key(1), X[:2]), train=False)


def nnx_network():
    model = NnxNet(nnx.Rngs(1))
    model.eval()
    return from_nnx(model)


def equinox_module(mode="batch"):
    return eqx.nn.make_with_state(EqxNet)(mode, jax.random.key(1))


def equinox():
    model, state = equinox_module()
    return from_equinox(eqx.nn.inference_mode(model), state=state)


MAKERS = {"linen": linen, "nnx": nnx_network, "equinox": equinox}


def running(network):
    assert network.running is not None
    return network.running


def moved(network):
    """Params with every entry changed, so that no layer has mean 0 or variance 1."""
    return jax.tree.map(lambda leaf: 1.3 * leaf + 0.2, network.params)


def statistics(network, state):
    """Mean and variance of every layer in the order of the layers, in double precision."""
    leaves = leaves_by_path(state)
    pairs = [(leaves[m], leaves[v]) for m, v in running(network).pairs]
    return [np.asarray(a, np.float64) for pair in pairs for a in pair]


def by_brute_force(network, params, x):
    """The statistics of both layers on all of x, written out."""
    p = {name: np.asarray(leaf, np.float64) for name, leaf in leaves_by_path(params).items()}
    names = {
        "linen": [(f"Dense_{i}/kernel", f"Dense_{i}/bias", f"BatchNorm_{i}/scale",
                   f"BatchNorm_{i}/bias") for i in (0, 1)],
        "nnx": [(f"dense/{i}/kernel", f"dense/{i}/bias", f"norms/{i}/scale", f"norms/{i}/bias")
                for i in (0, 1)],
        "equinox": [(f"dense/{i}/weight", f"dense/{i}/bias", f"norms/{i}/weight", f"norms/{i}/bias")
                    for i in (0, 1)],
    }  # fmt: skip
    (own,) = [layers for layers in names.values() if layers[0][0] in p]
    h, found = np.asarray(x, np.float64), []
    for kernel, bias, scale, shift in own:
        weight = p[kernel].T if "weight" in kernel else p[kernel]
        h = h @ weight + p[bias]
        mean, var = h.mean(0), h.var(0)
        found += [mean, var]
        h = np.maximum((h - mean) / np.sqrt(var + 1e-5) * p[scale] + p[shift], 0)
    return found


@pytest.mark.parametrize("name", MAKERS)
def test_refreshed_statistics_are_those_of_all_data(name):
    network = MAKERS[name]()
    params = moved(network)
    state = refresh_state(params, network, X, batch_size=10, progress="silent")
    for one, other in zip(
        statistics(network, state), by_brute_force(network, params, X), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)  # float32 networks
    # In training mode on all data at once the network normalises by the same numbers.
    outputs, _ = running(network).update(params, jnp.asarray(X), network.state)
    np.testing.assert_allclose(network.apply(params, X, state), outputs, atol=2e-5)
    # Where the statistics come from does not matter.
    shifted = jax.tree.map(lambda leaf: leaf + 3, network.state)
    other = Network(network.apply, params, shifted, running=network.running)
    again = refresh_state(params, other, X, batch_size=41, progress="silent")
    for a, b in zip(statistics(network, state), statistics(network, again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_an_update_is_a_step_of_momentum(name):
    network = MAKERS[name]()
    params = moved(network)
    start = jax.tree.map(lambda leaf: leaf + 0.5, network.state)
    _, after = jax.jit(running(network).update)(params, jnp.asarray(X), start)
    batch = by_brute_force(network, params, X)
    triples = zip(statistics(network, start), statistics(network, after), batch, strict=True)
    for old, new, seen in triples:
        np.testing.assert_allclose(new, 0.9 * old + 0.1 * seen, rtol=1e-5, atol=1e-6)


def test_equinox_statistics_do_not_depend_on_the_number_of_updates():
    model, state = equinox_module()
    train = jax.vmap(model, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    for _ in range(3):
        _, state = train(X, state)
    network = from_equinox(eqx.nn.inference_mode(model), state=state)
    calm = eqx.nn.inference_mode(model)
    expected, _ = jax.vmap(calm, in_axes=(0, None), out_axes=(0, None))(X, state)
    np.testing.assert_allclose(network.apply(network.params, X, network.state), expected, atol=1e-5)
    # Three updates on the same batch leave its own mean, whatever the momentum. Equinox divides by
    # 1 − 0.9³ although it starts the variance at 1, of which a part remains.
    found = statistics(network, network.state)
    batch = by_brute_force(network, network.params, X)
    left = 0.9**3 / (1 - 0.9**3)
    for k, (one, other) in enumerate(zip(found, batch, strict=True)):
        np.testing.assert_allclose(one, other + left * (k % 2), rtol=1e-4, atol=1e-5)


def test_modes_that_cannot_be_updated_are_refused():
    model = NnxNet(nnx.Rngs(1))
    network = from_nnx(model)
    for apply in (network.apply, jax.jit(network.apply)):
        with pytest.raises(ValueError, match=r"NnxNet updates its running.*model.eval\(\)"):
            apply(network.params, X, network.state)
    model, state = equinox_module("ema")
    network = from_equinox(eqx.nn.inference_mode(model), state=state)
    with pytest.raises(ValueError, match="EqxNet has a BatchNorm of mode 'ema'"):
        Problem.from_network(network, (X, Y))
    assert refresh_state(network.params, network, X, progress="silent") is not None

    class Calm(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.BatchNorm(use_running_average=True)(nn.Dense(2)(x))

    with pytest.raises(ValueError, match="Calm does not update its running statistics"):
        Problem.from_network(Calm(), (X, Y))

    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            norm = nn.BatchNorm(use_running_average=not train)
            return nn.Dense(2)(norm(norm(x)))

    network = from_linen(Twice(), Twice().init(jax.random.key(0), X))
    with pytest.raises(ValueError, match="Twice calls a normalisation layer more than once"):
        refresh_state(network.params, network, X, progress="silent")
    plain = Network(lambda p, x: x @ p["w"], {"w": jnp.ones((5, 2))})
    with pytest.raises(ValueError, match="has no running statistics that can be measured"):
        refresh_state(plain.params, plain, X)


def test_map_equals_a_training_loop_of_flax():
    problem = Problem.from_network(LinenNet(), (X, Y), prior_variance=0.5)
    method = MAP(epochs=25, learning_rate=0.02, schedule="constant")
    fitted = fit(problem, method, **QUIET).posterior
    # The same loop by hand, from the same start: full batches, Adam, weight decay as the prior.
    net, optimiser = LinenNet(), optax.adam(0.02)
    params, stats = (
        problem.init(subkey(jax.random.key(0), "init")),
        (problem.state or {})["batch_stats"],
    )

    def loss(params, stats):
        logits, updates = net.apply(
            {"params": params, "batch_stats": stats}, X, train=True, mutable=["batch_stats"]
        )
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(Y)).mean()
        decay = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)) / (2 * 0.5 * len(X))
        return nll + decay, updates["batch_stats"]

    @jax.jit
    def step(params, stats, opt):
        gradient, stats = jax.grad(loss, has_aux=True)(params, stats)
        change, opt = optimiser.update(gradient, opt)
        return optax.apply_updates(params, change), stats, opt

    opt = optimiser.init(params)
    for _ in range(25):
        params, stats, opt = step(params, stats, opt)
    # Adam amplifies rounding where a gradient vanishes (the bias before a normalisation).
    compared = 0
    for name, leaf in leaves_by_path(take_entry(fitted.draws, 0)).items():
        if not name.startswith(("Dense_0/bias", "Dense_1/bias")):
            np.testing.assert_allclose(leaf, leaves_by_path(params)[name], rtol=1e-3, atol=1e-4)
            compared += 1
    assert compared == 8
    own = take_entry(fitted.state, 0)["batch_stats"]
    for norm in ("BatchNorm_0", "BatchNorm_1"):
        np.testing.assert_allclose(own[norm]["var"], stats[norm]["var"], rtol=1e-3)


@pytest.mark.parametrize(
    "method",
    [
        VI(epochs=8, antithetic=False, initial_std=1e-7),
        IVON(epochs=3),
        SWAG(epochs=8, rank=2),
        SGHMC(chains=1, draws=2, warmup_epochs=1),
    ],
)
def test_minibatch_methods_give_posteriors_with_statistics(method):
    problem = Problem.from_network(LinenNet(), (X, Y))
    q = fit(problem, method, **QUIET).posterior
    assert leaves_by_path(q.state).keys() == leaves_by_path(problem.state).keys()
    for one, other in zip(jax.tree.leaves(q.state), jax.tree.leaves(problem.state), strict=True):
        assert one.shape[-other.ndim :] == other.shape
        assert not np.allclose(one, other)
    if isinstance(method, SWAG):  # measured at the mean network
        found = statistics(linen(), q.state)
        for one, other in zip(found, by_brute_force(linen(), q.mean, X), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_vi_updates_statistics_half_by_half():
    # One step from noiseless weights: each half of the batch moves them by its own momentum.
    problem = Problem.from_network(linen(), (X, Y))
    q = fit(problem, VI(epochs=1, initial_std=1e-9), **QUIET).posterior
    network, start = linen(), statistics(linen(), linen().state)
    halves = [by_brute_force(network, network.params, part) for part in (X[:20], X[20:])]
    for old, new, one, two in zip(start, statistics(network, q.state), *halves, strict=True):
        expected = 0.9 * (0.9 * old + 0.1 * one) + 0.1 * two
        np.testing.assert_allclose(new, expected, rtol=2e-5, atol=2e-6)


def test_members_of_an_ensemble_have_their_own_statistics():
    problem = Problem.from_network(LinenNet(), (X, Y))
    q = fit(problem, Ensemble(members=3, epochs=3), **QUIET).posterior
    mean = q.state["batch_stats"]["BatchNorm_0"]["mean"]
    assert mean.shape == (3, 6)
    assert not np.allclose(mean[0], mean[1])


def test_chains_hold_the_statistics_and_measure_them_afterwards(tmp_path):
    network = linen()
    state = refresh_state(network.params, network, X, progress="silent")
    network = replace(network, state=state)
    problem = Problem.from_network(network, (X, Y))
    method = HMC(draws=6, warmup=4, chains=2, leapfrog_steps=3, data_chunk=15, step_size=1e-3)
    result = fit(problem, method, out=tmp_path / "q.st", **QUIET)
    q, changes = result.posterior, []
    for i in (5, 11):
        own = take_entry(q.state, i)
        for one, other in zip(
            statistics(network, own), by_brute_force(network, q.draw(i), X), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        # The density that was sampled is that of the network with its statistics held.
        held, _ = problem.log_posterior(q.draw(i), (X, Y))
        constant = problem.log_prior(jax.tree.map(jnp.zeros_like, q.draw(i)))
        recorded = result.stats["log_density"].reshape(-1)[i]
        np.testing.assert_allclose(recorded, held - constant, rtol=1e-5)
        changes.append(held)
        apart, _ = problem.log_posterior(q.draw(i), problem_batch(problem)._replace(state=own))
        changes[-1] -= apart
    rise = result.stats["loss_change_of_state"]
    np.testing.assert_allclose(rise, np.mean(changes) / len(X), atol=1e-5)
    loaded = load(tmp_path / "q.st")
    jax.tree.map(np.testing.assert_array_equal, loaded.state, q.state)


def test_chains_that_begin_at_modes_hold_the_statistics_of_their_mode():
    problem = Problem.from_network(LinenNet(), (X, Y))
    common = {"learning_rate": 0.05, "epochs": 5, "batch_size": 500}
    modes = fit(problem, Ensemble(members=2, **common), **QUIET).posterior
    method = HMC(
        draws=4, warmup=0, chains=2, leapfrog_steps=2, step_size=1e-5, adapt_step_size=False,
        mode_epochs=5, mode_rate=0.05,
    )  # fmt: skip
    result = fit(problem, method, **QUIET)
    for chain in (0, 1):
        held = take_entry(modes.state, chain)
        params = result.posterior.draw(4 * chain + 3)
        log_likelihood, _ = problem.summed_log_likelihood(
            params, problem_batch(problem)._replace(state=held)
        )
        expected = log_likelihood + problem.log_prior(params)
        constant = problem.log_prior(jax.tree.map(jnp.zeros_like, params))
        recorded = result.stats["log_density"][chain, -1]
        # Adam amplifies the rounding of the biases before a normalisation, so not to the digit.
        np.testing.assert_allclose(recorded, expected - constant, rtol=2e-3)
        fresh, _ = problem.log_posterior(params, (X, Y))
        assert abs(fresh - expected) > 10 * abs(recorded - (expected - constant))


def problem_batch(problem):
    return Batch(jnp.asarray(problem.x), jnp.asarray(problem.y))


def test_refreshing_posteriors():
    network = linen()
    first, second = network.params, moved(network)
    draws = Samples(jax.tree.map(lambda *leaves: jnp.stack(leaves), first, second))
    found = refresh_state(draws, network, X, progress="silent")
    for i, params in enumerate((first, second)):
        for one, other in zip(
            statistics(network, take_entry(found.state, i)),
            by_brute_force(network, params, X),
            strict=True,
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    q = MeanField(second, jax.tree.map(lambda leaf: 0.1 + 0 * leaf, second))
    mean = refresh_state(q, network, X, progress="silent")
    alone = refresh_state(second, network, X, progress="silent")
    jax.tree.map(np.testing.assert_array_equal, mean.state, alone)
    mixed = refresh_state(Mixture((q, q), jnp.array([0.5, 0.5])), network, X, progress="silent")
    own = mixed.components[1].states(key=jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, own, alone)
    # Over draws, the first layer has the average of the statistics of the draws.
    key = jax.random.key(2)
    averaged = refresh_state(q, network, X, draws=3, key=key, progress="silent")
    drawn = q.sample(3, key=key)
    each = [by_brute_force(network, take_entry(drawn, i), X) for i in range(3)]
    for k in (0, 1):
        one = statistics(network, averaged.state)[k]
        np.testing.assert_allclose(one, np.mean([e[k] for e in each], axis=0), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="give the key as well"):
        refresh_state(q, network, X, draws=3)
