"""Normal random numbers for every weight at every step, at the cost of one pass over memory.

Each step samples as many normals as there are weights, so the generator is part of the training
time. JAX's Threefry is a cipher of 20 rounds. Noise only needs streams that pass statistical tests
and that are unrelated between steps and leaves. So each leaf of each step gets 64 bits of Threefry,
a proper key of its own, and they key a cheap permutation of the 32-bit counters: two rounds of a
multiply-xorshift mixer with almost no avalanche bias, with one key word added before each. The top
24 bits then go through the inverse error function. Statistics: tests/test_inference_noise.py.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from onebasin.trees import PyTree


def fast_normal(
    key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Independent N(0, 1) numbers; up to 2³² of them, of magnitude at most 5.3."""
    bits = _keyed_bits(key, math.prod(shape))
    wide = jnp.promote_types(dtype, jnp.float32)
    # The signed top 24 bits plus one half: a grid symmetric about 0, strictly inside (-1, 1).
    uniform = ((bits.astype(jnp.int32) >> 8).astype(wide) + 0.5) * 2.0**-23
    return (jax.lax.erf_inv(uniform) * math.sqrt(2.0)).reshape(shape).astype(dtype)


def fast_normal_like(tree: PyTree, *, key: jax.Array) -> PyTree:
    """Independent N(0, 1) noise for every coordinate of a tree of arrays."""
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(len(leaves), 1))
    noise = [fast_normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, noise)


def _keyed_bits(key: jax.Array, count: int) -> jax.Array:
    words = jax.random.key_data(key)
    counter = jax.lax.iota(jnp.uint32, count)
    # The odd constant (2³²/golden ratio) separates neighbouring counters before the first round.
    first = _mix(counter * jnp.uint32(0x9E3779B9) + words[0])
    return _mix(first + words[1])


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32 bits in which every input bit flips every output bit half the time.

    The constants are those of the published search for low avalanche bias over this form of
    function (xor-shift 16, multiply, xor-shift 15, multiply, xor-shift 15).
    """
    x ^= x >> 16
    x *= jnp.uint32(0x21F0AAAD)
    x ^= x >> 15
    x *= jnp.uint32(0xD35A2D97)
    x ^= x >> 15
    return x
