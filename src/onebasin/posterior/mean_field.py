"""The fully factorised Gaussian."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from onebasin.posterior.checks import check_numbers
from onebasin.posterior.noise import check_count, gaussian_log_density, normal_like, repeat_state
from onebasin.posterior.protocol import Move, keep
from onebasin.trees import PyTree, all_arrays, check_same_shapes, num_parameters


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MeanField:
    """The fully factorised Gaussian N(mean, diag(std²)).

    Args:
      mean: params.
      std: standard deviations, a tree like `mean`.
      state: running statistics, if the network has them.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.zeros(3)}, {"w": jnp.ones(3)})
    >>> q
    MeanField(3 parameters)
    >>> q.sample(5, key=jax.random.key(0))["w"].shape
    (5, 3)
    """

    mean: PyTree
    std: PyTree
    state: PyTree | None = None

    def __post_init__(self) -> None:
        if all_arrays((self.mean, self.std)):
            check_same_shapes(self.mean, self.std, "the std of a MeanField")
            check_numbers("the mean of a MeanField", self.mean)
            check_numbers("the std of a MeanField", self.std, positive=True)

    def __repr__(self) -> str:
        return f"MeanField({num_parameters(self.mean):,} parameters)"

    @property
    def like(self) -> PyTree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        return self.mean

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree:
        """θ = mean + std·ε with ε ~ N(0, I); `count` draws along a leading axis of every leaf."""
        check_count(count)
        noise = normal_like(self.mean, count, key=key)
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.std, noise)

    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        del key
        return repeat_state(self.state, count)

    def moments(self) -> tuple[PyTree, PyTree]:
        """Mean and standard deviation of every coordinate."""
        return self.mean, self.std

    def log_prob(self, params: PyTree) -> jax.Array:
        """log N(params; mean, diag(std²))."""
        terms = jax.tree.map(gaussian_log_density, params, self.mean, self.std)
        return sum(jax.tree.leaves(terms), start=jnp.zeros(()))

    def relabel(self, move: Move, move_state: Move = keep) -> "MeanField":
        """Apply `move` to mean and std, `move_state` to the state."""
        return MeanField(move(self.mean, 0), move(self.std, 0), move_state(self.state, 0))
