"""The convolution of our networks.

On a CPU, the convolution of XLA is too slow for training. The weight gradient of a convolution is a
convolution with the roles of batch and channels swapped, and XLA brings it into the form of its
fast kernels only outside loops. In the body of a `lax.scan`, where all training steps run, it falls
back to nested loops and the gradient takes tens of times longer; outside, it transposes every
activation. (`benchmarks/convolution.py` measures both.) Here a convolution with a k×k kernel is
therefore one matrix product between two cheap rearrangements:

    unfold   x₃[n, h, w, j, c] = x[n, h, s·w + j − p, c]           k shifted copies, by column
    product  y[n, h, w, i, o]  = Σ_{j,c} x₃[n, h, w, j, c] K[i, j, c, o]
    fold     out[n, h, w, o]   = Σ_i y[n, s·h + i − p, w, i, o]    k shifted sums, by row

(s is the stride, p the padding.) Unfolding columns and folding rows takes k + k copies instead of
the k² of the usual patches. All three steps are linear, so the derivatives are the same three steps
in reverse: with dy the unfolding of the cotangent by row, dK = x₃ᵀ dy and dx = fold(dy Kᵀ), all
matrix products without transposed activations. The backward pass needs only x and K. Under `vmap`
over kernels this stays a batched product, where a convolution would become a grouped one.

The backward pass takes a few images at a time, so that x₃, dy and dx₃ stay in the caches, and puts
dx where dy was. Without that, XLA makes x₃ in the forward pass and keeps it until it is needed: the
gradient of a ResNet20 then takes nearly twice the memory, and the system hands out all of it anew
at every call, page by page, which is a third of the time.

Only the gradients of XLA's convolution are slow in loops. Where kernels are not mapped over, the
convolution itself is faster by XLA than by products, in loops too: `with_product_gradients` is that
convolution, and its gradients are ours. With the ReLU before it and the factor of a normalisation
after it, one array for each layer is kept for the backward pass, not three.
"""

import functools
import operator
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import lax

CACHED = 2**22
"""Bytes of the arrays between the steps of a backward pass that are made at once."""


def conv2d(x: jax.Array, kernel: jax.Array, *, stride: int = 1, padding: int = 0) -> jax.Array:
    """Convolve x [n, height, width, in] with kernel [rows, columns, in, out].

    Both edges of both image axes are padded with `padding` zeros. On a CPU only reverse-mode
    differentiation is supported.
    """
    if kernel.shape[:2] == (1, 1) and padding == 0:
        picked = lax.slice(x, (0,) * 4, x.shape, (1, stride, stride, 1))
        return lax.dot_general(picked, lax.squeeze(kernel, (0, 1)), (((3,), (0,)), ((), ())))
    if jax.default_backend() == "cpu":
        return _by_products(x, kernel, stride, padding)
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def with_product_gradients(
    x: jax.Array,
    kernel: jax.Array,
    factor: jax.Array | None,
    stride: int,
    padding: int,
    rectified: bool = False,
) -> jax.Array:
    """As `conv2d`: computed by XLA, and differentiated by products, in reverse mode only.

    It may begin with a ReLU of x, and end with a factor for every channel. Their derivatives need
    neither the array after the ReLU nor that before the factor: Σ y dy of a channel is Σ K dK.
    """
    edges = [(padding, padding)] * 2
    axes = ("NHWC", "HWIO", "NHWC")
    x = jax.nn.relu(x) if rectified else x
    y = lax.conv_general_dilated(x, kernel, (stride, stride), edges, dimension_numbers=axes)
    return y if factor is None else y * factor


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _by_products(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    rows, columns, inputs, outputs = kernel.shape
    height = _extent(x.shape[1], rows, stride, padding)
    unfolded = _unfold_columns(x, columns, stride, padding)
    matrix = kernel.transpose(1, 2, 0, 3).reshape(columns * inputs, rows * outputs)
    product = _matrix(unfolded) @ matrix
    product = product.reshape(*unfolded.shape[:3], rows, outputs)
    product = jnp.pad(product, ((0, 0), (padding, padding), (0, 0), (0, 0), (0, 0)))
    shifted = [
        lax.slice_in_dim(
            lax.index_in_dim(product, i, axis=3, keepdims=False),
            i,
            i + (height - 1) * stride + 1,
            stride,
            axis=1,
        )
        for i in range(rows)
    ]
    return functools.reduce(operator.add, shifted)


def _backward(
    stride: int,
    padding: int,
    residuals: tuple[jax.Array, jax.Array],
    cotangent: jax.Array,
    rectified: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """dx and dK, from a few images at a time."""
    x, kernel = residuals
    count = _images_at_once(x, cotangent, kernel)

    def gradients(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        if not rectified:
            return _gradients(stride, padding, x, kernel, cotangent)
        dx, dk = _gradients(stride, padding, jax.nn.relu(x), kernel, cotangent)
        return jnp.where(x > 0, dx, 0), dk

    if count >= len(x):
        return gradients(x, cotangent)
    in_place = x.shape == cotangent.shape

    def step(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dx, dk = found
        part = functools.partial(
            lax.dynamic_slice_in_dim, start_index=i * count, slice_size=count, axis=0
        )
        dy = part(dx if in_place else cotangent)
        some_dx, some_dk = gradients(part(x), dy)
        return lax.dynamic_update_slice_in_dim(dx, some_dx, i * count, 0), dk + some_dk

    start = cotangent if in_place else _space_after(cotangent, x)
    steps, rest = divmod(len(x), count)
    dx, dk = lax.fori_loop(0, steps, step, (start, jnp.zeros_like(kernel)))
    if not rest:
        return dx, dk
    last_dx, last_dk = gradients(x[-rest:], cotangent[-rest:])
    return lax.dynamic_update_slice_in_dim(dx, last_dx, steps * count, 0), dk + last_dk


def _gradients(
    stride: int, padding: int, x: jax.Array, kernel: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """dx and dK, from all images together."""
    rows, columns, inputs, outputs = kernel.shape
    unfolded = _unfold_columns(x, columns, stride, padding)
    dy = _stacked(_scatter(cotangent, 1, i - padding, x.shape[1], stride) for i in range(rows))
    dk = (_matrix(unfolded).T @ _matrix(dy)).reshape(columns, inputs, rows, outputs)
    matrix = kernel.transpose(0, 3, 1, 2).reshape(rows * outputs, columns * inputs)
    dx3 = (_matrix(dy) @ matrix).reshape(*dy.shape[:3], columns, inputs)
    by_column = [
        _scatter(
            lax.index_in_dim(dx3, j, axis=3, keepdims=False), 2, j - padding, x.shape[2], stride
        )
        for j in range(columns)
    ]
    return functools.reduce(operator.add, by_column), dk.transpose(2, 0, 1, 3)


def _images_at_once(x: jax.Array, cotangent: jax.Array, kernel: jax.Array) -> int:
    """How many images have arrays x₃, dy and dx₃ of at most `CACHED` bytes in all."""
    rows, columns, *_ = kernel.shape
    height, width = x.shape[1], cotangent.shape[2]
    values = 2 * columns * x.shape[3] + rows * cotangent.shape[3]
    most = max(1, min(len(x), CACHED // (height * width * values * x.dtype.itemsize)))
    return next((n for n in range(most, most // 2, -1) if len(x) % n == 0), most)


def _space_after(array: jax.Array, like: jax.Array) -> jax.Array:
    """Space for the gradient of an array, which XLA cannot take before another is known.

    Zeros that depend on nothing are written in the forward pass, and kept until they are used.
    """
    first = lax.slice(lax.stop_gradient(array), (0,) * array.ndim, (1,) * array.ndim)
    return jnp.broadcast_to(jnp.minimum(jnp.abs(first), 0), like.shape)


_by_products.defvjp(
    lambda x, kernel, stride, padding: (_by_products(x, kernel, stride, padding), (x, kernel)),
    _backward,
)


def _forward_with_factor(
    x: jax.Array,
    kernel: jax.Array,
    factor: jax.Array | None,
    stride: int,
    padding: int,
    rectified: bool,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array | None]]:
    y = with_product_gradients(x, kernel, factor, stride, padding, rectified)
    return jnp.asarray(y), (x, kernel, factor)


def _backward_with_factor(
    stride: int,
    padding: int,
    rectified: bool,
    residuals: tuple[jax.Array, jax.Array, jax.Array | None],
    cotangent: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    x, kernel, factor = residuals
    if factor is None:
        return *_backward(stride, padding, (x, kernel), cotangent, rectified), None
    dx, dk = _backward(stride, padding, (x, kernel * factor), cotangent, rectified)
    return dx, dk * factor, jnp.sum(dk * kernel, (0, 1, 2))


with_product_gradients.defvjp(_forward_with_factor, _backward_with_factor)


def _unfold_columns(x: jax.Array, columns: int, stride: int, padding: int) -> jax.Array:
    """x₃ [n, height, width of the output, columns, in]."""
    width = _extent(x.shape[2], columns, stride, padding)
    x = jnp.pad(x, ((0, 0), (0, 0), (padding, padding), (0, 0)))
    return _stacked(
        lax.slice_in_dim(x, j, j + (width - 1) * stride + 1, stride, axis=2) for j in range(columns)
    )


def _matrix(array: jax.Array) -> jax.Array:
    """[n, height, width, copies, channels] as a matrix with one row per pixel.

    On a CPU, the products of XLA are slower for arrays with more than two axes.
    """
    return array.reshape(-1, array.shape[3] * array.shape[4])


def _stacked(copies: Iterable[jax.Array]) -> jax.Array:
    """Arrays [n, height, width, channels] along a new axis before the channels."""
    return lax.concatenate([lax.expand_dims(copy, (3,)) for copy in copies], 3)


def _scatter(array: jax.Array, axis: int, start: int, size: int, stride: int) -> jax.Array:
    """Move entry t of `axis` to start + t·stride of an axis of length `size`; clip the rest.

    This is the transpose of the strided slice that begins at `start`.
    """
    end = start + (array.shape[axis] - 1) * stride + 1
    config = [(0, 0, 0)] * array.ndim
    config[axis] = (start, size - end, stride - 1)
    return lax.pad(array, jnp.zeros((), array.dtype), config)


def _extent(size: int, side: int, stride: int, padding: int) -> int:
    extent = (size + 2 * padding - side) // stride + 1
    if extent < 1:
        raise ValueError(
            f"an image of {size} pixels, padded by {padding}, is smaller than a kernel of {side}"
        )
    return extent


class Conv(nn.Module):
    """A square convolution that keeps the size of the image (divided by `stride`); NHWC.

    The `kernel` is [side, side, in, out]. The image is padded by side // 2 on every edge, also with
    stride 2, as in PyTorch.
    """

    features: int
    side: int = 3
    stride: int = 1
    use_bias: bool = False
    kernel_init: nn.initializers.Initializer = nn.initializers.he_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.side, self.side, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = None
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, shape[-1:], jnp.float32)
        x, kernel, bias = promote_dtype(x, kernel, bias, dtype=None)
        y = conv2d(x, kernel, stride=self.stride, padding=self.side // 2)
        return y if bias is None else y + bias
