"""Soft permutations: doubly stochastic matrices, by Sinkhorn's algorithm.

`soften(L)` is the doubly stochastic P that maximises ⟨L, P⟩ + H(P), with H the entropy. It has the
form Pᵢⱼ = exp(Lᵢⱼ + fᵢ + gⱼ); f and g are found by normalising rows and columns in turn, in
logarithms. As L grows, P approaches the permutation that maximises ⟨L, P⟩.

The gradient does not go through the iterations. Differentiating the row and column sums of P
gives, for a cotangent P̄ and M = P ∘ P̄,

    L̄ = M − P ∘ (α 1ᵀ + 1 βᵀ),   with   α + Pβ = M1  and  Pᵀα + β = Mᵀ1,

and α and β are found by solving the two equations in turn: a product of P with a vector each.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

ITERATIONS = 20


def soften(scores: jax.Array, iterations: int = ITERATIONS) -> jax.Array:
    """The doubly stochastic matrix exp(Lᵢⱼ + fᵢ + gⱼ).

    >>> soften(jnp.array([[20.0, 0.0], [0.0, 20.0]])).round(3).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return jnp.exp(log_soften(scores, iterations))


def log_soften(scores: jax.Array, iterations: int = ITERATIONS) -> jax.Array:
    """The logarithm of `soften`. Less the scores, it is f and g, a start for similar scores:
    adding to L what depends on the row or the column alone changes neither P nor the gradient.
    """
    found: Any = _log_soften(scores, iterations)
    return found


def log_soften_all(scores: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """`log_soften` of several matrices. Those of one size are done together: every loop less is
    seconds less of compiling.
    """
    found: dict[str, jax.Array] = {}
    for size in sorted({len(s) for s in scores.values()}):
        names = [name for name, s in scores.items() if len(s) == size]
        logs = jax.vmap(log_soften)(jnp.stack([scores[name] for name in names]))
        found.update(zip(names, logs, strict=True))
    return found


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _log_soften(scores: Any, iterations: int) -> Any:
    def both(_: int, logs: jax.Array) -> jax.Array:
        logs = logs - jax.nn.logsumexp(logs, axis=1, keepdims=True)
        return logs - jax.nn.logsumexp(logs, axis=0, keepdims=True)

    return jax.lax.fori_loop(0, iterations, both, scores)


def _forward(scores: Any, iterations: int) -> tuple[Any, Any]:
    logs = log_soften(scores, iterations)
    return logs, jnp.exp(logs)


def _backward(iterations: int, soft: jax.Array, weighted: jax.Array) -> tuple[jax.Array]:
    # The cotangent of log P is P ∘ P̄, the M of the derivation.
    rows, columns = weighted.sum(axis=1), weighted.sum(axis=0)

    def alternate(_: int, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        alpha = rows - soft @ pair[1]
        return alpha, columns - alpha @ soft

    start = (rows, jnp.zeros_like(columns))
    alpha, beta = jax.lax.fori_loop(0, iterations, alternate, start)
    return (weighted - soft * (alpha[:, None] + beta[None, :]),)


_log_soften.defvjp(_forward, _backward)
