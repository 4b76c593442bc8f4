"""The log density of all the data, in chunks: its memory does not grow with the data.

Differentiation through a loop over chunks would keep the activations of every chunk until the end.
The gradient of a sum is the sum of gradients, so the gradient of each chunk is computed inside the
loop together with its value, and only the running sum is kept.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference.shards import WHOLE, Shards
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree

LogDensity: TypeAlias = Callable[[PyTree], jax.Array]


def chunked(problem: Problem, size: int, shards: int = 1) -> Batch:
    """The training data as [chunks, size, ...]; padding, if any, has weight 0.

    The number of chunks is that for `size`, or the next multiple of `shards`; the examples are
    distributed evenly over them.
    """
    count = problem.num_examples
    chunks = shards * math.ceil(math.ceil(count / size) / shards)
    even = -(-count // chunks)
    padding = chunks * even - count
    picks = np.minimum(np.arange(chunks * even), count - 1)
    parts = [problem.x, problem.y] if not padding else [problem.x[picks], problem.y[picks]]
    x, y = (jnp.asarray(a.reshape(chunks, even, *a.shape[1:])) for a in parts)
    if not padding:
        return Batch(x, y)
    weight = (np.arange(chunks * even) < count).reshape(chunks, even)
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
    return Batch(x, y, jnp.asarray(weight, dtype=dtype))


def log_likelihood(problem: Problem, data: Batch, shards: Shards = WHOLE) -> LogDensity:
    """θ → (ρ/T) Σ log p(y | θ) over all chunks, with a gradient computed chunk by chunk.

    With several shards `data` are the chunks of one device; value and gradient are summed over all.
    """

    data, state = data._replace(state=None), data.state  # one state for all chunks

    def of_chunk(params: PyTree, chunk: Batch) -> jax.Array:
        return problem.summed_log_likelihood(params, chunk._replace(state=state))[0]

    @jax.custom_vjp
    def total(params: PyTree) -> jax.Array:
        return shards.sum(jax.lax.map(lambda chunk: of_chunk(params, chunk), data).sum())

    def forward(params: PyTree) -> tuple[jax.Array, PyTree]:
        def add(sums: tuple[jax.Array, PyTree], chunk: Batch) -> tuple[PyTree, None]:
            value, gradient = jax.value_and_grad(of_chunk)(params, chunk)
            return (sums[0] + value, jax.tree.map(jnp.add, sums[1], gradient)), None

        dtype = jax.tree.leaves(params)[0].dtype
        zero = (jnp.zeros((), dtype), jax.tree.map(jnp.zeros_like, params))
        found, _ = jax.lax.scan(add, zero, data)
        return shards.sum(found)

    def backward(gradient: PyTree, cotangent: jax.Array) -> tuple[PyTree]:
        return (jax.tree.map(lambda g: cotangent * g, gradient),)

    total.defvjp(forward, backward)
    return total


def log_density(
    problem: Problem, data: Batch, origin: PyTree | None = None, shards: Shards = WHOLE
) -> LogDensity:
    """θ → log likelihood + log prior(θ) − log prior(origin); the origin is 0 by default.

    A sampler does not depend on the constant, but its precision does: with a million weights Σθ²/2v
    is about half a million, which single precision resolves to a few hundredths at best. Relative
    to a nearby origin the terms (θ−o)(θ+o)/2v nearly cancel, and so do their rounding errors.
    """
    likelihood = log_likelihood(problem, data, shards)
    return lambda params: likelihood(params) + relative_log_prior(problem, params, origin)


def relative_log_prior(problem: Problem, params: PyTree, origin: PyTree | None = None) -> jax.Array:
    """log prior(θ) − log prior(origin)."""
    origin = jax.tree.map(jnp.zeros_like, params) if origin is None else origin
    terms = jax.tree.map(
        lambda p, o, v: -accurate_sum((p - o) * (p + o)) / (2 * v),
        params,
        origin,
        problem.prior_variances,
    )
    return jax.tree.reduce(jnp.add, terms)


def accurate_sum(values: jax.Array) -> jax.Array:
    """A sum in stages of about √n terms, whose rounding error grows like n^¼ instead of √n."""
    flat = values.reshape(-1)
    width = max(1, int(flat.size**0.5))
    whole = flat.size // width * width
    return flat[:whole].reshape(-1, width).sum(-1).sum() + flat[whole:].sum()
