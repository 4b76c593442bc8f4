"""Everything that takes a network works on a converted module with batch normalisation."""

import copy

import jax
import numpy as np
import pytest
import torch
from torch import nn

import onebasin as ob
from onebasin.networks.pytorch import from_torch

KEY = jax.random.key(0)


def module(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def data() -> ob.Dataset:
    return ob.load_dataset("digits")


@pytest.fixture(scope="module")
def network(data: ob.Dataset) -> ob.Network:
    return from_torch(module(0), torch.from_numpy(np.asarray(data.train.x[:2])))


@pytest.fixture(scope="module")
def problem(network: ob.Network, data: ob.Dataset) -> ob.Problem:
    return ob.Problem.from_network(network, data)


@pytest.fixture(scope="module")
def symmetry(network: ob.Network) -> ob.Symmetry:
    return ob.find_symmetry(network)


@pytest.fixture(scope="module")
def fits(problem: ob.Problem, symmetry: ob.Symmetry) -> list:
    """Two fits; the units of the second are permuted, since both begin at the module's weights."""
    runs = ob.fit(problem, ob.VI(epochs=4, batch_size=200), key=KEY, runs=2, progress="silent")
    p = symmetry.random(key=KEY)
    return [runs[0].posterior, symmetry.act(p, runs[1].posterior)]


def loss_at(problem: ob.Problem, data: ob.Dataset, path) -> np.ndarray:
    found = ob.profile(path, problem, data.test, key=KEY, num_samples=4, points=3,
                       progress="silent")  # fmt: skip
    return found.nll


@pytest.mark.parametrize("objective", ["l2", "w2", "activations"])
def test_fits_are_aligned_and_joined(objective, fits, problem, network, symmetry, data) -> None:
    q0, q1 = fits
    if objective == "activations":
        objective = ob.Activations(network, data.train.x[:200])
    found = ob.align(q1, to=q0, symmetry=symmetry, objective=objective)
    aligned, plain = (loss_at(problem, data, ob.geodesic(q0, q)) for q in (found.posterior, q1))
    assert aligned[1] < plain[1]
    # A moved posterior is the same function, running statistics included.
    np.testing.assert_allclose(aligned[2], plain[2], rtol=0.05)  # other noise


def test_a_planted_permutation_is_learned_and_loaded_back() -> None:
    """On the loss of the path, from the identity; PyTorch then computes what it did before.

    The module is its own teacher, and no unit of it is dead, so the permutation is the only one.
    """
    torch.manual_seed(0)
    teacher = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.Tanh(),
        nn.Conv2d(6, 5, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 2 * 2, 4),
    )  # fmt: skip
    x = torch.randn(300, 1, 6, 6)
    with torch.no_grad():
        teacher[3].weight.mul_(4)  # so that classes differ
        teacher[6].weight.mul_(8)
        teacher(x)  # measures the running statistics
    teacher.eval()
    with torch.no_grad():
        expected = teacher(x)
    network = from_torch(teacher, x[:2])
    symmetry = ob.find_symmetry(network)
    std = jax.tree.map(lambda leaf: np.full_like(leaf, 0.01), network.params)
    q = ob.MeanField(network.params, std, state=network.state)
    planted = symmetry.random(key=jax.random.key(1))
    mover = symmetry.act(planted, q)
    data = x.numpy(), expected.numpy().argmax(1)
    objective = ob.PathLoss(network, data, judged=100, steps=20, exchanges=20, progress="silent")
    found = ob.align(
        mover, to=q, symmetry=symmetry, objective=objective, starts="identity", key=KEY
    )
    assert found.permutation == symmetry.inverse(planted)
    assert found.score > found.starts[0].score + 0.1  # nats: the identity has a barrier
    blank = copy.deepcopy(teacher)
    for tensor in blank.state_dict().values():
        tensor.zero_()
    with torch.no_grad():
        assert torch.equal(network.load_into(blank, found.posterior)(x), expected)
        moved = network.load_into(blank, mover)(x)
    # Its units are summed in another order.
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)


def test_paths_are_repaired_and_statistics_refreshed(fits, problem, network, symmetry, data):
    q0, q1 = fits
    q1 = ob.align(q1, to=q0, symmetry=symmetry).posterior
    path = ob.repair(ob.geodesic(q0, q1), network, data.train.x[:300], symmetry=symmetry)
    assert len(path.repaired) >= 1
    assert np.isfinite(loss_at(problem, data, path)).all()
    middle = ob.refresh_state(ob.geodesic(q0, q1)(0.5), network, data.train.x[:300])
    loaded = network.load_into(copy.deepcopy(module(1)), middle)
    for name, leaf in middle.state.items():
        np.testing.assert_allclose(loaded.state_dict()[name].numpy(), leaf, rtol=1e-6)


def test_weights_are_pruned(fits, network) -> None:
    pruned = ob.prune(*fits[0].moments(), keep=0.2)
    left = np.concatenate([np.ravel(leaf) for leaf in pruned.params.values()])
    assert np.mean(left != 0) == pytest.approx(0.2, abs=0.01)
    network.load_into(copy.deepcopy(module(1)), pruned.params)


def test_chains_are_compacted_and_diagnosed(data) -> None:
    """Without running statistics, which chains hold fixed; chains of permuted copies of a mode."""
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10)).eval()
    network = from_torch(plain, torch.from_numpy(np.asarray(data.train.x[:2])))
    small = ob.Split(data.train.x[:100], data.train.y[:100])
    problem = ob.Problem.from_network(network, small)
    method = ob.HMC(chains=2, warmup=20, draws=8, leapfrog_steps=4)
    draws = ob.fit(problem, method, key=KEY, progress="silent").posterior
    symmetry = ob.find_symmetry(network)
    found = ob.diagnose(draws, symmetry=symmetry, key=KEY, network=problem, data=small, pairs=2,
                        points=3, progress="silent")  # fmt: skip
    assert found.conclusion
    compacted = ob.compact(draws, symmetry=symmetry, rebase="barycentre", progress="silent")
    assert plain.state_dict().keys() == network.with_params(compacted.posterior.mean).keys()
