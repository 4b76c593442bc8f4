"""`from_torch`: what is a parameter, what is state, what is refused, and the way back."""

import copy
import doctest
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import onebasin as ob
from onebasin.networks import network as network_module
from onebasin.networks.pytorch import CannotConvert, conversion, from_torch, registry
from onebasin.pytorch_tensors import to_array, to_jax, to_tensor


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), *between, nn.ReLU(), nn.Linear(5, 2)).eval()


class OfX(nn.Module):
    """A module whose forward is given."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self._forward = forward
        self.eval()

    def forward(self, *args):
        return self._forward(self, *args)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def test_params_have_the_names_of_the_state_dict() -> None:
    module = mlp(nn.BatchNorm1d(5))
    network = from_torch(module, numbers(4, 3))
    assert set(network.params) | set(network.state or {}) == set(module.state_dict()) - {
        "1.num_batches_tracked"
    }
    assert network.params["0.weight"].shape == (5, 3)


def test_any_number_of_rows() -> None:
    module = mlp()
    network = from_torch(module, numbers(4, 3))
    for rows in (1, 7):
        x = numbers(rows, 3)
        np.testing.assert_allclose(
            network.apply(network.params, to_jax(x)), module(x).detach(), rtol=1e-5, atol=1e-6
        )


def test_an_example_of_one_row_does_not_fix_the_batch() -> None:
    network = from_torch(mlp(), numbers(1, 3))
    assert network.apply(network.params, jnp.ones((6, 3))).shape == (6, 2)


def test_a_module_that_fixes_the_batch_says_so() -> None:
    module = OfX(lambda self, x: self.linear(x).reshape(4, 2, 1), linear=nn.Linear(3, 2))
    network = from_torch(module, numbers(4, 3))
    assert network.apply(network.params, jnp.ones((4, 3))).shape == (4, 2, 1)
    with pytest.raises(ValueError, match="a batch of 4 only"):
        network.apply(network.params, jnp.ones((3, 3)))


@pytest.mark.parametrize("part", ["", "1"])
def test_training_mode_is_refused(part: str) -> None:
    module = mlp(nn.Dropout())
    module.get_submodule(part).training = True
    with pytest.raises(ValueError, match=r"in training mode; call module\.eval\(\)"):
        from_torch(module, numbers(4, 3))


def test_dropout_that_ignores_the_mode_is_refused() -> None:
    module = OfX(lambda self, x: F.dropout(self.linear(x)), linear=nn.Linear(3, 2))
    with pytest.raises(CannotConvert, match="draws random numbers in evaluation mode too"):
        from_torch(module, numbers(4, 3))


def test_what_a_convolution_takes_in_may_be_read_elsewhere() -> None:
    """The ReLU before it and the result before its normalisation: gradients are PyTorch's."""

    def forward(self, x):
        h = torch.relu(self.first(x))
        y = self.second(h)
        return self.out((self.norm(y) * h + y).flatten(1))

    torch.manual_seed(0)
    module = OfX(
        forward,
        first=nn.Conv2d(2, 3, 3, padding=1),
        second=nn.Conv2d(3, 3, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(3),
        out=nn.Linear(3 * 25, 2),
    )
    x = torch.randn(4, 2, 5, 5)
    module.norm.train()(torch.randn(64, 3, 5, 5) * 2 + 1)
    module.eval()
    network = from_torch(module, x)
    slope = jax.grad(lambda p: jnp.sum(jnp.square(network.apply(p, x.numpy(), network.state))))
    module(x).square().sum().backward()
    found = slope(network.params)
    for name, own in module.named_parameters():
        # Single precision, of sums of some hundred numbers of order one.
        np.testing.assert_allclose(found[name], own.grad, rtol=1e-4, atol=1e-4)


def test_running_statistics_are_state_and_constants_are_not() -> None:
    """Frequencies, positions and masks do not move with units, whatever their shape."""
    module = OfX(
        lambda self, x: self.out(self.norm(self.linear(x)) * self.frequencies),
        linear=nn.Linear(3, 5),
        norm=nn.BatchNorm1d(5),
        out=nn.Linear(5, 2),
        frequencies=torch.arange(5.0) + 1,
    )
    network = from_torch(module, numbers(4, 3))
    assert set(network.state or {}) == {"norm.running_mean", "norm.running_var"}
    assert ob.find_symmetry(network, x=jnp.ones((4, 3))).groups == ()  # the frequencies pin them
    draws = ob.Samples({name: leaf[None] for name, leaf in network.params.items()})
    with pytest.raises(ValueError, match="weights come without; give a posterior that holds them"):
        ob.predict(draws, network, jnp.ones((4, 3)), key=jax.random.key(0), num_samples=1)


def test_the_vectors_of_spectral_normalisation_are_state() -> None:
    module = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 5)), nn.Tanh(), nn.Linear(5, 2)
    ).eval()
    network = from_torch(module, numbers(4, 3))
    (group,) = ob.find_symmetry(network, x=jnp.ones((4, 3))).groups
    assert {place.leaf for place in group.places} == {
        "0.bias",
        "0.parametrizations.weight.original",
        "0.parametrizations.weight.0._u",
        "2.weight",
    }


def test_the_module_itself_is_not_trained_or_changed() -> None:
    module = mlp(nn.BatchNorm1d(5))
    before = copy.deepcopy(module.state_dict())
    state = torch.random.get_rng_state()
    from_torch(module, numbers(4, 3).clone())
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert not any(part.training for part in module.modules())
    del state


def test_state_can_be_named() -> None:
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 5), nn.BatchNorm1d(5)

        def forward(self, x):
            if self.training:
                raise RuntimeError("needs labels in training")
            return self.norm(self.linear(x))

    module = Strict().eval()
    with pytest.raises(CannotConvert, match=r"needs labels.*state=\[\.\.\.\]"):
        from_torch(module, numbers(4, 3))
    network = from_torch(module, numbers(4, 3), state=["norm.running_mean"])
    assert set(network.state or {}) == {"norm.running_mean"}
    with pytest.raises(ValueError, match="state names 'mean', which is no buffer"):
        from_torch(module, numbers(4, 3), state=["mean"])


def tied_modules() -> Iterator[nn.Module]:
    """One tensor under two names: one parameter object, and two objects of one storage."""
    embedding, out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    out.weight = embedding.weight
    yield nn.Sequential(embedding, nn.Tanh(), out)
    embedding, out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    out.weight = nn.Parameter(embedding.weight.data)
    yield nn.Sequential(embedding, nn.Tanh(), out)


@pytest.mark.parametrize("module", list(tied_modules()), ids=["one object", "one storage"])
def test_tied_weights_are_one_parameter(module: nn.Module) -> None:
    network = from_torch(module.eval(), torch.tensor([[1, 2], [3, 4]]))
    assert list(network.params) == ["0.weight"]
    doubled = network.with_params({"0.weight": 2 * network.params["0.weight"]})
    assert set(doubled) == set(module.state_dict())
    assert torch.equal(doubled["2.weight"], 2 * module.state_dict()["0.weight"])
    symmetry = ob.find_symmetry(network, x=jnp.array([[1, 2], [3, 4]]))
    (group,) = symmetry.groups
    assert [str(place) for place in group.places] == ["0.weight[1]"]


def test_a_layer_called_twice_has_one_state() -> None:
    """The exported graph names its buffers by one of its places, the state_dict by both."""
    norm = nn.BatchNorm1d(5)
    module = nn.Sequential(nn.Linear(3, 5), norm, nn.ReLU(), norm, nn.Linear(5, 2))
    module(numbers(9, 3))
    network = from_torch(module.eval(), numbers(4, 3))
    assert sorted(network.state) == ["1.running_mean", "1.running_var"]
    state = {name: leaf + 1 for name, leaf in network.state.items()}
    target = network.load_into(copy.deepcopy(module), network.params, state)
    x = numbers(6, 3)
    found = network.apply(network.params, to_jax(x), state)
    np.testing.assert_allclose(found, target(x).detach(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(found, module(x).detach(), atol=1e-3)


def test_weights_tied_through_a_transpose_are_refused() -> None:
    module = mlp()
    module[2] = nn.Linear(5, 3, bias=False)
    module[2].weight = nn.Parameter(module[0].weight.data.T)
    with pytest.raises(CannotConvert, match=r"'0\.weight' and '2\.weight' share numbers"):
        from_torch(module.eval(), numbers(4, 3))


def test_a_wrong_operator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.OPERATORS, "relu", jnp.abs)
    with pytest.raises(CannotConvert, match=r"converted wrongly: its outputs .* differ"):
        from_torch(mlp(), numbers(4, 3))


def test_casts_inside_a_module_follow_wider_params(x64: None) -> None:
    """Or a check in double precision would measure single-precision rounding."""
    module = OfX(
        lambda self, x: self.out(torch.tanh(self.linear(x).float())).type_as(x),
        linear=nn.Linear(3, 5),
        out=nn.Linear(5, 2),
    )
    network = from_torch(module, numbers(4, 3))
    x = numbers(4, 3).double()
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), network.params)
    found = network.apply(wide, to_jax(x))
    plain = module.double()
    expected = plain.out(torch.tanh(plain.linear(x))).detach()
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, expected, rtol=1e-13)  # a double's rounding


def test_data_types_are_those_of_pytorch(x64: None) -> None:
    """Integers divided give single precision in PyTorch, also where JAX has double."""
    module = OfX(lambda self, x: self.linear(x / 2), linear=nn.Linear(3, 2))
    network = from_torch(module, torch.arange(6).reshape(2, 3))
    assert network.apply(network.params, jnp.arange(6).reshape(2, 3)).dtype == jnp.float32


def test_double_precision_needs_it_in_jax() -> None:
    with pytest.raises(ValueError, match=r"'0\.weight' is float64, which JAX would round"):
        from_torch(mlp().double(), numbers(4, 3).double())


def test_double_precision(x64: None) -> None:
    module, x = mlp().double(), numbers(4, 3).double()
    network = from_torch(module, x)
    np.testing.assert_allclose(
        network.apply(network.params, to_jax(x)), module(x).detach(), rtol=1e-13
    )


def test_bfloat16_goes_in_and_out() -> None:
    module, x = mlp().bfloat16(), numbers(4, 3).bfloat16()
    network = from_torch(module, x)
    assert network.params["0.weight"].dtype == jnp.bfloat16
    back = network.with_params(network.params)
    for name, tensor in module.state_dict().items():
        assert back[name].dtype == torch.bfloat16
        assert torch.equal(back[name], tensor)
    assert network.load_into(copy.deepcopy(module), network.params)(x).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32])
def test_tensors_are_copied_both_ways(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).T.to(dtype)
    array = to_array(tensor)
    back = to_tensor(array, dtype)
    assert torch.equal(back, tensor)
    assert back.shape == (3, 2)
    tensor.zero_()
    assert array.astype(float).any()
    array[:] = 0
    assert back.float().abs().sum() > 0
    assert to_tensor(to_array(torch.tensor(2.0).to(dtype)), dtype).shape == ()


def test_images_mean_the_same_with_their_channels_last() -> None:
    """Sizes that are all equal, so that an axis taken for another is not noticed by its length."""

    def forward(self, x):
        h = self.norm(self.conv(x))
        h = h + self.bias[:, None, None]  # of a lower rank: broadcast from the right
        h = torch.where(h > self.scale[None, :, None, None], h * x, self.more(x))
        return torch.cat([h, x + 1], 1).flatten(1)[:, ::3] * h.mean((1, 2))[:, :1] + h[:, 0, 1, :1]

    module = OfX(
        forward,
        conv=nn.Conv2d(3, 3, 3, padding=1),
        more=nn.Conv2d(3, 3, (1, 3), padding=(0, 1)),
        norm=nn.BatchNorm2d(3),
        bias=nn.Parameter(numbers(3)),
        scale=nn.Parameter(numbers(3)),
    )
    x = numbers(3, 3, 3, 3)
    network = from_torch(module, x)
    found = network.apply(network.params, to_jax(x), network.state)
    np.testing.assert_allclose(found, module(x).detach(), rtol=1e-4, atol=1e-5)


def test_training_the_module_on_does_not_change_the_network() -> None:
    module = mlp()
    network = from_torch(module, numbers(4, 3))
    before = np.array(network.params["0.weight"])
    with torch.no_grad():
        module[0].weight.add_(1.0)
    assert np.array_equal(network.params["0.weight"], before)
    network.with_params(network.params)["0.weight"].zero_()
    assert np.array_equal(network.params["0.weight"], before)


def test_an_unknown_operator_is_named() -> None:
    module = OfX(lambda self, x: torch.linalg.svd(self.linear(x))[1], linear=nn.Linear(3, 2))
    with pytest.raises(CannotConvert, match=r"aten\._linalg_svd\.default have no counterpart"):
        from_torch(module, numbers(4, 3))


def test_an_operator_beyond_the_table_is_taken_apart_by_pytorch() -> None:
    module = OfX(
        lambda self, x: torch.special.entr(self.linear(x).sigmoid()), linear=nn.Linear(3, 2)
    )
    network = from_torch(module, numbers(4, 3))
    x = numbers(4, 3)
    np.testing.assert_allclose(
        network.apply(network.params, to_jax(x)), module(x).detach(), rtol=1e-5
    )


def test_a_branch_on_data_is_explained() -> None:
    def forward(self, x):
        h = self.linear(x)
        return torch.relu(h) if h.sum() > 0 else h

    with pytest.raises(CannotConvert, match="depends on the numbers of its inputs"):
        from_torch(OfX(forward, linear=nn.Linear(3, 2)), numbers(4, 3))


def test_what_is_not_a_module_or_an_example_is_refused() -> None:
    with pytest.raises(ValueError, match=r"takes a torch\.nn\.Module, got function"):
        from_torch(lambda x: x, numbers(4, 3))
    for example in (np.ones((4, 3)), torch.tensor(1.0), (), numbers(0, 3)):
        with pytest.raises(ValueError, match="example"):
            from_torch(mlp(), example)


def test_an_output_is_chosen_by_name_or_position() -> None:
    pair = OfX(lambda self, x: (x, {"h": self.linear(x)}), linear=nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"returns 2 tensors \(at positions 0 to 1\)"):
        from_torch(pair, numbers(4, 3))
    with pytest.raises(ValueError, match="no output 'h'"):
        from_torch(pair, numbers(4, 3), output="h")
    named = OfX(lambda self, x: {"x": x, "h": self.linear(x)}, linear=nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"returns 2 tensors \(x, h\); choose one with output="):
        from_torch(named, numbers(4, 3))
    network = from_torch(named, numbers(4, 3), output="h")
    assert network.apply(network.params, jnp.ones((4, 3))).shape == (4, 2)


def test_inputs_by_argument_name() -> None:
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, first, second=None):
            return self.linear(first) * second

    module = Sum().eval()
    x = {"second": numbers(4, 1), "first": numbers(4, 3)}
    network = from_torch(module, x)
    arrays = {name: to_jax(tensor) for name, tensor in x.items()}
    np.testing.assert_allclose(
        network.apply(network.params, arrays), module(**x).detach(), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ValueError, match="needs the input 'second'"):
        network.apply(network.params, {"first": arrays["first"]})
    positional = from_torch(module, (x["first"], x["second"]))
    np.testing.assert_allclose(
        positional.apply(positional.params, (arrays["first"], arrays["second"])),
        module(**x).detach(),
        rtol=1e-5,
        atol=1e-6,
    )


def test_strict_promotion_of_the_user_does_not_matter() -> None:
    network = from_torch(
        OfX(lambda self, x: self.linear(x * 2 + x.long()), linear=nn.Linear(3, 2)), numbers(4, 3)
    )
    with jax.numpy_dtype_promotion("strict"):
        assert network.apply(network.params, jnp.ones((4, 3))).shape == (4, 2)


# The way back.


def moved_network() -> tuple[nn.Module, torch.Tensor, ob.Network, ob.Symmetry, ob.Permutation]:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )
    module(numbers(8, 1, 4, 4))  # running statistics that differ by channel
    x = numbers(5, 1, 4, 4)
    network = from_torch(module.eval(), x)
    symmetry = ob.find_symmetry(network, x=to_jax(x))
    return module, x, network, symmetry, symmetry.random(key=jax.random.key(1))


def test_a_moved_module_computes_the_same() -> None:
    module, x, network, symmetry, p = moved_network()
    params, state = symmetry.act(p, network.params), symmetry.act_on_state(p, network.state)
    target = network.load_into(copy.deepcopy(module), params, state)
    assert not torch.equal(target[0].weight, module[0].weight)
    assert target[1].num_batches_tracked == module[1].num_batches_tracked
    # Sums in another order: a few units in the last place.
    torch.testing.assert_close(target(x), module(x), rtol=1e-5, atol=1e-6)


def test_the_mean_of_a_posterior_is_loaded() -> None:
    module, x, network, symmetry, p = moved_network()
    std = jax.tree.map(lambda leaf: 0.1 + 0 * leaf, network.params)
    q = symmetry.act(p, ob.MeanField(network.params, std, network.state))
    target = network.load_into(copy.deepcopy(module), q)
    torch.testing.assert_close(target(x), module(x), rtol=1e-5, atol=1e-6)
    aligned = ob.align(q, to=ob.MeanField(network.params, std, network.state), symmetry=symmetry)
    back = network.load_into(copy.deepcopy(module), aligned.posterior)
    assert torch.equal(back[0].weight, module[0].weight)


def test_a_module_of_another_architecture_is_left_alone() -> None:
    _, _, network, _, _ = moved_network()
    other = mlp()
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match="Sequential is not the module of this network: leaf"):
        network.load_into(other, network.params)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())
    with pytest.raises(ValueError, match=r"fills a torch\.nn\.Module, got dict"):
        network.load_into({}, network.params)
    with pytest.raises(ValueError, match="the params tree given does not match"):
        network.load_into(other, {"0.weight": jnp.ones(3)})


@pytest.mark.parametrize(
    "function", [conversion.from_torch, network_module.Network.load_into], ids=["from", "into"]
)
def test_examples_of_docstrings(function) -> None:
    """They are skipped where PyTorch is not installed; here they run."""
    (test,) = [t for t in doctest.DocTestFinder().find(function, globs={}) if t.examples]
    for example in test.examples:
        assert example.options.pop(doctest.SKIP)
    assert doctest.DocTestRunner().run(test).failed == 0
