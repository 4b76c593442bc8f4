"""Gaussian noise shaped like a params tree, and the Gaussian log density of a leaf."""

import math

import jax
import jax.numpy as jnp

from onebasin.trees import PyTree

LOG_2PI = math.log(2 * math.pi)


def normal_like(tree: PyTree, count: int | None, *, key: jax.Array) -> PyTree:
    """Independent N(0, 1) for every coordinate; `count` draws along a leading axis.

    The noise depends only on the key, the count and the shapes. Two posteriors over the same
    params that are sampled with one key share it: common random numbers along a path.
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
    """Refuse to draw fewer than one sample."""
    if count is not None and count < 1:
        raise ValueError(f"cannot draw {count} samples; ask for at least one")


def repeat_state(state: PyTree | None, count: int | None) -> PyTree | None:
    """One state for all of `count` draws."""
    if state is None or count is None:
        return state
    return jax.tree.map(lambda s: jnp.broadcast_to(s, (count, *s.shape)), state)


def gaussian_log_density(x: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
    """Σ log N(x; mean, std²) over all coordinates of one leaf."""
    return -jnp.sum(0.5 * ((x - mean) / std) ** 2 + jnp.log(std) + 0.5 * LOG_2PI)
