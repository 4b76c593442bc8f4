"""Running statistics of converted modules: PyTorch's own in training, and exact ones on data."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import onebasin as ob
from onebasin.networks.pytorch import from_torch
from onebasin.pytorch_tensors import to_array, to_jax


class Net(nn.Module):
    """Normalisation of images and of vectors, with momenta of their own, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3)
        self.dense, self.last = nn.Linear(16, 6), nn.BatchNorm1d(6, affine=False)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.out(self.drop(torch.relu(self.last(self.dense(h)))))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    module = Net()
    module(images(7))
    return module.eval()


def images(rows: int, seed: int = 1) -> torch.Tensor:
    return 1 + torch.randn(rows, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


def test_a_batch_changes_the_statistics_as_in_pytorch(net: Net) -> None:
    network, x = from_torch(net, images(5)), images(9)
    trained = copy.deepcopy(net).train()
    trained.drop.eval()  # nothing at random in the network
    expected = trained(x).detach().numpy()
    assert network.running is not None
    out, state = jax.jit(network.running.update)(network.params, to_jax(x), network.state)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    own = trained.state_dict()
    assert sorted(state) == sorted(network.state)
    for name, leaf in state.items():
        assert not np.allclose(leaf, network.state[name])
        np.testing.assert_allclose(leaf, own[name].numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_gradients_in_training_mode_are_those_of_pytorch(net: Net) -> None:
    network, x = from_torch(net, images(5)), images(9)
    trained = copy.deepcopy(net).train()
    trained.drop.eval()
    trained(x).square().sum().backward()
    assert network.running is not None
    loss = lambda p: jnp.sum(network.running.update(p, to_jax(x), network.state)[0] ** 2)
    gradient = jax.grad(loss)(network.params)
    for name, parameter in trained.named_parameters():
        largest = float(parameter.grad.abs().max())
        np.testing.assert_allclose(
            gradient[name], parameter.grad.numpy(), rtol=0, atol=1e-4 * largest + 1e-5
        )


def test_refreshed_statistics_are_those_of_all_data(net: Net) -> None:
    """PyTorch's own, of one batch with momentum 1, in which layers see what the last one left."""
    network, x = from_torch(net, images(5)), images(40)
    params = jax.tree.map(lambda leaf: 1.3 * leaf, network.params)
    state = ob.refresh_state(params, network, to_array(x), batch_size=11)
    module = network.load_into(copy.deepcopy(net), params).train()
    module.drop.eval()
    module.norm.momentum = module.last.momentum = 1.0
    module(x)
    own = module.state_dict()
    for name, count in (("norm", 40 * 4), ("last", 40)):
        np.testing.assert_allclose(state[f"{name}.running_mean"], own[f"{name}.running_mean"],
                                   rtol=1e-4, atol=1e-5)  # fmt: skip
        biased = own[f"{name}.running_var"] * (count - 1) / count
        np.testing.assert_allclose(state[f"{name}.running_var"], biased, rtol=1e-4)


def test_a_fit_updates_and_stores_the_statistics(net: Net) -> None:
    network = from_torch(net, images(5))
    x = to_array(images(60, seed=3))
    data = ob.Split(x, np.asarray(x.mean((1, 2, 3)) > 1, np.int32) + (x[:, 0, 0, 0] > 1))
    problem = ob.Problem.from_network(network, data)
    fit = ob.fit(problem, ob.MAP(epochs=3, batch_size=20), key=jax.random.key(0), progress="silent")
    state = fit.posterior.state
    assert state is not None
    assert sorted(state) == sorted(network.state)
    for name, leaf in state.items():
        assert not np.allclose(np.squeeze(leaf), network.state[name])
    loaded = network.load_into(copy.deepcopy(net), fit.posterior)
    outputs = network.apply(fit.posterior.draw(0), x, {k: jnp.squeeze(v) for k, v in state.items()})
    np.testing.assert_allclose(loaded(torch.from_numpy(x)).detach(), outputs, rtol=1e-4, atol=1e-5)


def twice() -> nn.Module:
    norm = nn.BatchNorm1d(3)
    return nn.Sequential(nn.Linear(3, 3), norm, nn.ReLU(), norm)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (twice(), "calls the normalisation layer of '1.running_mean' more than once"),
        (
            nn.Sequential(nn.Linear(3, 30), spectral_norm(nn.Linear(30, 30))),
            "is no running statistic of batch normalisation",
        ),
        (nn.BatchNorm1d(3, momentum=None), "an average of all batches"),
    ],
    ids=["twice", "spectral", "cumulative"],
)
def test_what_cannot_be_updated_says_so(module: nn.Module, message: str) -> None:
    network = from_torch(module.eval(), torch.randn(4, 3))
    data = ob.Split(np.ones((4, 3), np.float32), np.array([0, 1, 2, 0]))
    with pytest.raises(ValueError, match=message):
        ob.Problem.from_network(network, data)
