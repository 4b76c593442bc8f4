"""Where draws come from: strata of equally weighted draws, made one at a time.

The predictive of everything we evaluate is p̄ = Σ_k w_k(t) · mean over the draws of stratum k.
A Gaussian and a displacement are one stratum of weight one; a mixture has one per component,
so that the share of each is exact and only the draws within it are random. Draw s is made
from the s-th key, whatever else is asked for: the same key gives the same noise along t, and
to every posterior over the same params (common random numbers).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from onebasin.paths import Displacement, Mixing, Repaired
from onebasin.posterior import Mixture, Samples
from onebasin.trees import Tree

Ends = tuple[Tree, Tree, Tree, Tree]  # params and state at t = 0, params and state at t = 1


@dataclass(frozen=True)
class Stratum:
    """`count` equally weighted draws; `ends(s)` makes the s-th.

    `moves` says whether draws depend on t: if not, both ends are the same and one
    evaluation serves every t.
    """

    count: int
    weight: Callable[[float], float]  # of t
    ends: Callable[[int], Ends] = field(repr=False)
    moves: bool
    exact: bool = False  # a single network: nothing random about it


def strata(source: Any, samples: int, *, key: jax.Array) -> list[Stratum]:
    """The strata of a posterior or of a path."""
    if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 1:
        raise ValueError(f"samples must be a whole number of at least 1, got {samples!r}")
    match source:
        case Repaired():
            return strata(source.path, samples, key=key)
        case Displacement():
            return [_moving(source, samples, key=key)]
        case Mixing():
            # Each end gets all its samples: its draws serve every t. The keys differ because
            # the standard error adds up the strata as independent.
            first, second = jax.random.split(key)
            return [
                *_weighted(strata(source.q0, samples, key=first), lambda t: 1 - t),
                *_weighted(strata(source.q1, samples, key=second), lambda t: t),
            ]
        case Mixture():
            return _components(source, samples, key=key)
        case _ if hasattr(source, "sample"):
            return [_still(source, _draws_of((source,), samples, key=key))]
    raise ValueError(f"a {type(source).__name__} is neither a posterior nor a path")


def constant(value: float) -> Callable[[float], float]:
    """A weight that does not depend on t."""

    def weight(t: float) -> float:
        del t
        return value

    return weight


def _moving(path: Displacement, samples: int, *, key: jax.Array) -> Stratum:
    draws = _draws_of((path.q0, path.q1), samples, key=key)

    def ends(s: int) -> Ends:
        (params0, state0), (params1, state1) = draws(s)
        return params0, state0, params1, state1

    return Stratum(draws.count, constant(1.0), ends, True, path.deterministic)


def _still(q: Any, draws: "_Draws") -> Stratum:
    def ends(s: int) -> Ends:
        ((params, state),) = draws(s)
        return params, state, params, state

    exact = isinstance(q, Samples) and q.num_draws == 1
    return Stratum(draws.count, constant(1.0), ends, False, exact)


def _components(q: Mixture, samples: int, *, key: jax.Array) -> list[Stratum]:
    """Each component gets its share of the draws, and at least one (two if they allow it)."""
    weights = np.asarray(q.weights, np.float64)
    weights = weights / weights.sum()
    found = []
    keys = jax.random.split(key, len(q.components))
    for component, weight, k in zip(q.components, weights, keys, strict=True):
        if weight > 0:
            count = max(round(samples * weight), min(2, samples))
            found += _weighted(strata(component, count, key=k), constant(float(weight)))
    return found


def _weighted(found: list[Stratum], weight: Callable[[float], float]) -> list[Stratum]:
    return [
        Stratum(s.count, lambda t, own=s.weight: weight(t) * own(t), s.ends, s.moves, s.exact)
        for s in found
    ]


@dataclass(frozen=True)
class _Draws:
    """The s-th draw of each of some posteriors, with its running statistics."""

    count: int
    make: Callable[[int], tuple[tuple[Tree, Tree], ...]]

    def __call__(self, s: int) -> tuple[tuple[Tree, Tree], ...]:
        return self.make(s)


def _draws_of(posteriors: tuple[Any, ...], samples: int, *, key: jax.Array) -> _Draws:
    """Coupled draws: of Gaussians with one noise, of Samples with one index."""
    first = posteriors[0]
    if isinstance(first, Samples):
        # Never the same draw twice: with all of them in, the average over the set is exact.
        if samples >= first.num_draws:
            order = np.arange(first.num_draws)
        else:
            order = np.asarray(jax.random.permutation(key, first.num_draws))[:samples]
        return _Draws(len(order), lambda s: _pick(posteriors, order[s]))
    return _Draws(samples, lambda s: _sample(posteriors, key, s))


@jax.jit
def _sample(posteriors: tuple[Any, ...], key: jax.Array, index: int):
    own = jax.random.fold_in(key, index)
    return tuple((q.sample(key=own), q.states(key=own)) for q in posteriors)


@jax.jit
def _pick(posteriors: tuple[Samples, ...], index: int):
    pick = lambda tree: jax.tree.map(lambda leaf: leaf[index], tree)
    return tuple((pick(q.draws), pick(q.state)) for q in posteriors)
