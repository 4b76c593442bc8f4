"""Standard normal noise in the shape of a params tree, and Gaussian algebra on trees."""

import math

import jax
import jax.numpy as jnp

from onebasin.trees import PyTree

LOG_2PI = math.log(2 * math.pi)


def normal_like(tree: PyTree, count: int | None, *, key: jax.Array) -> PyTree:
    """Independent N(0, 1) for every coordinate, `count` times (a leading axis).

    The noise depends only on the key, the count and the shapes: two posteriors
    over the same params that are sampled with one key share it, which is what
    common random numbers along a path need.
    """
    leaves, treedef = jax.tree.flatten(tree)
    lead = () if count is None else (count,)
    keys = jax.random.split(key, max(len(leaves), 1))
    noise = [
        jax.random.normal(k, lead + leaf.shape, leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(treedef, noise)


def check_count(count: int | None) -> None:
    if count is not None and count < 1:
        raise ValueError(f"cannot draw {count} samples; ask for at least one")


def gaussian_log_density(x: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
    """Σ log N(x; mean, std²) over all coordinates of one leaf."""
    return -jnp.sum(0.5 * ((x - mean) / std) ** 2 + jnp.log(std) + 0.5 * LOG_2PI)
