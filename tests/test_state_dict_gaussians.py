"""Laplace and SWAG posteriors of PyTorch tools, against their definitions, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag

import onebasin as ob
from onebasin.checkpoints import (
    laplace_from_state_dict,
    laplace_state_dict,
    mean_field_from_state_dict,
    samples_from_vectors,
    state_dict_from_mean_field,
    swag_from_state_dict,
    swag_state_dict,
)

# Not in alphabetical order: vectors of parameters are in that of the module.
PARAMS = {"out.weight": jnp.ones((2, 3)), "in.weight": jnp.ones((3, 2)), "in.bias": jnp.zeros(3)}
NETWORK = ob.Network(
    lambda p, x: jnp.tanh(x @ p["in.weight"].T + p["in.bias"]) @ p["out.weight"].T, PARAMS
)
COUNT, RANK = 15, 2
RNG = np.random.default_rng(0)
MEAN, NOISE, TEMPERATURE = RNG.normal(size=COUNT), 0.7, 1.3
FACTOR = 1 / (NOISE**2 * TEMPERATURE)
VECTORS = np.linalg.qr(RNG.normal(size=(COUNT, RANK)))[0]
VALUES = np.array([5.0, 2.0])
PRIORS = {
    "one": np.array([3.0]),
    "by layer": np.array([1.0, 2.0, 3.0]),
    "each": RNG.uniform(1, 2, COUNT),
}
SIZES = [6, 6, 3]


def saved(prior: str, low_rank: bool) -> dict:
    common = {"mean": MEAN, "sigma_noise": NOISE, "temperature": TEMPERATURE, "loss": 0.5,
              "prior_precision": PRIORS[prior]}  # fmt: skip
    if low_rank:
        return {**common, "cls_name": "LowRankLaplace", "H": (VECTORS, VALUES)}
    return {**common, "cls_name": "DiagLaplace", "H": np.arange(1.0, COUNT + 1)}


def prior_of(prior: str) -> np.ndarray:
    own = PRIORS[prior]
    return np.repeat(own, SIZES) if prior == "by layer" else own * np.ones(COUNT)


def vector(tree: dict) -> np.ndarray:
    return np.concatenate([np.ravel(tree[name]) for name in PARAMS])


@pytest.mark.parametrize("prior", PRIORS)
def test_a_diagonal_laplace(prior: str) -> None:
    like = saved(prior, low_rank=False)
    q = laplace_from_state_dict(like, NETWORK)
    assert isinstance(q, ob.MeanField)
    np.testing.assert_allclose(vector(q.mean), MEAN, rtol=1e-6)
    expected = (FACTOR * like["H"] + prior_of(prior)) ** -0.5
    np.testing.assert_allclose(vector(q.std), expected, rtol=1e-6)
    back = laplace_state_dict(q, like, NETWORK)
    assert back.keys() == like.keys()
    np.testing.assert_allclose(back["H"], like["H"], rtol=1e-4)  # of float32
    np.testing.assert_allclose(back["mean"], MEAN, rtol=1e-6)


@pytest.mark.parametrize("prior", PRIORS)
def test_a_low_rank_laplace(prior: str) -> None:
    like = saved(prior, low_rank=True)
    q = laplace_from_state_dict(like, NETWORK)
    precision = FACTOR * (VECTORS * VALUES) @ VECTORS.T + np.diag(prior_of(prior))
    variances = np.diag(np.linalg.inv(precision))
    np.testing.assert_allclose(vector(q.moments()[1]) ** 2, variances, rtol=1e-5)
    u, values = laplace_state_dict(q, like, NETWORK)["H"]
    np.testing.assert_allclose((u * values) @ u.T, (VECTORS * VALUES) @ VECTORS.T, atol=1e-5)
    np.testing.assert_allclose(np.sum(u**2, 0), 1, rtol=1e-5)


def kronecker(prior: str) -> dict:
    squares = lambda n: (lambda a: a @ a.T)(RNG.normal(size=(n, n)))
    return {**saved(prior, low_rank=False), "cls_name": "KronLaplace",
            "H": [[squares(2), squares(3)], [squares(3), squares(2)], [squares(3)]]}  # fmt: skip


def products(like: dict) -> list[np.ndarray]:
    return [one[0] if len(one) == 1 else np.kron(*one) for one in like["H"]]


@pytest.mark.parametrize("prior", ["one", "by layer"])
def test_a_kronecker_laplace(prior: str) -> None:
    like = kronecker(prior)
    q = laplace_from_state_dict(like, NETWORK)
    assert isinstance(q, ob.Kronecker)
    precision = FACTOR * block_diag(*products(like)) + np.diag(prior_of(prior))
    variances = np.diag(np.linalg.inv(precision))
    np.testing.assert_allclose(vector(q.moments()[1]) ** 2, variances, rtol=1e-4)
    symmetry = ob.find_symmetry(NETWORK, x=np.ones((2, 2), np.float32))
    p = symmetry.random(key=jax.random.key(0))
    back = laplace_state_dict(symmetry.act(p, q), like, NETWORK)
    places = {n: np.arange(leaf.size).reshape(leaf.shape) for n, leaf in PARAMS.items()}
    moved = symmetry.act(p, places)
    for name, new, old in zip(PARAMS, products(back), products(like), strict=True):
        order = np.ravel(moved[name])
        np.testing.assert_allclose(new, old[np.ix_(order, order)], atol=1e-3 * np.abs(old).max())


def test_a_kronecker_laplace_with_a_prior_for_each_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the prior of 'out\.weight' differs"):
        laplace_from_state_dict(kronecker("each"), NETWORK)


def test_a_moved_laplace_goes_back_as_moved() -> None:
    like = saved("one", low_rank=False)
    symmetry = ob.find_symmetry(NETWORK, x=np.ones((2, 2), np.float32))
    p = symmetry.random(key=jax.random.key(0))
    moved = laplace_state_dict(
        symmetry.act(p, laplace_from_state_dict(like, NETWORK)), like, NETWORK
    )
    order = np.asarray(p[symmetry.groups[0].name])
    curvature = like["H"][12:]  # of the bias
    np.testing.assert_allclose(moved["H"][12:], curvature[order], rtol=1e-4)
    assert not np.array_equal(order, np.arange(3))


@pytest.mark.parametrize("kind", ["FullLaplace", "DiagLLLaplace", None])
def test_other_laplaces_are_refused(kind: str | None) -> None:
    with pytest.raises(ValueError, match="use samples_from_vectors"):
        laplace_from_state_dict({**saved("one", low_rank=False), "cls_name": kind}, NETWORK)


def test_of_another_network() -> None:
    with pytest.raises(ValueError, match="has 3 numbers and the network 15 parameters"):
        laplace_from_state_dict({**saved("one", low_rank=False), "mean": np.ones(3)}, NETWORK)
    with pytest.raises(ValueError, match="has 2 precisions for 3 parameters"):
        laplace_from_state_dict(
            {**saved("one", low_rank=False), "prior_precision": np.ones(2)}, NETWORK
        )
    with pytest.raises(ValueError, match=r"give \[draws, 15\]"):
        samples_from_vectors(np.ones((2, 3)), NETWORK)


def test_vectors_are_draws() -> None:
    rows = RNG.normal(size=(4, COUNT)).astype(np.float32)
    samples = samples_from_vectors(rows, NETWORK)
    assert all(np.array_equal(vector(samples.draw(i)), row) for i, row in enumerate(rows))


@pytest.mark.parametrize("prefix", ["", "base."])
def test_swag_is_its_covariance(prefix: str) -> None:
    """Draws of the package have covariance ½ diag(std²) + DᵀD / (2 (K − 1))."""
    kept, entries = 4, {}
    centre = {name: RNG.normal(size=leaf.shape) for name, leaf in PARAMS.items()}
    spread = {name: RNG.uniform(0.1, 1, leaf.shape) for name, leaf in PARAMS.items()}
    away = {name: RNG.normal(size=(kept, leaf.size)) for name, leaf in PARAMS.items()}
    for name in PARAMS:
        entries[f"{prefix}{name}_mean"] = centre[name]
        entries[f"{prefix}{name}_sq_mean"] = centre[name] ** 2 + spread[name] ** 2
        entries[f"{prefix}{name}_cov_mat_sqrt"] = away[name]
    rules = {
        rule: f"{prefix}{{path}}{{leaf}}_{end}"
        for rule, end in (("mean", "mean"), ("square", "sq_mean"), ("deviations", "cov_mat_sqrt"))
    }
    q = swag_from_state_dict(entries, NETWORK, **rules)
    d = np.concatenate([away[name] for name in PARAMS], 1)
    expected = np.diag(vector(spread) ** 2) / 2 + d.T @ d / (2 * (kept - 1))
    factors = np.concatenate([np.reshape(q.factors[n], (kept, -1)) for n in PARAMS], 1)
    found = np.diag(vector(q.std) ** 2) + factors.T @ factors
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    back = swag_state_dict(q, **rules)
    assert back.keys() == entries.keys()
    for name, entry in entries.items():
        np.testing.assert_allclose(back[name], entry, rtol=1e-4, atol=1e-5)


def test_a_swag_under_other_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no 'out\.weight_mean' for 'out\.weight'"):
        swag_from_state_dict({}, NETWORK)


@pytest.mark.parametrize("kind", ["softplus", "exp", "std"])
def test_a_mean_field_goes_back_under_a_rule(kind) -> None:
    std = {name: 0.1 + jnp.abs(leaf) / 3 for name, leaf in PARAMS.items()}
    q = ob.MeanField(PARAMS, std)
    rule = {"mean": "{path}mu_{leaf}", "scale": "{path}rho_{leaf}", "kind": kind}
    back = mean_field_from_state_dict(state_dict_from_mean_field(q, **rule), NETWORK, **rule)
    for name in PARAMS:
        np.testing.assert_allclose(back.std[name], std[name], rtol=1e-5)
        assert np.array_equal(back.mean[name], PARAMS[name])
