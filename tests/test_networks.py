"""Networks against formulas and parameter counts by hand; configs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from network_cases import convolve_plainly, count_of, initial, random_params, shapes_of
from onebasin.networks import (
    MLP,
    LeNet,
    Network,
    ResNet20,
    apply_of,
    from_config,
    get_input_shape,
    network_named,
    to_config,
)
from onebasin.networks.activations import ACTIVATIONS
from onebasin.networks.convolution import Conv
from onebasin.networks.network import forward
from onebasin.problem import Problem
from onebasin.symmetry import find_symmetry
from onebasin.trees import leaves_by_path

# --- whole networks --------------------------------------------------------------------------


@pytest.mark.fast
def test_mlp_count_and_formula():
    net = MLP(widths=(5, 4), num_classes=3)
    params = random_params(net, (1, 2, 3, 1))
    assert count_of(params) == (6 * 5 + 5) + (5 * 4 + 4) + (4 * 3 + 3)
    x = np.random.default_rng(0).normal(size=(7, 2, 3, 1)).astype(np.float32)
    h = x.reshape(7, 6)
    for i in range(3):
        layer = params[f"Dense_{i}"]
        h = h @ layer["kernel"] + layer["bias"]
        h = np.maximum(h, 0) if i < 2 else h
    # float32: some ten roundings of numbers of order one.
    np.testing.assert_allclose(np.asarray(net.apply({"params": params}, x)), h, atol=1e-5)


@pytest.mark.fast
def test_published_mlp_count():
    params = shapes_of(MLP(), (1, 28, 28, 1))
    assert count_of(params) == (784 * 512 + 512) + 2 * (512 * 512 + 512) + (512 * 10 + 10)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "swish"])
def test_mlp_initial_signal_neither_dies_nor_explodes(activation):
    net = MLP(widths=(512,) * 3, activation=activation)
    x = jax.random.normal(jax.random.key(1), (64, 100))
    out = np.asarray(net.apply({"params": initial(net, (1, 100))}, x))
    assert 0.2 < np.std(out) < 3


def resnet_count(width, channels, classes):
    """By table 3: convolutions, then 2 numbers per normalised and 1 per thresholded channel."""
    conv = lambda side, a, b: side * side * a * b
    total = conv(3, channels, width) + 2 * width + width
    previous = width
    for stage in range(3):
        features = width * 2**stage
        for _ in range(3):
            total += conv(3, previous, features) + conv(3, features, features)
            total += 2 * (2 * features + features)
            if previous != features:
                total += conv(1, previous, features) + 2 * features
            previous = features
    return total + previous * classes + classes


@pytest.mark.fast
@pytest.mark.parametrize(("width", "classes"), [(16, 10), (4, 100)])
def test_resnet_count(width, classes):
    net = ResNet20(width=width, num_classes=classes)
    shapes = shapes_of(net, (1, 32, 32, 3))
    assert count_of(shapes) == resnet_count(width, 3, classes)
    # The twenty layers are 19 convolutions of 3×3 and the head; there are two projections.
    kernels = {k: v for k, v in leaves_by_path(shapes).items() if k.endswith("kernel")}
    assert len(kernels) == 19 + 2 + 1
    if width == 16:
        threes = sum(v.size for v in kernels.values() if v.shape[:2] == (3, 3))
        assert threes == 432 + 6 * 2304 + (4608 + 5 * 9216) + (18432 + 5 * 36864)


@pytest.mark.fast
def test_resnet_shapes():
    net = ResNet20(width=4)
    params = shapes_of(net, (1, 32, 32, 3))
    assert params["stage2_block1"]["conv1"]["kernel"].shape == (3, 3, 4, 8)
    assert params["stage2_block1"]["projection"]["kernel"].shape == (1, 1, 4, 8)
    assert "projection" not in params["stage1_block1"]
    assert "projection" not in params["stage2_block2"]
    assert params["head"]["kernel"].shape == (16, 10)
    assert not any("conv" in k and k.endswith("bias") for k in leaves_by_path(params))
    maps = jax.eval_shape(
        lambda p, x: net.apply({"params": p}, x, capture_intermediates=True)[1], params,
        jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32),
    )["intermediates"]  # fmt: skip
    for stage, shape in enumerate([(32, 32, 4), (16, 16, 8), (8, 8, 16)], 1):
        for block in (1, 2, 3):
            assert maps[f"stage{stage}_block{block}"]["__call__"][0].shape == (2, *shape)


def test_resnet_by_formula():
    """The whole network in NumPy, from the table."""
    net = ResNet20(width=2, num_classes=3)
    params = random_params(net, (1, 8, 8, 3))
    x = np.random.default_rng(0).uniform(size=(2, 8, 8, 3)).astype(np.float32)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def norm(q, x):
        nu2 = np.mean(x**2, axis=(1, 2), keepdims=True)
        return q["scale"] * x / np.sqrt(nu2 + 1e-6) + q["bias"]

    h = norm(p["stem_norm"], convolve_plainly(x, p["stem"]["kernel"], 1, 1))
    h = np.maximum(h, p["stem_threshold"]["threshold"])
    for stage in (1, 2, 3):
        for block in (1, 2, 3):
            q = p[f"stage{stage}_block{block}"]
            stride = 2 if stage > 1 and block == 1 else 1
            y = norm(q["norm1"], convolve_plainly(h, q["conv1"]["kernel"], stride, 1))
            y = np.maximum(y, q["threshold1"]["threshold"])
            y = norm(q["norm2"], convolve_plainly(y, q["conv2"]["kernel"], 1, 1))
            if "projection" in q:
                h = convolve_plainly(h, q["projection"]["kernel"], stride, 0)
                h = norm(q["projection_norm"], h)
            h = np.maximum(h + y, q["threshold2"]["threshold"])
    expected = h.mean(axis=(1, 2)) @ p["head"]["kernel"] + p["head"]["bias"]
    out = jax.jit(net.apply)({"params": params}, x)
    # float32 through twenty layers against float64.
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.fast
@pytest.mark.parametrize("size", [(28, 28, 1), (32, 32, 3), (8, 8, 1), (9, 7, 2)])
def test_lenet_count_and_flattening(size):
    net = LeNet(width=3, num_classes=4)
    params = shapes_of(net, (1, *size))
    pixels = (size[0] // 2 // 2) * (size[1] // 2 // 2)
    assert params["Dense_0"]["kernel"].shape == (pixels * 6, 24)
    count = (25 * size[2] * 3 + 3) + (25 * 3 * 6 + 6) + (pixels * 6 * 24 + 24) + (24 * 4 + 4)
    assert count_of(params) == count


def test_lenet_by_formula():
    net = LeNet(width=2, num_classes=3, activation="tanh")
    params = random_params(net, (1, 9, 8, 1))
    x = np.random.default_rng(0).uniform(size=(2, 9, 8, 1)).astype(np.float32)
    h = x
    for i in range(2):
        layer = params[f"Conv_{i}"]
        h = np.tanh(convolve_plainly(h, np.asarray(layer["kernel"]), 1, 2) + layer["bias"])
        rows, columns = h.shape[1] // 2, h.shape[2] // 2
        corners = [h[:, i : 2 * rows : 2, j : 2 * columns : 2] for i in (0, 1) for j in (0, 1)]
        h = np.max(corners, axis=0)
    h = h.reshape(2, -1)
    h = np.tanh(h @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    h = h @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
    np.testing.assert_allclose(jax.jit(net.apply)({"params": params}, x), h, atol=1e-5)


SMALL = [
    (MLP(widths=(6, 5)), (4, 4, 1)),
    (LeNet(width=2), (8, 8, 1)),
    (ResNet20(width=2), (8, 8, 3)),
]


@pytest.mark.parametrize(("net", "shape"), SMALL, ids=lambda v: type(v).__name__)
def test_dtypes_follow_the_parameters(net, shape, x64):
    del x64
    params = random_params(net, (1, *shape))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    apply = jax.jit(lambda p, x: net.apply({"params": p}, x))
    x = np.random.default_rng(3).uniform(size=(2, *shape))
    single = apply(params, x.astype(np.float32))
    assert single.dtype == jnp.float32
    params = jax.tree.map(lambda p: p.astype(jnp.float64), params)
    double = apply(params, x)
    assert double.dtype == jnp.float64
    np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-4)
    # A change too small for float32 shows: no intermediate value is rounded to it.
    assert not np.array_equal(double, apply(params, x + 1e-10))


@pytest.mark.fast
def test_wrong_inputs():
    with pytest.raises(ValueError, match=r"ResNet20 takes images of shape .* got shape \(2, 784\)"):
        ResNet20().init(jax.random.key(0), jnp.zeros((2, 784)))
    with pytest.raises(ValueError, match=r"LeNet takes images"):
        LeNet().init(jax.random.key(0), jnp.zeros((2, 784)))
    with pytest.raises(ValueError, match=r"LeNet halves images twice"):
        LeNet().init(jax.random.key(0), jnp.zeros((2, 3, 3, 1)))
    with pytest.raises(ValueError, match=r"MLP takes a batch"):
        MLP().init(jax.random.key(0), jnp.zeros(784))


@pytest.mark.parametrize(
    ("net", "shape", "sizes"),
    [
        (MLP(widths=(6, 5)), (4, 4, 1), [6, 5]),
        (LeNet(width=3), (8, 8, 1), [3, 6, 24]),
        (ResNet20(width=2), (8, 8, 3), [2] * 4 + [4] * 4 + [8] * 4),
    ],
    ids=["MLP", "LeNet", "ResNet20"],
)
def test_symmetries_are_found_through_our_convolution(net, shape, sizes):
    """Tracing sees through the convolution, however it is computed."""
    params = random_params(net, (1, *shape))
    x = np.random.default_rng(4).uniform(size=(2, *shape)).astype(np.float32)
    symmetry = find_symmetry(lambda p, x: net.apply({"params": p}, x), params, x)
    assert [group.size for group in symmetry.groups] == sizes
    if isinstance(net, LeNet):
        places = {place.leaf: place for place in symmetry.groups[1].places}
        # Channel c of the last maps (2×2 pixels, 6 channels) feeds every sixth row from c.
        np.testing.assert_array_equal(
            np.sort(places["Dense_0/kernel"].positions, axis=1),
            np.arange(6)[:, None] + 6 * np.arange(4),
        )


# --- functions and names ---------------------------------------------------------------------


def linear(params, x):
    return x @ params["w"]


@pytest.mark.fast
def test_apply_of_a_function_a_network_or_a_problem():
    assert apply_of(linear) is linear
    params = {"w": jnp.ones((3, 2))}
    assert apply_of(Network(linear, params)) is linear
    data = (np.zeros((4, 3)), np.zeros(4, int))
    assert apply_of(Problem(linear, lambda key: params, data)) is linear


@pytest.mark.fast
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (MLP(), r"^MLP is a Flax module; adapt it with networks.from_linen or"),
        (nnx.Linear(3, 2, rngs=nnx.Rngs(0)), r"^Linear is a Flax module; adapt it with"),
        ({"w": 1.0}, r"^a dict is not a network; give apply\(params, x\), a Network or a Problem$"),
    ],
)
def test_what_is_not_a_function_is_refused(given, says):
    with pytest.raises(ValueError, match=says):
        apply_of(given)


@pytest.mark.fast
def test_forward_passes_the_state_only_if_there_is_one():
    assert forward(lambda *args: len(args), {}, 0.0, None) == 2  # pyright: ignore[reportArgumentType]
    assert forward(lambda *args: len(args), {}, 0.0, {}) == 3  # pyright: ignore[reportArgumentType]


@pytest.mark.fast
def test_networks_by_name():
    assert network_named("mlp") == MLP() == MLP(widths=(512,) * 3)
    assert network_named("mlp", width=8, depth=1, num_classes=4) == MLP((8,), 4)
    assert network_named("lenet", num_classes=100) == LeNet(width=16, num_classes=100)
    assert network_named("resnet20", width=4) == ResNet20(width=4)
    with pytest.raises(ValueError, match="'vgg'; choose mlp, lenet, resnet20, vit or gpt"):
        network_named("vgg")  # pyright: ignore[reportArgumentType]


@pytest.mark.fast
def test_repr_of_a_network():
    params, state = {"w": jnp.ones((40, 50))}, {"mean": jnp.zeros(1200)}
    assert repr(Network(linear, params)) == "Network(2,000 parameters)"
    assert repr(Network(linear, params, state)) == (
        "Network(2,000 parameters, 1,200 running statistics)"
    )


# --- configs ---------------------------------------------------------------------------------

counts = st.integers(1, 4096)
NETWORKS = st.one_of(
    st.builds(
        MLP,
        widths=st.lists(counts, max_size=4).map(tuple),
        num_classes=counts,
        activation=st.sampled_from(sorted(ACTIVATIONS)),
    ),
    st.builds(
        LeNet, width=counts, num_classes=counts, activation=st.sampled_from(sorted(ACTIVATIONS))
    ),
    st.builds(ResNet20, width=counts, num_classes=counts),
)


@pytest.mark.fast
@settings(max_examples=50, deadline=None)
@given(net=NETWORKS, shape=st.none() | st.lists(counts, min_size=1, max_size=3).map(tuple))
def test_config_round_trip(net, shape):
    config = json.loads(json.dumps(to_config(net, shape)))
    assert from_config(config) == net
    assert get_input_shape(config) == shape
    assert to_config(from_config(config), get_input_shape(config)) == config


@pytest.mark.fast
def test_config_is_readable():
    assert to_config(MLP(), (28, 28, 1)) == {
        "kind": "MLP",
        "widths": [512, 512, 512],
        "num_classes": 10,
        "activation": "relu",
        "input_shape": [28, 28, 1],
    }
    assert from_config({"kind": "ResNet20"}) == ResNet20(width=16, num_classes=10)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "kind must be one of MLP, LeNet, ResNet20, ViT, GPT, got None"),
        ({"kind": "VGG"}, "kind must be one of"),
        ({"kind": ["MLP"]}, "kind must be one of"),
        ("MLP", "must be a dictionary"),
        ({"kind": "MLP", "depth": 3}, "MLP has no field 'depth'; it has widths, num_classes"),
        ({"kind": "MLP", "parent": None}, "no field 'parent'"),
        ({"kind": "MLP", "widths": 512}, "widths must be a list"),
        ({"kind": "MLP", "widths": [512, 0]}, "widths must be a positive integer, got 0"),
        ({"kind": "MLP", "widths": ["512"]}, "widths must be a positive"),
        ({"kind": "MLP", "activation": "sine"}, "activation must be one of relu, tanh"),
        ({"kind": "MLP", "activation": None}, "activation must be one of"),
        ({"kind": "LeNet", "num_classes": True}, "num_classes must be a positive"),
        ({"kind": "LeNet", "activation": 3}, "activation must be one of"),
        ({"kind": "ResNet20", "width": 16.0}, "ResNet20: width must be a positive"),
        ({"kind": "ResNet20", "width": -1}, "width must be a positive"),
        ({"kind": "ResNet20", "input_shape": [32, "32"]}, "input_shape must be a positive"),
        ({"kind": "ResNet20", "input_shape": 32}, "input_shape must be a list"),
    ],
)
def test_config_errors(config, says):
    with pytest.raises(ValueError, match=says):
        from_config(config)


@pytest.mark.fast
def test_foreign_modules_have_no_config():
    with pytest.raises(ValueError, match=r"only MLP, LeNet, .* GPT have a config, got Conv"):
        to_config(Conv(3))


@pytest.mark.fast
def test_constructors_check_their_fields():
    with pytest.raises(ValueError, match="MLP: widths must be a positive"):
        MLP(widths=(512, 1.5))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="ResNet20: width"):
        ResNet20(width=0)
