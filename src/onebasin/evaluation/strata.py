"""Where draws come from: strata of equally weighted draws, made one at a time.

Every predictive evaluated here is p̄ = Σ_k w_k(t) · (mean over the draws of stratum k). A Gaussian
or a displacement is one stratum of weight one; a mixture has one stratum per component, so that
component weights are exact and only the draws within a component are random. Draw s is made from
the s-th key: the same key gives the same noise along t, and for every posterior over the same
params (common random numbers).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import jax
import numpy as np

from onebasin.paths import (
    DisplacementPath,
    MixturePath,
    NormKeepingPath,
    Path,
    RepairedPath,
    TunedPath,
)
from onebasin.posterior import Mixture, Posterior, Samples
from onebasin.posterior.coupled import CoupledDraws, coupled_draws
from onebasin.trees import PyTree

Ends = tuple[PyTree, PyTree, PyTree, PyTree]  # params and state at t = 0, params and state at t = 1


@dataclass(frozen=True)
class Stratum:
    """`count` equally weighted draws; `ends(s)` makes the s-th.

    `moves` says whether draws depend on t. If they do not, both ends are the same and one
    evaluation serves every t.
    """

    count: int
    weight: Callable[[float], float]  # of t
    ends: Callable[[int], Ends] = field(repr=False)
    moves: bool
    exact: bool = False  # a single network, so that nothing is random


def strata(
    source: Posterior | Path, num_samples: int, *, key: jax.Array, proportional: bool = True
) -> list[Stratum]:
    """The strata of a posterior or of a path.

    The draws of a Mixture are allocated in proportion to its weights; with `proportional=False`
    each component gets `num_samples`, so that strata do not depend on the weights.
    """
    whole = isinstance(num_samples, int | np.integer) and not isinstance(num_samples, bool)
    if not whole or num_samples < 1:
        raise ValueError(f"num_samples must be a whole number of at least 1, got {num_samples!r}")
    match source:
        case RepairedPath() | NormKeepingPath() | TunedPath():
            return strata(source.plain, num_samples, key=key)
        case DisplacementPath():
            return [_moving(source, num_samples, key=key)]
        case MixturePath():
            # Each end gets all its samples: its draws serve every t. The keys differ because
            # the standard error adds the strata as independent.
            first, second = jax.random.split(key)
            return [
                *_weighted(strata(source.q0, num_samples, key=first), lambda t: 1 - t),
                *_weighted(strata(source.q1, num_samples, key=second), lambda t: t),
            ]
        case Mixture():
            return _components(source, num_samples, proportional, key=key)
        case Posterior():
            return [_still(source, coupled_draws((source,), num_samples, key=key))]
        case _:
            pass
    raise ValueError(
        f"a {type(source).__name__} is neither a posterior nor a path; give a posterior such as a "
        "MeanField or Samples"
    )


def each_draw(sources: list[Stratum]) -> Iterator[tuple[float, PyTree, PyTree | None]]:
    """Every draw of strata that do not move: its weight in the predictive, params and state."""
    for source in sources:
        for s in range(source.count):
            params, state, _, _ = source.ends(s)
            yield source.weight(0.0) / source.count, params, state


def _moving(path: DisplacementPath, num_samples: int, *, key: jax.Array) -> Stratum:
    draws = coupled_draws((path.q0, path.q1), num_samples, key=key)

    def ends(s: int) -> Ends:
        (params0, state0), (params1, state1) = draws(s)
        return params0, state0, params1, state1

    return Stratum(draws.count, lambda _: 1.0, ends, True, path.deterministic)


def _still(q: Posterior, draws: CoupledDraws) -> Stratum:
    def ends(s: int) -> Ends:
        ((params, state),) = draws(s)
        return params, state, params, state

    exact = isinstance(q, Samples) and q.num_draws == 1
    return Stratum(draws.count, lambda _: 1.0, ends, False, exact)


def _components(
    q: Mixture, num_samples: int, proportional: bool, *, key: jax.Array
) -> list[Stratum]:
    """The strata of all components; a proportional share is at least two draws if possible."""
    weights = np.asarray(q.weights, np.float64)
    weights = weights / weights.sum()
    found = []
    keys = jax.random.split(key, len(q.components))
    for component, weight, k in zip(q.components, weights, keys, strict=True):
        count = num_samples
        if proportional:
            count = max(round(num_samples * weight), min(2, num_samples))
        if weight > 0 or not proportional:
            own = strata(component, count, key=k, proportional=proportional)
            found += _weighted(own, lambda _, w=float(weight): w)
    return found


def _weighted(found: list[Stratum], weight: Callable[[float], float]) -> list[Stratum]:
    return [
        Stratum(s.count, lambda t, own=s.weight: weight(t) * own(t), s.ends, s.moves, s.exact)
        for s in found
    ]
