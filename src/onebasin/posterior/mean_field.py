"""The fully factorised Gaussian."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from onebasin.posterior.noise import check_count, gaussian_log_density, normal_like
from onebasin.posterior.relabelling import Move, keep
from onebasin.trees import Tree, all_arrays, check_same_shapes


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MeanField:
    """N(mean, diag(std²)) over params; `state` are running statistics that ride along.

    >>> import jax.numpy as jnp, jax
    >>> q = MeanField({"w": jnp.zeros(3)}, {"w": jnp.ones(3)})
    >>> q.sample(5, key=jax.random.key(0))["w"].shape
    (5, 3)
    """

    mean: Tree
    std: Tree
    state: Tree = None

    def __post_init__(self) -> None:
        if all_arrays((self.mean, self.std)):
            check_same_shapes(self.mean, self.std, "the std of a MeanField")

    @property
    def like(self) -> Tree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        return self.mean

    def sample(self, count: int | None = None, *, key: jax.Array) -> Tree:
        """θ = mean + std·ε; with `count`, that many along a leading axis."""
        check_count(count)
        noise = normal_like(self.mean, count, key=key)
        return jax.tree.map(lambda m, s, e: m + s * e, self.mean, self.std, noise)

    def states(self, count: int | None = None, *, key: jax.Array) -> Tree:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        del key
        return repeat_state(self.state, count)

    def moments(self) -> tuple[Tree, Tree]:
        """Mean and standard deviation of every coordinate."""
        return self.mean, self.std

    def log_prob(self, params: Tree) -> jax.Array:
        terms = jax.tree.map(gaussian_log_density, params, self.mean, self.std)
        return sum(jax.tree.leaves(terms), start=jnp.zeros(()))

    def relabel(self, move: Move, move_state: Move = keep) -> "MeanField":
        """Apply one relabelling of coordinates to every params-shaped tree inside."""
        return MeanField(move(self.mean, 0), move(self.std, 0), move_state(self.state, 0))


def repeat_state(state: Tree, count: int | None) -> Tree:
    if state is None or count is None:
        return state
    return jax.tree.map(lambda s: jnp.broadcast_to(s, (count, *s.shape)), state)
