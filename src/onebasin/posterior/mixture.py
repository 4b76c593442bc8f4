"""A weighted mixture of posteriors over the same params."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from onebasin.posterior.noise import check_count
from onebasin.posterior.protocol import Density, Move, Posterior, keep
from onebasin.trees import PyTree, all_arrays, check_same_shapes


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mixture:
    """The mixture Σ_k weights[k] · components[k].

    Args:
      components: posteriors over the same params, each with its own running statistics.
      weights: [components], non-negative and summing to 1.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> left, right = (ob.MeanField({"w": jnp.full(1, m)}, {"w": jnp.ones(1)}) for m in (-2.0, 2.0))
    >>> q = ob.Mixture((left, right), jnp.array([0.5, 0.5]))
    >>> q
    Mixture(MeanField(1 parameters), MeanField(1 parameters))
    >>> (q.moments()[1]["w"] ** 2).round(3).tolist()  # 1 within + 4 between
    [5.0]
    """

    components: tuple[Posterior, ...]
    weights: jax.Array

    def __post_init__(self) -> None:
        if not self.components:
            raise ValueError("a Mixture has no components; give at least one")
        if not all_arrays((self.components, self.weights)):
            return
        if np.shape(self.weights) != (len(self.components),):
            raise ValueError(
                f"a Mixture of {len(self.components)} components needs as many weights, "
                f"got shape {np.shape(self.weights)}; give one for each"
            )
        if not isinstance(self.weights, Tracer):
            weights = np.asarray(self.weights)
            # 1e-5 leaves room for float32 weights that were normalised by a division.
            if (weights < 0).any() or not abs(weights.sum() - 1) < 1e-5:
                raise ValueError(
                    f"the weights of a Mixture must be non-negative and sum to 1, got {weights}; "
                    "divide them by their sum"
                )
        for k, component in enumerate(self.components[1:], start=1):
            check_same_shapes(self.like, component.like, f"component {k} of a Mixture")

    def __repr__(self) -> str:
        return f"Mixture({', '.join(map(repr, self.components))})"

    @property
    def like(self) -> PyTree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        return self.components[0].like

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree:
        """One draw, or `count` draws along a leading axis of every leaf."""
        return self._choose([c.sample for c in self.components], count, key)

    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        return self._choose([c.states for c in self.components], count, key)

    def _choose(self, draws: list[Callable], count: int | None, key: jax.Array) -> PyTree:
        """Draw from every component, then select one component for each draw.

        The selection inverts the cumulative weights at stratified uniforms. The number of draws
        from a component is then within one of its expectation, which removes the noise of the
        selection from the predictive, and each draw alone still follows the mixture.
        """
        check_count(count)
        pick_key, *keys = jax.random.split(key, len(self.components) + 1)
        n = 1 if count is None else count
        offset_key, order_key = jax.random.split(pick_key)
        uniform = (jnp.arange(n) + jax.random.uniform(offset_key)) / n
        uniform = jax.random.permutation(order_key, uniform)
        picks = jnp.searchsorted(jnp.cumsum(self.weights), uniform, side="right")
        picks = jnp.clip(picks, 0, len(self.components) - 1)
        drawn = [draw(count, key=k) for draw, k in zip(draws, keys, strict=True)]

        def leaf(*options: jax.Array) -> jax.Array:
            if count is None:
                return jnp.stack(options)[picks[0]]
            shape = (count,) + (1,) * (options[0].ndim - 1)
            return jnp.select([(picks == k).reshape(shape) for k in range(len(options))], options)

        return jax.tree.map(leaf, *drawn)

    def moments(self) -> tuple[PyTree, PyTree]:
        """Mean and standard deviation, by the law of total variance."""
        means, stds = zip(*(c.moments() for c in self.components), strict=True)

        def average(*leaves: jax.Array) -> jax.Array:
            return jnp.tensordot(self.weights.astype(leaves[0].dtype), jnp.stack(leaves), axes=1)

        mean = jax.tree.map(average, *means)
        within = jax.tree.map(lambda *s: average(*(x**2 for x in s)), *stds)
        between = jax.tree.map(lambda m, *ms: average(*((x - m) ** 2 for x in ms)), mean, *means)
        return mean, jax.tree.map(lambda a, b: jnp.sqrt(a + b), within, between)

    def log_prob(self, params: PyTree) -> jax.Array:
        """log Σ_k weights[k] q_k(params)."""
        densities = [c for c in self.components if isinstance(c, Density)]
        if len(densities) < len(self.components):
            raise TypeError("a component of the Mixture has no density; give it a log_prob")
        terms = jnp.stack([c.log_prob(params) for c in densities])
        return jax.scipy.special.logsumexp(terms, b=self.weights)

    def relabel(self, move: Move, move_state: Move = keep) -> "Mixture":
        """Apply `move` and `move_state` to every component."""
        return Mixture(tuple(c.relabel(move, move_state) for c in self.components), self.weights)
