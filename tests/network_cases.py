"""Parameters and formulas shared by the tests of layers and networks."""

import jax
import jax.numpy as jnp
import numpy as np


def initial(net, shape, seed=0):
    return net.init(jax.random.key(seed), jnp.zeros(shape))["params"]


def shapes_of(net, shape):
    return jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(shape))["params"]


def count_of(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def random_params(net, shape, seed=0):
    """Every leaf random (zeros and ones hide mistakes), drawn without compiling."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        fan_in = np.prod(leaf.shape[:-1]) if len(leaf.shape) > 1 else 4
        offset = 0.0 if len(leaf.shape) > 1 else 0.5
        values = offset + rng.normal(size=leaf.shape) / np.sqrt(fan_in)
        return jnp.asarray(values.astype(leaf.dtype))

    return jax.tree.map(draw, shapes_of(net, shape))


def convolve_plainly(x, kernel, stride, padding):
    """A convolution by its definition, one pixel at a time."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    side = kernel.shape[0]
    height = (x.shape[1] - side) // stride + 1
    width = (x.shape[2] - side) // stride + 1
    out = np.zeros((len(x), height, width, kernel.shape[3]))
    for i in range(height):
        for j in range(width):
            patch = x[:, i * stride : i * stride + side, j * stride : j * stride + side]
            out[:, i, j] = np.einsum("nhwc,hwco->no", patch, kernel)
    return out
