"""Adapters: the network equals the module, and its leaves are plain arrays."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from onebasin.networks import Network, from_equinox, from_linen, from_nnx, from_torch
from onebasin.posterior import MeanField, Samples
from onebasin.trees import leaves_by_path, shapes_by_path

X = jax.random.normal(jax.random.key(7), (5, 6))


def assert_plain(tree):
    """Nested dictionaries with string keys and arrays as leaves."""
    if isinstance(tree, dict):
        assert type(tree) is dict
        for key, value in tree.items():
            assert isinstance(key, str)
            assert_plain(value)
    else:
        assert isinstance(tree, jax.Array)


def assert_moves(network, args=()):
    """The function depends on its params; they are not closed over."""
    doubled = jax.tree.map(lambda leaf: 2 * leaf + 0.1, network.params)
    before = network.apply(network.params, X, *args)
    assert not np.allclose(before, network.apply(doubled, X, *args))
    np.testing.assert_allclose(
        jax.jit(network.apply)(network.params, X, *args), before, rtol=1e-5, atol=1e-5
    )


# --- Flax Linen ------------------------------------------------------------------------------


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(8)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(0.5, deterministic=not train)(nn.relu(x))
        return nn.Dense(3)(x)


def trained_linen(module, x):
    """Variables whose running statistics are no longer zeros and ones."""
    variables = module.init(jax.random.key(0), x)
    _, updates = module.apply(
        variables,
        3 * x + 1,
        train=True,
        mutable=["batch_stats"],
        rngs={"dropout": jax.random.key(1)},
    )
    return {**variables, **updates}


def test_linen_without_state():
    module = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])
    variables = module.init(jax.random.key(0), X)
    network = from_linen(module, variables)
    assert network.state is None
    assert list(network.params) == ["layers_0", "layers_2"]
    assert_plain(network.params)
    np.testing.assert_array_equal(network.apply(network.params, X), module.apply(variables, X))
    assert_moves(network)


def test_linen_running_statistics_become_state():
    module = LinenNet()
    variables = trained_linen(module, X)
    network = from_linen(module, variables, train=False)
    assert set(shapes_by_path(network.params)) == {
        "Dense_0/kernel",
        "Dense_0/bias",
        "BatchNorm_0/scale",
        "BatchNorm_0/bias",
        "Dense_1/kernel",
        "Dense_1/bias",
    }
    assert set(shapes_by_path(network.state)) == {
        "batch_stats/BatchNorm_0/mean",
        "batch_stats/BatchNorm_0/var",
    }
    expected = np.asarray(module.apply(variables, X, train=False))
    np.testing.assert_array_equal(network.apply(network.params, X, network.state), expected)
    other = jax.tree.map(lambda leaf: leaf + 1, network.state)
    assert not np.allclose(network.apply(network.params, X, other), expected)
    assert_moves(network, (network.state,))


def test_linen_mutable_collections_are_dropped():
    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))

    module = Norm()
    variables = module.init(jax.random.key(0), X, train=False)
    network = from_linen(module, variables, train=True, mutable=["batch_stats"])
    expected, _ = module.apply(variables, X, train=True, mutable=["batch_stats"])
    np.testing.assert_array_equal(network.apply(network.params, X, network.state), expected)


def test_linen_errors():
    module = LinenNet()
    variables = module.init(jax.random.key(0), X)
    with pytest.raises(ValueError, match="rngs are not supported"):
        from_linen(module, variables, rngs={"dropout": jax.random.key(0)})
    with pytest.raises(ValueError, match=r"with a collection 'params'; got Dense_0"):
        from_linen(module, {"Dense_0": {}})
    training = from_linen(module, variables, train=True, mutable=["batch_stats"])
    with pytest.raises(ValueError, match=r"LinenNet draws random numbers.*deterministic=True"):
        training.apply(training.params, X, training.state)
    training = from_linen(nn.BatchNorm(False), nn.BatchNorm(True).init(jax.random.key(0), X))
    with pytest.raises(ValueError, match="BatchNorm updates its running statistics"):
        training.apply(training.params, X, training.state)


# --- Flax NNX --------------------------------------------------------------------------------


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, scale=1.0):
        x = self.dropout(nnx.relu(self.norm(self.layers[0](x))))
        return scale * self.layers[1](x)


@pytest.fixture
def nnx_model():
    model = NnxNet(nnx.Rngs(0))
    model(3 * X + 1)  # moves the running statistics
    model.eval()
    return model


def test_nnx_params_and_state(nnx_model):
    network = from_nnx(nnx_model)
    assert_plain(network.params)
    assert_plain(network.state)
    assert set(leaves_by_path(network.params)) == {
        "layers/0/kernel",
        "layers/0/bias",
        "layers/1/kernel",
        "layers/1/bias",
        "norm/scale",
        "norm/bias",
    }
    assert set(leaves_by_path(network.state)) == {"norm/mean", "norm/var"}
    expected = nnx_model(X)
    np.testing.assert_allclose(network.apply(network.params, X, network.state), expected, rtol=1e-6)
    other = jax.tree.map(lambda leaf: leaf + 1, network.state)
    assert not np.allclose(network.apply(network.params, X, other), expected)
    assert_moves(network, (network.state,))


def test_nnx_arguments_and_no_state(nnx_model):
    network = from_nnx(nnx_model, scale=3.0)
    np.testing.assert_allclose(
        network.apply(network.params, X, network.state), nnx_model(X, scale=3.0), rtol=1e-6
    )
    linear = nnx.Linear(6, 2, rngs=nnx.Rngs(1))
    network = from_nnx(linear)
    assert network.state is None
    np.testing.assert_allclose(network.apply(network.params, X), linear(X), rtol=1e-6)
    gradient = jax.grad(lambda p: jnp.sum(network.apply(p, X)))(network.params)
    np.testing.assert_allclose(gradient["bias"], [5, 5])


def test_nnx_random_numbers_are_refused(nnx_model):
    nnx_model.train()
    network = from_nnx(nnx_model)
    for apply in (network.apply, jax.jit(network.apply)):
        with pytest.raises(ValueError, match=r"NnxNet draws random numbers.*model.eval\(\)"):
            apply(network.params, X, network.state)


def test_nnx_model_is_left_alone(nnx_model):
    before = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(nnx_model, nnx.Param)))
    network = from_nnx(nnx_model)
    network.apply(jax.tree.map(jnp.zeros_like, network.params), X, network.state)
    after = nnx.to_pure_dict(nnx.state(nnx_model, nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, before, after)


# --- Equinox ---------------------------------------------------------------------------------


def test_equinox_mlp():
    model = eqx.nn.MLP(6, 3, 8, 2, key=jax.random.key(0))
    network = from_equinox(model)
    assert_plain(network.params)
    assert network.state is None
    assert shapes_by_path(network.params)["layers/0/weight"] == (8, 6)
    assert len(leaves_by_path(network.params)) == 6
    np.testing.assert_allclose(
        network.apply(network.params, X), jax.vmap(model)(X), rtol=1e-6, atol=1e-7
    )
    assert_moves(network)


def test_equinox_batched():
    class Linear(eqx.Module):
        weight: jax.Array
        name: str = eqx.field(static=True)
        steps: int = 3

        def __call__(self, x, power=1):
            return (x @ self.weight) ** power

    model = Linear(jnp.arange(12.0).reshape(6, 2), "mine")
    network = from_equinox(model, batched=True, power=2)
    assert set(network.params) == {"weight"}
    np.testing.assert_allclose(network.apply(network.params, X), (X @ model.weight) ** 2, rtol=1e-6)


class EqxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.first = eqx.nn.Linear(6, 8, key=one)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)
        self.last = eqx.nn.Linear(8, 3, key=two)

    def __call__(self, x, state, key=None):
        x, state = self.norm(self.first(x), state)
        return self.last(self.dropout(jax.nn.relu(x), key=key)), state


@pytest.fixture
def eqx_model():
    model, state = eqx.nn.make_with_state(EqxNet)(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), len(X))
    _, state = jax.vmap(model, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")(
        3 * X + 1, state, keys
    )
    return model, state


def test_equinox_running_statistics(eqx_model):
    model, state = eqx_model
    model = eqx.nn.inference_mode(model)
    network = from_equinox(model, state=state)
    assert_plain(network.params)
    assert_plain(network.state)
    assert set(leaves_by_path(network.params)) == {
        "first/weight",
        "first/bias",
        "norm/weight",
        "norm/bias",
        "last/weight",
        "last/bias",
    }
    expected, _ = jax.vmap(model, in_axes=(0, None), out_axes=(0, None))(X, state)
    np.testing.assert_allclose(
        network.apply(network.params, X, network.state), expected, rtol=1e-6, atol=1e-7
    )
    assert sorted(leaf.shape for leaf in jax.tree.leaves(network.state))[-2:] == [(8,), (8,)]
    other = jax.tree.map(lambda leaf: leaf + 1, network.state)
    assert not np.allclose(network.apply(network.params, X, other), expected)
    assert_moves(network, (network.state,))


def test_equinox_errors(eqx_model):
    model, state = eqx_model
    with pytest.raises(ValueError, match="EqxNet keeps running statistics: make it with"):
        from_equinox(model)
    with pytest.raises(ValueError, match="key is not supported"):
        from_equinox(model, state=state, key=jax.random.key(0))
    training = from_equinox(model, state=state)
    with pytest.raises(ValueError, match=r"over the batch.*inference_mode"):
        training.apply(training.params, X, training.state)


# --- Back into the module ----------------------------------------------------------------------


def shifted(network):
    """Other params and state, and the outputs of the network there."""
    params = jax.tree.map(lambda leaf: 1.5 * leaf + 0.1, network.params)
    state = jax.tree.map(lambda leaf: leaf + 0.5, network.state)
    args = () if state is None else (state,)
    return params, state, network.apply(params, X, *args)


def test_with_params_gives_linen_variables():
    module = LinenNet()
    network = from_linen(module, trained_linen(module, X), train=False)
    assert network.state is not None
    params, state, expected = shifted(network)
    variables = network.with_params(params, state)
    np.testing.assert_array_equal(module.apply(variables, X, train=False), expected)
    kept = network.with_params(params)["batch_stats"]
    jax.tree.map(np.testing.assert_array_equal, kept, network.state["batch_stats"])


def test_with_params_gives_an_nnx_model(nnx_model):
    network = from_nnx(nnx_model)
    params, state, expected = shifted(network)
    model = network.with_params(params, state)
    assert isinstance(model, NnxNet)
    np.testing.assert_allclose(model(X), expected, rtol=1e-6)
    assert not np.allclose(nnx_model(X), expected)  # the model given is left alone


def test_with_params_gives_an_equinox_module(eqx_model):
    model = eqx.nn.MLP(6, 3, 8, 2, key=jax.random.key(0))
    network = from_equinox(model)
    params, _, expected = shifted(network)
    filled = network.with_params(params)
    assert isinstance(filled, eqx.nn.MLP)
    np.testing.assert_allclose(jax.vmap(filled)(X), expected, rtol=1e-6, atol=1e-6)
    model, state = eqx_model
    network = from_equinox(eqx.nn.inference_mode(model), state=state)
    params, other, expected = shifted(network)
    filled, full = network.with_params(params, other)
    outputs, _ = jax.vmap(filled, in_axes=(0, None), out_axes=(0, None))(X, full)
    np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6)


def test_with_params_leaves_the_noise_of_a_likelihood_out():
    network = from_equinox(eqx.nn.MLP(6, 1, 4, 1, key=jax.random.key(0)))
    params = {**network.params, "log_noise": jnp.zeros(1)}
    q = MeanField(params, jax.tree.map(lambda leaf: 0.1 + 0 * leaf, params))
    for module in (network.with_params(params), network.mean(q)):
        np.testing.assert_allclose(jax.vmap(module)(X), network.apply(network.params, X), rtol=1e-6)
    named = Network(lambda p, x: x * p["log_noise"], {"log_noise": jnp.ones(1)})
    assert named.with_params({"log_noise": jnp.zeros(1)})["log_noise"] == 0, "a leaf of its own"


def test_with_params_of_a_plain_network_and_of_other_params():
    network = Network(lambda params, x: x @ params["w"], {"w": jnp.ones((6, 2))})
    assert network.with_params({"w": jnp.zeros((6, 2))})["w"].sum() == 0
    with pytest.raises(ValueError, match=r"does not match: leaf 'w' has shape \(2,\)"):
        network.with_params({"w": jnp.zeros(2)})


def test_a_draw_and_the_mean_of_a_posterior_are_modules():
    module = LinenNet()
    network = from_linen(module, trained_linen(module, X), train=False)
    assert network.state is not None
    stack = lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), tree)
    posterior = Samples(stack(network.params), state=stack(network.state))
    variables = network.mean(posterior)
    want = jax.tree.map(lambda leaf: leaf + 0.5, {"params": network.params, **network.state})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), variables, want)
    drawn = network.sample(posterior, key=jax.random.key(0))
    index = int(drawn["params"]["Dense_0"]["bias"][0])  # zeros were the start
    want = {"params": posterior.draw(index), **jax.tree.map(lambda a: a[index], posterior.state)}
    jax.tree.map(np.testing.assert_array_equal, drawn, want)


# --- PyTorch: the rest is tested where it is installed, in tests/pytorch ------------------------


def test_without_pytorch_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'onebasin\[torch\]'"):
        from_torch(None, None)


def test_only_networks_from_pytorch_fill_a_module():
    network = Network(lambda params, x: x @ params["w"], {"w": jnp.ones((3, 2))})
    with pytest.raises(ValueError, match=r"made by networks\.from_torch; with_params"):
        network.load_into(None, network.params)
