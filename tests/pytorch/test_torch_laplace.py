"""Laplace approximations against those of laplace-torch, at the same weights of one network."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import onebasin as ob
from onebasin.checkpoints import laplace_from_state_dict

with warnings.catch_warnings():  # what it needs uses torch.jit
    warnings.simplefilter("ignore")
    import torch._decomp.decompositions_for_jvp
    from laplace import Laplace as OfPackage

PRIOR_PRECISION, NOISE = 2.0, 0.6
RNG = np.random.default_rng(3)
INPUTS = RNG.normal(size=(40, 3)).astype(np.float32)


def module(outputs: int, hidden: bool = True) -> torch.nn.Module:
    torch.manual_seed(0)
    if not hidden:
        return torch.nn.Sequential(torch.nn.Linear(3, outputs))
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, outputs))


def setting(kind: str, hidden: bool = True):
    """The module, its network, the problem and the loader."""
    if kind == "classification":
        y, likelihood = RNG.integers(3, size=40), "categorical"
    else:
        y, likelihood = RNG.normal(size=(40, 2)).astype(np.float32), ob.likelihoods.Gaussian(NOISE)
    net = module(3 if kind == "classification" else 2, hidden).eval()
    network = ob.networks.from_torch(net, torch.tensor(INPUTS[:2]))
    params = jax.tree.map(jnp.asarray, network.params)
    problem = ob.Problem(
        network.apply,
        lambda _: params,
        (INPUTS, y),
        likelihood,
        prior_variance=1 / PRIOR_PRECISION,
    )
    loader = DataLoader(TensorDataset(torch.tensor(INPUTS), torch.tensor(y)), batch_size=16)
    return net, network, problem, loader


def of_package(kind: str, structure: str, hidden: bool = True):
    net, network, problem, loader = setting(kind, hidden)
    noise = {"sigma_noise": NOISE} if kind == "regression" else {}
    found = OfPackage(
        *(net, kind),
        subset_of_weights="all",
        hessian_structure=structure,
        prior_precision=PRIOR_PRECISION,
        **noise,
    )
    found.fit(loader)
    return found, network, problem


def ours(problem: ob.Problem, structure, **options):
    method = ob.Laplace(mode_epochs=0, structure=structure, **options)
    return ob.fit(problem, method, key=jax.random.key(0), progress="silent")


def vector(tree, names) -> np.ndarray:
    return np.concatenate([np.ravel(tree[name]) for name in names])


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_diagonal_and_its_evidence(kind: str) -> None:
    package, network, problem = of_package(kind, "diag")
    found = ours(problem, "diagonal")
    expected = package.posterior_variance.detach().numpy()
    names = list(network.params)
    # Both in single precision, summed in another order.
    np.testing.assert_allclose(vector(found.posterior.std, names) ** 2, expected, rtol=1e-4)
    evidence = float(package.log_marginal_likelihood())
    assert found.stats["log_evidence"] == pytest.approx(evidence, rel=1e-4)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_all_directions_are_the_full_matrix(kind: str) -> None:
    package, network, problem = of_package(kind, "full")
    found = ours(problem, "low-rank", rank=100)
    expected = package.posterior_covariance.detach().numpy()
    names = list(network.params)
    variances = vector(found.posterior.moments()[1], names) ** 2
    np.testing.assert_allclose(variances, np.diag(expected), rtol=1e-3)
    evidence = float(package.log_marginal_likelihood())
    assert found.stats["log_evidence"] == pytest.approx(evidence, rel=1e-4)
    point = jax.tree.map(lambda leaf: leaf + 0.05, found.posterior.mean)
    q = torch.distributions.MultivariateNormal(
        package.mean.double(), precision_matrix=package.posterior_precision.double()
    )
    log_p = float(q.log_prob(torch.tensor(vector(point, names)).double()))
    assert float(found.posterior.log_prob(point)) == pytest.approx(log_p, rel=1e-4)


def test_kronecker_factors_of_one_layer() -> None:
    """With Gaussian noise both are the matrix itself, within each array."""
    package, network, problem = of_package("regression", "kron", hidden=False)
    found = ours(problem, "kronecker")
    theirs = laplace_from_state_dict(package.state_dict(), network)
    for mine, other in zip(found.posterior.moments(), theirs.moments(), strict=True):
        for name in network.params:
            np.testing.assert_allclose(mine[name], other[name], rtol=1e-4)
    evidence = float(package.log_marginal_likelihood())
    assert found.stats["log_evidence"] == pytest.approx(evidence, rel=1e-4)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_kronecker_factors_of_a_network(kind: str) -> None:
    """The blocks of biases agree. Those of matrices weigh examples differently, but are close."""
    package, network, problem = of_package(kind, "kron")
    found = ours(problem, "kronecker").posterior
    theirs = laplace_from_state_dict(package.state_dict(), network)
    assert isinstance(theirs, ob.Kronecker)
    curvatures = {}
    for name in network.params:
        pair = []
        for q in (found, theirs):
            vectors = np.kron(q.left[name], q.right[name]).astype(np.float64)
            values = np.ravel(q.std[name]).astype(np.float64) ** -2 - PRIOR_PRECISION
            pair.append((vectors * values) @ vectors.T)
        curvatures[name] = pair
        if name.endswith("bias"):
            np.testing.assert_allclose(*pair, atol=2e-4 * np.abs(pair[0]).max())
        cosine = np.sum(pair[0] * pair[1]) / np.prod([np.linalg.norm(one) for one in pair])
        assert cosine > 0.9
    # Ours have the trace of the exact matrix, by which the diagonal of the package is the judge.
    diagonal = of_package(kind, "diag")[0].posterior_precision.detach().numpy() - PRIOR_PRECISION
    start = 0
    for name, leaf in network.params.items():
        exact = diagonal[start : start + leaf.size].sum()
        start += leaf.size
        assert np.trace(curvatures[name][0]) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_what_the_package_made_predicts_the_same_after_a_permutation(structure: str) -> None:
    package, network, _ = of_package("classification", structure)
    q = laplace_from_state_dict(package.state_dict(), network)
    symmetry = ob.find_symmetry(network, x=jnp.asarray(INPUTS[:4]))
    moved = symmetry.act(symmetry.random(key=jax.random.key(5)), q)
    back = ob.align(moved, to=q, symmetry=symmetry).posterior
    for before, after in zip(q.moments(), back.moments(), strict=True):
        for name in network.params:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-6)
