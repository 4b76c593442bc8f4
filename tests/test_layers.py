"""Layers against their formulas."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from network_cases import convolve_plainly, initial
from onebasin.networks import convolution
from onebasin.networks.activations import ACTIVATIONS
from onebasin.networks.convolution import Conv, conv2d
from onebasin.networks.normalisation import FilterResponseNorm, ThresholdedLinear


def applied(module: nn.Module, params: dict[str, Any], x: Any) -> jax.Array:
    return cast(jax.Array, module.apply({"params": params}, x))


# side, stride, padding, image
CONVOLUTIONS = [
    (3, 1, 1, (7, 9)),
    (3, 2, 1, (7, 9)),
    (3, 2, 1, (8, 8)),
    (1, 1, 0, (4, 5)),
    (1, 2, 0, (7, 8)),
    (5, 1, 2, (6, 5)),
    (3, 1, 0, (7, 9)),
    (5, 3, 1, (7, 9)),
]


@pytest.mark.fast
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("side", "stride", "padding", "shape"), CONVOLUTIONS)
def test_convolution_by_definition(side, stride, padding, shape):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *shape, 3))
    kernel = rng.normal(size=(side, side, 3, 4))
    convolve = jax.jit(lambda x, kernel: conv2d(x, kernel, stride=stride, padding=padding))
    out = convolve(x, kernel)
    # Sums of at most 75 products of order one in float64.
    np.testing.assert_allclose(out, convolve_plainly(x, kernel, stride, padding), atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("side", "stride", "padding", "shape"), CONVOLUTIONS)
def test_convolution_gradient_by_xla(side, stride, padding, shape):
    """Both derivatives equal those of XLA's own convolution."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, *shape, 3)))
    kernel = jnp.asarray(rng.normal(size=(side, side, 3, 4)))

    def ours(x, kernel):
        return conv2d(x, kernel, stride=stride, padding=padding)

    def xla(x, kernel):
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    cotangent = jnp.asarray(rng.normal(size=jax.eval_shape(ours, x, kernel).shape))

    @jax.jit
    def derivatives():
        return [jax.vjp(f, x, kernel)[1](cotangent) for f in (ours, xla)]

    for one, other in zip(*derivatives(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("outputs", [3, 4])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("count", "together"), [(4, 2), (5, 2), (3, 1)])
def test_gradients_of_a_few_images_at_a_time(
    monkeypatch: pytest.MonkeyPatch, outputs: int, stride: int, count: int, together: int
) -> None:
    """As of all images, whether or not dx has the shape of dy, and in a loop."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(count, 7, 6, 3)))
    kernels = jnp.asarray(rng.normal(size=(2, 3, 3, 3, outputs)))

    def loss(x, kernel):
        return jnp.sum(jnp.square(conv2d(x, kernel, stride=stride, padding=1)))

    gradients = jax.grad(loss, (0, 1))
    of_kernels = jax.vmap(gradients, (None, 0))
    looped = lambda x, kernels: jax.lax.map(lambda kernel: gradients(x, kernel), kernels)
    expected = jax.jit(of_kernels)(x, kernels)
    limits = []

    def limited(x, cotangent, kernel):
        limits.append(together)
        return together

    monkeypatch.setattr(convolution, "_images_at_once", limited)
    for run in (lambda x, kernels: of_kernels(x, kernels), looped):
        for one, other in zip(jax.jit(run)(x, kernels), expected, strict=True):
            # Sums of at most 1,500 products of order one in float64.
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
    assert limits


@pytest.mark.fast
def test_images_at_once_fit_into_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = jnp.zeros((3, 3, 2, 5))
    dy = jnp.zeros((12, 4, 4, 5))
    one_image = 4 * 4 * (2 * 3 * 2 + 3 * 5) * 4  # x₃, dx₃ and dy, in bytes
    for limit, expected in [(100, 12), (12, 12), (7, 6), (5, 4), (1, 1), (0.5, 1)]:
        monkeypatch.setattr(convolution, "CACHED", int(limit * one_image))
        assert convolution._images_at_once(jnp.zeros((12, 4, 4, 2)), dy, kernel) == expected
    monkeypatch.setattr(convolution, "CACHED", 4 * one_image)
    assert convolution._images_at_once(jnp.zeros((7, 4, 4, 2)), dy[:7], kernel) == 4  # and 3


@pytest.mark.usefixtures("x64")
def test_convolution_maps_over_parameters():
    """The kernels of an ensemble have a leading axis: vmap must work, also for gradients."""
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(2, 6, 6, 3)))
    kernels = jnp.asarray(rng.normal(size=(3, 3, 3, 3, 4)))

    def loss(kernel):
        return jnp.sum(conv2d(x, kernel, stride=1, padding=1) ** 2)

    gradient = jax.jit(jax.grad(loss))
    together = jax.jit(jax.vmap(jax.grad(loss)))(kernels)
    alone = jnp.stack([gradient(kernel) for kernel in kernels])
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.fast
def test_kernel_larger_than_the_image():
    with pytest.raises(ValueError, match="smaller than a kernel of 5"):
        conv2d(jnp.zeros((1, 3, 8, 1)), jnp.zeros((5, 5, 1, 1)))


@pytest.mark.fast
def test_conv_layer_pads_like_pytorch():
    x = jnp.ones((1, 8, 8, 2))
    layer = Conv(3, side=3, stride=2)
    kernel = jnp.ones((3, 3, 2, 3))
    out = applied(layer, {"kernel": kernel}, x)
    # Padded by one on every edge: a corner sees 2×2 pixels of 2 channels, its neighbour 2×3.
    assert out.shape == (1, 4, 4, 3)
    assert out[0, 0, 0, 0] == 8
    assert out[0, 0, 1, 0] == 12
    assert out[0, 3, 3, 0] == 18


@pytest.mark.fast
@pytest.mark.usefixtures("x64")
def test_filter_response_norm_by_formula():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 4, 5, 3)) * 3 + 1
    scale, bias, threshold = rng.normal(size=(3, 3))
    nu2 = (x**2).sum(axis=(1, 2)) / 20
    expected = scale * x / np.sqrt(nu2 + 1e-6)[:, None, None] + bias
    norm = applied(FilterResponseNorm(), {"scale": scale, "bias": bias}, x)
    np.testing.assert_allclose(norm, expected, rtol=1e-12)
    unit = applied(ThresholdedLinear(), {"threshold": threshold}, norm)
    np.testing.assert_allclose(
        unit, np.where(expected > threshold, expected, threshold), rtol=1e-12
    )


@pytest.mark.fast
def test_filter_response_norm_starts_as_plain_normalisation():
    params = initial(FilterResponseNorm(), (1, 4, 4, 3))
    np.testing.assert_array_equal(params["scale"], np.ones(3))
    np.testing.assert_array_equal(params["bias"], np.zeros(3))
    np.testing.assert_array_equal(initial(ThresholdedLinear(), (1, 4, 4, 3))["threshold"], 0)


@pytest.mark.fast
def test_activations_by_formula():
    x = np.linspace(-3, 3, 13)
    cubic = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    formulas = {
        "relu": np.maximum(x, 0),
        "tanh": np.tanh(x),
        "swish": x / (1 + np.exp(-x)),
        "gelu": x * (1 + np.tanh(cubic)) / 2,
    }
    for name, expected in formulas.items():
        np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x)), expected, atol=1e-6)
