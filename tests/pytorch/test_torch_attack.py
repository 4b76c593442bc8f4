"""Modules that are not plain stacks of layers: converted rightly, or refused in one sentence."""

import warnings

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import onebasin as ob
from onebasin.networks.pytorch import from_torch
from onebasin.pytorch_tensors import to_array, to_jax


class Net(nn.Module):
    """Two layers, and what is done between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
        self.between = between
        self.eval()

    def forward(self, x):
        return self.b(self.between(self.a(x)))


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def check(module: nn.Module, x: torch.Tensor = X, gradients: bool = True) -> ob.Network:
    """Outputs on another number of rows, and gradients, are those of PyTorch."""
    network = from_torch(module, x)
    more = torch.cat([x, x.flip(0)])[:7].roll(1, -1)
    found = network.apply(network.params, to_jax(more))
    wanted = module(more.clone()).detach()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())
    if gradients:
        out = module(x.clone())
        weights = torch.randn(out.shape)
        (out * weights).sum().backward()
        slope = jax.grad(lambda p: (network.apply(p, to_jax(x)) * to_array(weights)).sum())
        for name, leaf in slope(network.params).items():
            theirs = dict(module.named_parameters())[name].grad
            np.testing.assert_allclose(leaf, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
    return network


def written_in_place(h):
    h += 1
    h.mul_(2)
    h[:, 0] = 0
    h[:, 1:3].add_(1)
    h[h > 2] = 2
    return h


def moved_by_index(h):
    z = torch.zeros_like(h)
    z[:, [0, 2, 4]] = h[:, [1, 3, 5]]
    return z.scatter_(1, torch.full((h.shape[0], 1), 7), 3.0)


def rotated(h):
    """Positions as complex numbers, as in the first Llama."""
    angles = torch.polar(torch.ones(4), torch.arange(4.0))
    return torch.view_as_real(torch.view_as_complex(h.reshape(-1, 4, 2)) * angles).flatten(1)


class Swish(torch.autograd.Function):
    """With the gradient that it has."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * (s + x * s * (1 - s))


class Straight(torch.autograd.Function):
    """Rounding, with the gradient of the identity."""

    @staticmethod
    def forward(_, x):
        return x.round()

    @staticmethod
    def backward(_, g):
        return g


@pytest.mark.parametrize(
    "between",
    [
        written_in_place,
        moved_by_index,
        rotated,
        Swish.apply,
        lambda h: h.sort(-1).values.cumsum(-1),
        lambda h: torch.fft.fft(h).real,
        lambda h: h[..., :4].repeat(1, 2) if h.shape[0] > 3 else h,
    ],
    ids=["in place", "index", "rotation", "function", "sort", "fourier", "shape"],
)
def test_what_modules_do(between) -> None:
    check(Net(between))


def test_products_of_three_arrays_take_any_number_of_rows() -> None:
    """Also where a size is that of the batch: the order of products must not fix it."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.w, self.v = nn.Parameter(torch.randn(4, 6, 5)), nn.Parameter(torch.randn(6, 5, 3))

        def forward(self, x):
            return torch.einsum("bi,ijk,jko->bo", x, self.w, self.v)

    check(Product().eval())


def test_a_module_that_writes_to_its_inputs_leaves_the_example() -> None:
    x = X.clone()

    def write(_, args):
        args[0].add_(1)

    module = Net(torch.relu)
    module.a.register_forward_pre_hook(write)
    check(module, x, gradients=False)
    assert torch.equal(x, X)


@pytest.mark.parametrize("gate", ["function", "detach", "no_grad"])
def test_gradients_that_are_others_in_pytorch_are_told(gate: str) -> None:
    def between(h):
        if gate == "function":
            return Straight.apply(4 * h)
        if gate == "detach":
            return h * h.sigmoid().detach()
        with torch.no_grad():
            factor = h.sigmoid()
        return h * factor

    with pytest.warns(UserWarning, match="the gradient of 'a.weight' is another"):
        check(Net(between), gradients=False)


def test_constants_without_gradients_are_not_told() -> None:
    def scaled(h):
        with torch.no_grad():
            factor = torch.arange(8.0).detach()
        return h * factor

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(Net(scaled))


def test_a_module_that_rounds_inside_is_compared_as_well_as_it_computes() -> None:
    def between(h):
        return F.gelu(h.bfloat16() @ torch.eye(8).bfloat16()).float()

    network = from_torch(Net(between), X)
    assert network.params["a.weight"].dtype == np.float32


def lazy() -> nn.Module:
    return nn.LazyLinear(3)


def meta() -> nn.Module:
    return nn.Linear(4, 3, device="meta")


def complex_weights() -> nn.Module:
    module = nn.Module()
    module.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lazy, "'weight' has no shape yet; call the module once"),
        (meta, r"'weight' has no numbers \(device meta\); load"),
        (complex_weights, "'w' is complex; hold its real"),
        (lambda: Net(lambda h: h[h.sum(-1) > 0]), "depends on the numbers of its inputs; write"),
        (lambda: Net(lambda h: h / 2 if h.norm() > 1 else h), "write it with torch.where"),
        (lambda: Net(lambda h: torch.from_numpy(h.numpy())), "write that part otherwise"),
        (lambda: Net(lambda h: h + torch.linalg.svd(h)[1].sum()), "write these parts with others"),
    ],
    ids=["lazy", "meta", "complex", "shape of data", "branch", "numpy", "operator"],
)
def test_refusals_are_one_sentence(make, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        from_torch(make().eval(), X)
    assert "\n" not in str(caught.value)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""
