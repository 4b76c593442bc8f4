"""State_dicts of PyTorch tools as posteriors, and draws as state_dicts again."""

import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob
from onebasin.checkpoints import mean_field_from_state_dict, samples_from_state_dicts

PARAMS = {"fc.weight": jnp.ones((3, 2)), "fc.bias": jnp.zeros(3), "scale": jnp.ones(1)}
STATE = {"norm.running_mean": jnp.zeros(3)}
NETWORK = ob.Network(lambda params, x, state: x @ params["fc.weight"].T, PARAMS, STATE)


def state_dict(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {name: leaf.shape for name, leaf in {**PARAMS, **STATE}.items()}
    numbers = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**numbers, "norm.num_batches_tracked": np.array(seed)}


def test_state_dicts_are_draws_in_their_order() -> None:
    dicts = [state_dict(seed) for seed in range(3)]
    samples = samples_from_state_dicts(dicts, NETWORK)
    assert samples.num_draws == 3
    assert samples.state is not None
    for i, own in enumerate(dicts):
        draw = samples.draw(i)
        assert draw.keys() == PARAMS.keys()
        assert all(np.array_equal(draw[name], own[name]) for name in PARAMS)
        assert np.array_equal(samples.state["norm.running_mean"][i], own["norm.running_mean"])


def variational(mean: str, scale: str) -> dict[str, np.ndarray]:
    """The entries of `state_dict(0)` with ρ from `state_dict(1)`; `scale` stays plain."""
    centre, spread = state_dict(0), state_dict(1)
    names = {"fc.weight": ("fc.", "weight"), "fc.bias": ("fc.", "bias")}
    made = {mean.format(path=p, leaf=leaf): centre[name] for name, (p, leaf) in names.items()}
    made |= {scale.format(path=p, leaf=leaf): spread[name] for name, (p, leaf) in names.items()}
    return {**made, "scale": centre["scale"], "norm.running_mean": centre["norm.running_mean"]}


@pytest.mark.parametrize(
    ("mean", "scale"),
    [("{path}{leaf}_mu", "{path}{leaf}_rho"), ("{path}mu_{leaf}", "{path}rho_{leaf}")],
)
@pytest.mark.parametrize("kind", ["softplus", "exp"])
def test_variational_layers_are_read_by_a_rule(mean: str, scale: str, kind) -> None:
    q = mean_field_from_state_dict(
        variational(mean, scale), NETWORK, mean=mean, scale=scale, kind=kind, fixed_std=0.01
    )
    rho = state_dict(1)["fc.weight"]
    expected = np.log(1 + np.exp(rho)) if kind == "softplus" else np.exp(rho)
    np.testing.assert_allclose(q.std["fc.weight"], expected, rtol=1e-6)
    assert np.array_equal(q.mean["fc.weight"], state_dict(0)["fc.weight"])
    np.testing.assert_allclose(q.std["scale"], 0.01)
    assert q.state is not None
    assert np.array_equal(q.state["norm.running_mean"], state_dict(0)["norm.running_mean"])


def test_standard_deviations_themselves() -> None:
    layers = variational("{path}{leaf}_mu", "{path}{leaf}_sigma")
    layers = {n: np.abs(a) + 0.1 if n.endswith("sigma") else a for n, a in layers.items()}
    q = mean_field_from_state_dict(layers, NETWORK, scale="{path}{leaf}_sigma", kind="std")
    assert np.array_equal(q.std["fc.bias"], layers["fc.bias_sigma"])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"scale": "{path}{leaf}_log"}, "no 'fc.weight_log' for 'fc.weight'"),
        ({"fc.weight_mu": None}, {}, "no 'fc.weight_mu' for 'fc.weight'"),
        ({"fc.weight_mu": np.ones((2, 3))}, {}, "the means is not of this network"),
        ({"norm.running_mean": None}, {}, "'norm.running_mean' is missing"),
        ({}, {"kind": "square"}, "kind must be one of"),
        ({}, {"fixed_std": 0.0}, "fixed_std is 0.0"),
    ],
)
def test_mistakes_are_named(change: dict, options: dict, message: str) -> None:
    layers = {**variational("{path}{leaf}_mu", "{path}{leaf}_rho"), **change}
    layers = {name: array for name, array in layers.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        mean_field_from_state_dict(layers, NETWORK, **options)


def test_draws_of_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        samples_from_state_dicts([], NETWORK)
    wrong = {**state_dict(1), "fc.bias": np.ones(4)}
    with pytest.raises(ValueError, match=r"state_dict 1 is not of this network: leaf 'fc\.bias'"):
        samples_from_state_dicts([state_dict(0), wrong], NETWORK)
