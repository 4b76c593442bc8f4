"""Derivatives along a direction, against forward mode and finite differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import onebasin as ob
from onebasin.derivatives import along
from onebasin.networks import convolution
from onebasin.networks.convolution import Conv, conv2d, with_product_gradients


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_convolution_with_a_relu_and_a_factor(x64: None, scaled: bool, rectified: bool) -> None:
    """Its derivatives are those of the three steps apart, with few images at a time too."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, kernel = (
        jax.random.normal(k, s) for k, s in zip(keys[:2], [(5, 6, 5, 3), (3, 3, 3, 4)], strict=True)
    )
    factor = jax.random.normal(keys[2], (4,)) if scaled else None

    def ours(x, kernel, factor):
        return jnp.asarray(with_product_gradients(x, kernel, factor, 2, 1, rectified))

    def apart(x, kernel, factor):
        x = nn.relu(x) if rectified else x
        axes = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, kernel, (2, 2), [(1, 1)] * 2, dimension_numbers=axes)
        return y if factor is None else y * factor

    value, back = jax.vjp(apart, x, kernel, factor)
    out = jax.random.normal(keys[3], value.shape)
    for cached in (convolution.CACHED, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(convolution, "CACHED", cached)
            found, our_back = jax.vjp(ours, x, kernel, factor)
            gradients = our_back(out)
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-11), gradients, back(out))


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_have_both_modes(x64: None, stride: int) -> None:
    """Along a direction and back, as XLA's convolution has them."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, dx = (jax.random.normal(key, (2, 6, 5, 3)) for key in keys[:2])
    kernel, dk = (jax.random.normal(key, (3, 3, 3, 4)) for key in keys[2:])

    def plain(pair):
        x, kernel = pair
        edges, axes = [(1, 1)] * 2, ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), edges, dimension_numbers=axes
        )

    at, direction = (x, kernel), (dx, dk)
    value, expected = jax.jvp(plain, (at,), (direction,))
    out = jax.random.normal(keys[0], value.shape)
    back = jax.vjp(plain, at)[1](out)[0]
    ours = (
        lambda pair: jnp.asarray(with_product_gradients(*pair, None, stride, 1)),
        lambda pair: conv2d(*pair, stride=stride, padding=1),
    )
    for function in ours:
        found = along(function, at, direction)
        np.testing.assert_allclose(found[0], value, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-12)
        for mine, theirs in zip(jax.vjp(function, at)[1](out)[0], back, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


def test_a_convolutional_network_has_a_laplace_approximation() -> None:
    """Its Gauss-Newton products and its linearised predictions use forward mode."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.relu(Conv(2)(x))
            return nn.Dense(10)(h.mean((1, 2)))

    data = ob.load_dataset("digits")
    small = ob.Split(data.train.x[:60], data.train.y[:60])
    problem = ob.Problem.from_network(Net(), small)
    method = ob.Laplace(structure="low-rank", rank=2, mode_epochs=1)
    q = ob.fit(problem, method, key=jax.random.key(0), progress="silent").posterior
    found = ob.predictive(
        q, problem.apply, data.test.x[:5], key=jax.random.key(1), num_samples=2, linearised=True,
        progress="silent",
    )  # fmt: skip
    assert isinstance(found, ob.Predictive)
    assert np.isfinite(found.log_probs).all()
