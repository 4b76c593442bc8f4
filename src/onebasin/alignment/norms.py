"""The gauge of scale-free units: on a path they may keep the norm of their mean.

If a unit is followed by a normalisation, multiplying its incoming weights w = m + s∘ε by any c > 0
changes nothing. On the geodesic between two Gaussians the mean m_t = (1−t)m₀ + t·m₁ of matched
units gets shorter, since they match only in part, while s_t does not shrink: such units are noisier
half-way than at the ends. The scale is a choice of gauge, so another geodesic is as natural, on
which the mean is scaled to the length

    ‖m̃_t‖ = (1−t)‖m₀‖ + t‖m₁‖,

or, what is the same function, s_t is divided by as much as the mean was multiplied.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks import NetworkLike, apply_of
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.symmetry.layers import Channels
from onebasin.symmetry.recording import Recorder
from onebasin.trees import PyTree, leaves_by_path, with_leaves

CHANGE = 1e-3  # of the outputs, relative to that by as large a change that is not one of scale


@dataclass(frozen=True)
class ScaleFree:
    """The kernels whose scale does not change the function.

    `axes` has the axis of the units of a kernel whose units are each free, and None for one that is
    free only as a whole (layer or group normalisation).
    """

    axes: dict[str, int | None]

    def __bool__(self) -> bool:
        return bool(self.axes)


def find_scale_free(
    network: NetworkLike,
    params: PyTree,
    x: Any,
    *,
    symmetry: Symmetry | None = None,
    state: PyTree | None = None,
) -> ScaleFree:
    """The kernels that a normalisation follows, found by the trace and confirmed on a batch.

    The trace gives the kernels that compute hidden units. Each is tried: random factors on its
    units, or one on all of it, must not change the outputs, where changes of the same size that
    are no scaling do. (A normalisation with ε in its denominator is not exactly scale-free.)

    >>> def apply(params, x):
    ...     z = x @ params["w1"]
    ...     z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    ...     return jnp.tanh(z + params["b1"]) @ params["w2"]
    >>> rng = np.random.default_rng(0)
    >>> params = {"w1": rng.normal(size=(2, 3)), "b1": np.ones(3), "w2": rng.normal(size=(3, 1))}
    >>> find_scale_free(apply, params, rng.normal(size=(5, 2))).axes
    {'w1': None}
    """
    apply = apply_of(network)
    if symmetry is None:
        symmetry = find_symmetry(apply, params, x[:2], state=state)
    extra = () if state is None else (state,)
    run = jax.jit(lambda p: apply(p, x, *extra))
    params = jax.tree.map(jnp.asarray, params)
    leaves = leaves_by_path(params)
    outputs = run(params)
    rng = np.random.default_rng(0)  # the result does not depend on it, only the factors tried

    def change(leaf: str, factors: np.ndarray) -> float:
        scaled = leaves[leaf] * jnp.asarray(factors, leaves[leaf].dtype)
        moved = run(with_leaves(params, {**leaves, leaf: scaled}))
        return float(jnp.sqrt(jnp.mean((moved - outputs) ** 2)))

    found: dict[str, int | None] = {}
    for leaf, axis in _kernels(Channels(Recorder(apply, params, x, symmetry, state)), symmetry):
        shape = leaves[leaf].shape
        units = [1] * len(shape)
        units[axis] = shape[axis]
        each = change(leaf, np.exp(rng.uniform(-0.5, 0.5, units)))
        other = change(leaf, np.exp(rng.uniform(-0.5, 0.5, shape)))
        if each <= CHANGE * other:
            found[leaf] = axis
        elif change(leaf, np.full([1] * len(shape), 1.5)) <= CHANGE * other:
            found[leaf] = None
    return ScaleFree(found)


def _kernels(channels: Channels, symmetry: Symmetry) -> list[tuple[str, int]]:
    """The kernels that compute hidden units, each with the axis of its units."""
    makes = [
        (place.leaf, place.axis)
        for group in symmetry.groups
        for place in group.places
        if place.where == "params" and place.role == "incoming"
    ]
    traced = [pair for layer in channels.layers for pair in layer.scales]
    # A gain scales units as well, but it is what the normalisation leaves to choose.
    return list(dict.fromkeys(pair for pair in [*traced, *makes] if pair in makes))


def keep_norms(free: ScaleFree, t: Any, mean0: PyTree, mean1: PyTree, mean: PyTree) -> PyTree:
    """The means at t with the norms of scale-free units interpolated between those of the ends."""
    leaves = leaves_by_path(mean)
    for leaf, factors in norm_factors(free, t, mean0, mean1, mean).items():
        leaves[leaf] = leaves[leaf] * factors
    return with_leaves(mean, leaves)


def norm_factors(
    free: ScaleFree, t: Any, mean0: PyTree, mean1: PyTree, mean: PyTree
) -> dict[str, jax.Array]:
    """What the mean of every scale-free kernel is multiplied by at t, shaped to broadcast."""
    starts, ends, leaves = (leaves_by_path(tree) for tree in (mean0, mean1, mean))
    found = {}
    for leaf, axis in free.axes.items():
        start, end, now = (_norm(tree[leaf], axis) for tree in (starts, ends, leaves))
        goal = (1 - t) * start + t * end
        found[leaf] = jnp.where(now > 0, goal / jnp.where(now > 0, now, 1.0), 1.0)
    return found


def _norm(kernel: jax.Array, axis: int | None) -> jax.Array:
    """The norm of the weights into each unit, or of all, shaped to multiply the kernel."""
    rest = tuple(i for i in range(kernel.ndim) if i != axis)
    return jnp.sqrt(jnp.sum(kernel**2, axis=rest, keepdims=True))
