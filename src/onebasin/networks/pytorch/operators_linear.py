"""Matrix products, convolutions and attention."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.convolution import with_product_gradients
from onebasin.networks.pytorch.layouts import ChannelsLast, Convolved, Rectified
from onebasin.networks.pytorch.operators_reductions import safe_powers, vector_norm
from onebasin.networks.pytorch.registry import TO_CHANNELS_LAST, operator


@operator("mm", "bmm", "mv", "dot", "matmul")
def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y)


@operator("addmm", "baddbmm")
def add_matmul(
    bias: jax.Array, x: jax.Array, y: jax.Array, *, beta: float = 1, alpha: float = 1
) -> jax.Array:
    product = jnp.matmul(x, y)
    product = product if alpha == 1 else alpha * product
    if beta == 0:
        return product  # even where the bias is NaN
    return product + (bias if beta == 1 else beta * bias)


@operator("einsum", keep=True)
def einsum(
    equation: str, operands: Sequence[jax.Array], path: Sequence[int] | None = None
) -> jax.Array:
    del path  # the order of the products
    return jnp.einsum(equation, *operands)


@operator("linear", keep=True)
def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    product = jnp.matmul(x, weight.T)
    return product if bias is None else product + bias


@operator("linalg_householder_product")
def householder_product(x: jax.Array, scales: jax.Array) -> jax.Array:
    return lax.linalg.householder_product(x, scales)


@operator("bilinear", keep=True)
def bilinear(
    x: jax.Array, y: jax.Array, weight: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
    product = jnp.einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else product + bias


@operator("_cdist_forward")
def distances(x: jax.Array, y: jax.Array, order: float, mode: int | None = None) -> jax.Array:
    """Of all rows of x to all rows of y."""
    del mode  # how PyTorch computes them
    return vector_norm(x[..., :, None, :] - y[..., None, :, :], order, -1)


def on_channels(values: jax.Array, x: jax.Array) -> jax.Array:
    """One value for every channel of x [n, channels, …]."""
    return values.reshape(1, -1, *[1] * (x.ndim - 2))


@operator("convolution", of=TO_CHANNELS_LAST)
def convolution(
    image: ChannelsLast,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> ChannelsLast:
    """A convolution with a kernel [out, in, …], of any number of image axes."""
    x = image.array
    n = x.ndim - 2
    stride, padding, dilation, output_padding = (
        list(value) * n if len(value) == 1 else list(value)
        for value in (stride, padding, dilation, output_padding)
    )
    apart = all(
        side == 1 or (side == step and spread == 1)
        for side, step, spread in zip(weight.shape[2:], stride, dilation, strict=True)
    )
    if apart and groups == 1 and not (transposed or any(padding)):
        out = _of_patches(x, weight, stride)
        return ChannelsLast(out if bias is None else out + bias)
    square = n == 2 and stride[0] == stride[1] and padding[0] == padding[1]
    if square and groups == 1 and dilation == [1, 1] and not transposed and _on_cpu():
        kernel = jnp.transpose(weight, (2, 3, 1, 0))
        rectified = isinstance(image, Rectified)
        before = image.before if rectified else x

        def convolve(factor: jax.Array | None) -> jax.Array:
            out = with_product_gradients(before, kernel, factor, stride[0], padding[0], rectified)
            return jnp.asarray(out)

        if bias is None:
            return Convolved(convolve, jnp.result_type(x, kernel))
        return ChannelsLast(convolve(None) + bias)
    if transposed:
        # The gradient of a convolution: the input spread out by the stride, the kernel reversed,
        # with [in, out] in place of [out, in] inside every group.
        inputs, outputs, *sides = weight.shape
        kernel = lax.rev(weight, range(2, n + 2))
        kernel = kernel.reshape(groups, inputs // groups, outputs, *sides).swapaxes(1, 2)
        kernel = kernel.reshape(groups * outputs, inputs // groups, *sides)
        spans = [d * (k - 1) for k, d in zip(sides, dilation, strict=True)]
        edges = [
            (span - p, span - p + extra)
            for span, p, extra in zip(spans, padding, output_padding, strict=True)
        ]
        spread, strides = stride, [1] * n
    else:
        kernel, edges, spread, strides = weight, [(p, p) for p in padding], [1] * n, stride
    axes = "DHW"[-n:]
    out = lax.conv_general_dilated(
        x,
        kernel,
        strides,
        edges,
        spread,
        dilation,
        (f"N{axes}C", f"OI{axes}", f"N{axes}C"),
        feature_group_count=groups,
    )
    return ChannelsLast(out if bias is None else out + bias)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _of_patches(x: jax.Array, weight: jax.Array, stride: Sequence[int]) -> jax.Array:
    """A convolution of [n, …, channels] whose windows do not overlap, as one matrix product.

    On a CPU, XLA takes many times longer for the kernel's gradient of the convolution itself.
    """
    sides = weight.shape[2:]
    counts = [(size - k) // s + 1 for size, k, s in zip(x.shape[1:-1], sides, stride, strict=True)]
    shape = [len(x)]
    for axis, (count, side, step) in enumerate(zip(counts, sides, stride, strict=True), 1):
        x = lax.slice_in_dim(x, 0, (count - 1) * step + side, step if side == 1 else 1, axis)
        shape += [count, side]
    x = x.reshape(*shape, x.shape[-1])
    axes = ((*range(2, x.ndim - 1, 2), x.ndim - 1), (*range(2, weight.ndim), 1))
    return lax.dot_general(x, weight, (axes, ((), ())))


@operator("scaled_dot_product_attention", keep=True)
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> jax.Array:
    """softmax(q kᵀ · scale + mask) v; with `enable_gqa` several heads of q share one of k and v."""
    if dropout_p:
        raise ValueError("the module drops attention weights at random; set its dropout to 0")
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        return _grouped(q, k, v, mask, is_causal, scale)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = jnp.matmul(q * factor, jnp.swapaxes(k, -1, -2))
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    # Divided only once summed over the keys: the shares themselves are the largest array by far,
    # and neither they nor the slope of their sum is made.
    powers = safe_powers(scores, -1)
    sums = jnp.sum(powers, -1, keepdims=True)
    return jnp.matmul(powers, v) / jnp.where(sums == 0, 1, sums)


def _grouped(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    is_causal: bool,
    scale: float | None,
) -> jax.Array:
    """Attention in which every head of k and v serves a run of consecutive heads of q."""
    shared = k.shape[-3]
    q = q.reshape(*q.shape[:-3], shared, q.shape[-3] // shared, *q.shape[-2:])
    k, v = jnp.expand_dims(k, -3), jnp.expand_dims(v, -3)
    if mask is not None and mask.ndim >= 3:
        parts = (1, 1) if mask.shape[-3] == 1 else (shared, mask.shape[-3] // shared)
        mask = mask.reshape(*mask.shape[:-3], *parts, *mask.shape[-2:])
    out = attention(q, k, v, mask, 0.0, is_causal, scale=scale)
    return out.reshape(*out.shape[:-4], -1, *out.shape[-2:])
