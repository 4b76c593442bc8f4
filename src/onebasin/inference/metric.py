"""How momenta are drawn and what they weigh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from blackjax.mcmc.metrics import gaussian_euclidean
from jax.flatten_util import ravel_pytree

from onebasin.inference.full_batch import accurate_sum
from onebasin.trees import Tree


class Metric(NamedTuple):
    """A Gaussian law of momenta.

    `kinetic_difference(end, start)` is the rise of the kinetic energy, of the size of one, without
    the rounding error of two energies of the size of the number of weights.
    """

    sample_momentum: Callable[[jax.Array, Tree], Tree]
    kinetic_energy: Callable[..., jax.Array]
    kinetic_difference: Callable[[Tree, Tree], jax.Array]


def diagonal_metric(inverse_mass: jax.Array) -> Metric:
    """BlackJAX's, of one inverse mass per weight."""
    metric: Any = gaussian_euclidean(inverse_mass)

    def kinetic_difference(end: Tree, start: Tree) -> jax.Array:
        """½ Σ m⁻¹(p₁² − p₀²), summed as products of sums and differences."""
        last, first = ravel_pytree(end)[0], ravel_pytree(start)[0]
        return 0.5 * accurate_sum(inverse_mass * (last - first) * (last + first))

    return Metric(metric.sample_momentum, metric.kinetic_energy, kinetic_difference)
