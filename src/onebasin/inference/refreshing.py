"""Running statistics measured anew on data, at any params: what the field calls BN reset.

The statistics of a layer are the mean and variance, over all of the data, of what it receives while
the layers before it normalise by theirs. So they are found from input to output: a pass over the
data makes one more layer exact, given that those before it are. Batches are pooled by their means
and variances (Chan's formula), in double precision.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.networks import Network, RunningStatistics
from onebasin.posterior import (
    Kronecker,
    LowRank,
    LowRankPrecision,
    MeanField,
    Mixture,
    Posterior,
    Samples,
)
from onebasin.problem import Problem
from onebasin.progress import Callback, Progress, reporting
from onebasin.trees import PyTree, check_same_shapes, leaves_by_path, take_entry, with_leaves

PosteriorOrTree = TypeVar("PosteriorOrTree")
WHAT = "running statistics"


def refresh_state(
    posterior: PosteriorOrTree,
    network: Network | Problem,
    x: ArrayLike,
    *,
    draws: int = 0,
    key: jax.Array | None = None,
    batch_size: int = 1000,
    progress: Progress = "auto",
) -> PosteriorOrTree:
    """The posterior with the running statistics of its own params on `x`.

    Averages of networks have other statistics than their ends (Jordan et al. 2023), and so has
    any network whose params were not trained with its statistics. After the statistics are
    measured they are exactly those of the network on all of `x`.

    Args:
      posterior: `Samples`, whose draws each get statistics of their own; a `MeanField`, `LowRank`
        or `Mixture` of them; or the params of one network.
      network: a `Network` from an adapter, or a `Problem`, with running statistics.
      x: the inputs, usually those of training.
      draws: the draws of a Gaussian over which statistics are averaged, as in its training; 0 takes
        the mean network.
      key: needed with `draws`.
      batch_size: inputs in memory at a time; the result does not depend on it.
      progress: how to show progress, or a function of (what, done, total).

    Returns:
      The posterior with a new state; for params the state itself.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> from flax import linen as nn
    >>> class Net(nn.Module):
    ...     @nn.compact
    ...     def __call__(self, x, train=False):
    ...         return nn.BatchNorm(use_running_average=not train)(nn.Dense(1)(x))
    >>> x = jnp.array([[1.0], [3.0]])
    >>> network = ob.networks.from_linen(Net(), Net().init(jax.random.key(0), x))
    >>> params = {**network.params, "Dense_0": {"kernel": jnp.ones((1, 1)), "bias": jnp.ones(1)}}
    >>> state = ob.refresh_state(params, network, x)["batch_stats"]["BatchNorm_0"]
    >>> state["mean"].item(), state["var"].item()
    (3.0, 1.0)
    """
    if not isinstance(network, Network | Problem) or network.running is None:
        raise ValueError(
            f"{network!r} has no running statistics that can be measured; give a Network from "
            f"networks.from_linen, from_nnx, from_equinox or from_torch, or a Problem made from it"
        )
    if draws < 0 or (draws > 0 and key is None):
        raise ValueError("draws is a number of draws; if it is above 0, give the key as well")
    if batch_size < 2:
        raise ValueError(f"batch_size is {batch_size}; a variance needs at least two inputs")
    x = np.asarray(x)
    if x.ndim < 1 or len(x) < 2:
        raise ValueError(f"x has shape {x.shape}; statistics need at least two examples")
    with reporting(progress) as report:
        measure = _Measure(network.running, network.state, x, batch_size, report)
        params = network.params if isinstance(network, Network) else network.shapes
        return _refreshed(posterior, measure, params, draws, key)


def _refreshed(
    posterior: PosteriorOrTree,
    measure: "_Measure",
    like: PyTree,
    draws: int,
    key: jax.Array | None,
) -> PosteriorOrTree:
    if isinstance(posterior, Mixture):
        keys = [
            None if key is None else jax.random.fold_in(key, i)
            for i in range(len(posterior.components))
        ]
        parts = zip(posterior.components, keys, strict=True)
        components = tuple(_refreshed(q, measure, like, draws, own) for q, own in parts)
        return replace(posterior, components=components)
    if isinstance(posterior, Samples):
        check_same_shapes(like, posterior.like, "the params of the posterior")
        total, states = posterior.num_draws, []
        for i in range(total):
            states.append(measure([posterior.draw(i)], i, total))
        stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *states)
        return replace(posterior, state=stacked)
    if isinstance(posterior, MeanField | LowRank | LowRankPrecision | Kronecker):
        check_same_shapes(like, posterior.like, "the params of the posterior")
        if draws:
            assert key is not None
            drawn = posterior.sample(draws, key=key)
            networks = [take_entry(drawn, i) for i in range(draws)]
        else:
            networks = [posterior.moments()[0]]
        return replace(posterior, state=jax.tree.map(jnp.asarray, measure(networks)))
    if isinstance(posterior, Posterior):
        raise ValueError(
            f"a {type(posterior).__name__} cannot be given a new state; refresh_state takes "
            "Samples, a Gaussian, a Mixture, or the params of one network"
        )
    check_same_shapes(like, posterior, "the params tree given")
    return jax.tree.map(jnp.asarray, measure([posterior]))


class _Measure:
    """Measures the state of networks; compiled once for all of them."""

    def __init__(
        self,
        running: RunningStatistics,
        start: PyTree,
        x: np.ndarray,
        batch_size: int,
        report: Callback,
    ) -> None:
        self.running, self.start, self.report = running, start, report
        count = -(-len(x) // batch_size)
        # Batches of nearly equal size: none is so small that its variance means little.
        bounds = [len(x) * i // count for i in range(count + 1)]
        self.x, self.bounds = x, list(pairwise(bounds))
        self.observe = jax.jit(running.observe)

    def batches(self) -> Iterator[jax.Array]:
        for start, stop in self.bounds:
            yield jnp.asarray(self.x[start:stop])

    def __call__(self, networks: Sequence[PyTree], done: int = 0, total: int = 1) -> PyTree:
        """The state on which the networks agree, as NumPy arrays."""
        state = jax.tree.map(np.asarray, self.start)
        layers = len(self.running.pairs)
        for layer in range(layers):
            found = [self._pooled(params, state) for params in networks]
            new = {
                name: np.mean([one[name] for one in found], axis=0)
                for pair in self.running.pairs
                for name in pair
            }
            before = leaves_by_path(state)
            after = {k: np.asarray(new.get(k, v), v.dtype) for k, v in before.items()}
            state = with_leaves(state, after)
            self.report(WHAT, done * layers + layer + 1, total * layers)
            if all(np.array_equal(after[name], before[name]) for name in new):
                break
        return state

    def _pooled(self, params: PyTree, state: PyTree) -> dict[str, np.ndarray]:
        """Mean and variance of what every layer receives, over all batches."""
        count, pooled = 0, {}
        for batch in self.batches():
            seen = leaves_by_path(self.observe(params, batch, state))
            size = len(batch)
            share = size / (count + size)
            for mean, var in self.running.pairs:
                m, v = np.asarray(seen[mean], np.float64), np.asarray(seen[var], np.float64)
                if count:
                    old_m, old_v = pooled[mean], pooled[var]
                    away = m - old_m
                    m = old_m + share * away
                    v = old_v + share * (v - old_v) + share * (1 - share) * away**2
                pooled[mean], pooled[var] = m, v
            count += size
        return pooled
