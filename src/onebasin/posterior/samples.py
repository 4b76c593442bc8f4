"""A posterior held as draws: chains of HMC, members of an ensemble."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from onebasin.posterior import importing
from onebasin.posterior.checks import check_numbers
from onebasin.posterior.draw_moments import draw_moments
from onebasin.posterior.mean_field import MeanField
from onebasin.posterior.noise import check_count
from onebasin.posterior.protocol import Move, keep
from onebasin.trees import (
    PyTree,
    all_arrays,
    is_writeable,
    leaves_by_path,
    num_parameters,
    take_entry,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Samples:
    """An empirical distribution: draws of HMC chains, or the members of an ensemble.

    Args:
      draws: params with a leading axis of draws on every leaf.
      chain: the chain each draw belongs to, [draws]; zeros by default.
      state: running statistics, if the network has them; one per draw, so with the same leading
        axis.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.array([[1.0], [3.0], [5.0]])}, chain=jnp.array([0, 0, 1]))
    >>> q
    Samples(1 parameters, 3 draws of 2 chains)
    >>> q.draw(1)["w"].item(), q.moments()[0]["w"].item()
    (3.0, 3.0)
    """

    draws: PyTree
    chain: jax.Array | np.ndarray = None  # pyright: ignore[reportAssignmentType]
    state: PyTree | None = None

    def __post_init__(self) -> None:
        importing.check_is_draws(self.draws, self.chain)
        if not all_arrays((self.draws, self.chain, self.state)):
            return
        shapes = {name: np.shape(leaf) for name, leaf in leaves_by_path(self.draws).items()}
        if not shapes:
            raise ValueError("Samples need at least one leaf of draws; give a tree of arrays")
        first = next(iter(shapes))
        for name, shape in shapes.items():
            if not shape or shape[0] != shapes[first][0]:
                raise ValueError(
                    f"leaf '{name}' has shape {shape} where a leading axis of "
                    f"{shapes[first][:1]} draws is expected, as in leaf '{first}'; give as many "
                    "draws of every leaf"
                )
        draws = shapes[first][0]
        if draws == 0:
            raise ValueError("Samples hold no draws; give at least one")
        if self.chain is None:
            object.__setattr__(self, "chain", jnp.zeros(draws, jnp.int32))
        elif np.shape(self.chain) != (draws,):
            raise ValueError(
                f"chain has shape {np.shape(self.chain)}; give one number for each of {draws} draws"
            )
        check_numbers("a draw", self.draws)
        for name, leaf in leaves_by_path(self.state).items():
            if np.shape(leaf)[:1] != (draws,):
                raise ValueError(
                    f"state leaf '{name}' has shape {np.shape(leaf)}; "
                    f"stack one state for each of the {draws} draws"
                )

    @classmethod
    def from_chains(cls, draws: PyTree, *, like: PyTree | None = None) -> "Samples":
        """Draws of several chains: a dictionary or tree of arrays [chains, draws, ...].

        Args:
          draws: the draws; their names may be key paths, with dots or slashes.
          like: a params tree whose containers the result takes. Leaves that it lacks are left out.

        >>> import jax.numpy as jnp, onebasin as ob
        >>> ob.Samples.from_chains({"w": jnp.zeros((2, 5, 3)), "b": jnp.zeros((2, 5))})
        Samples(4 parameters, 10 draws of 2 chains)
        """
        return cls(*importing.join_chains(draws, like))

    @classmethod
    def from_arviz(
        cls, data: Any, *, group: str = "posterior", like: PyTree | None = None
    ) -> "Samples":
        """The draws in an `InferenceData` or a `DataTree` of ArviZ; see `from_chains` for `like`.

        Variables with dots in their names become nested dictionaries.

        >>> import numpy as np, onebasin as ob
        >>> import arviz as az  # doctest: +SKIP
        >>> data = az.from_dict(posterior={"dense.w": np.zeros((2, 5, 3))})  # doctest: +SKIP
        >>> ob.Samples.from_arviz(data).draw(0)["dense"]["w"].shape  # doctest: +SKIP
        (3,)
        """
        return cls(*importing.of_arviz(data, group, like))

    @classmethod
    def from_numpyro(cls, mcmc: Any, *, like: PyTree | None = None) -> "Samples":
        """The draws of all latent sites of a finished `numpyro.infer.MCMC`, by chain.

        Give the params of your network as `like` if the model has other latent sites, such as the
        noise: see `from_chains`. Deterministic sites are left out.
        """
        return cls(*importing.of_numpyro(mcmc, like))

    @classmethod
    def from_blackjax(
        cls, states: Any, *, chain_axis: int | None = None, like: PyTree | None = None
    ) -> "Samples":
        """The positions of states of BlackJAX, collected along an axis of draws.

        Args:
          states: what `jax.lax.scan` over the kernel collected.
          chain_axis: the axis of chains, if there are several: 1 for [draws, chains, ...] (a `vmap`
            inside the scan), 0 for [chains, draws, ...].
          like: as in `from_chains`.
        """
        return cls(*importing.of_blackjax(states, chain_axis, like))

    @classmethod
    def from_list(cls, members: Sequence[PyTree]) -> "Samples":
        """Params trees, such as the members of an ensemble that you trained; a chain each.

        >>> import jax.numpy as jnp, onebasin as ob
        >>> ob.Samples.from_list([{"w": jnp.zeros(3)}, {"w": jnp.ones(3)}])
        Samples(3 parameters, 2 draws of 2 chains)
        """
        return cls(*importing.of_list(members))

    def __repr__(self) -> str:
        chains = 1 if isinstance(self.chain, Tracer) else len(np.unique(np.asarray(self.chain)))
        several = f" of {chains} chains" if chains > 1 else ""
        return f"Samples({num_parameters(self.like):,} parameters, {self.num_draws} draws{several})"

    @property
    def num_draws(self) -> int:
        """The number of draws."""
        return jax.tree.leaves(self.draws)[0].shape[0]

    @property
    def like(self) -> PyTree:
        """A tree with the structure, shapes and dtypes of one params tree."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.draws
        )

    def draw(self, index: int) -> PyTree:
        """The params of one draw."""
        return take_entry(self.draws, index)

    def take(self, indices: np.ndarray | slice) -> "Samples":
        """The draws at these indices; a slice of memory maps copies nothing."""
        return Samples(*take_entry((self.draws, self.chain, self.state), indices))

    def thin(self, count: int) -> "Samples":
        """`count` evenly spaced draws."""
        if count == self.num_draws:
            return self
        return self.take(np.arange(count) * self.num_draws // count)

    def of_chains(self, chains: Sequence[int]) -> list["Samples"]:
        """The draws of some chains: one `Samples` per contiguous block, as slices."""
        wanted = np.flatnonzero(np.isin(np.asarray(self.chain), chains))
        blocks = np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1) if len(wanted) else []
        return [self.take(slice(int(block[0]), int(block[-1]) + 1)) for block in blocks]

    def sample(self, count: int | None = None, *, key: jax.Array) -> PyTree:
        """Draws chosen at random, without replacement until every draw has been used."""
        return take_entry(self.draws, self._picks(count, key=key))

    def states(self, count: int | None = None, *, key: jax.Array) -> PyTree | None:
        """The running statistics that belong to `sample(count, key=key)`, or None."""
        return take_entry(self.state, self._picks(count, key=key))

    def _picks(self, count: int | None, *, key: jax.Array) -> jax.Array:
        """Indices from whole passes over the draws, each in a random order.

        With `count` equal to the number of draws each is used once, so the predictive of an
        ensemble is its plain average.
        """
        check_count(count)
        n = self.num_draws
        if count is None:
            return jax.random.randint(key, (), 0, n)
        passes = jax.vmap(lambda k: jax.random.permutation(k, n))(
            jax.random.split(key, -(-count // n))
        )
        return passes.reshape(-1)[:count]

    def moments(self) -> tuple[PyTree, PyTree]:
        """Mean and standard deviation (with divisor n) of every coordinate."""
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self.draws)):
            mean = jax.tree.map(lambda leaf: leaf.mean(0), self.draws)
            return mean, jax.tree.map(lambda leaf: leaf.std(0), self.draws)
        return self._read_moments() if is_writeable(self.draws) else self._moments_of_file

    def _read_moments(self) -> tuple[PyTree, PyTree]:
        """The moments of draws in host memory, or in a file that may be larger than memory."""
        outer, inner = jax.tree.structure(self.draws), jax.tree.structure((0, 0))
        return jax.tree.transpose(outer, inner, jax.tree.map(draw_moments, self.draws))

    @cached_property
    def _moments_of_file(self) -> tuple[PyTree, PyTree]:
        """A file of draws can take minutes to read, and does not change."""
        return self._read_moments()

    def as_mean_field(self) -> MeanField:
        """The factorised Gaussian with the mean and standard deviation of the draws.

        A coordinate that is the same in all draws gets the smallest positive normal number as its
        standard deviation.
        """
        mean, std = self.moments()
        return MeanField(mean, jax.tree.map(lambda s: jnp.maximum(s, jnp.finfo(s.dtype).tiny), std))

    def log_prob(self, params: PyTree) -> jax.Array:
        """Not defined: an error that names the remedy."""
        del params
        raise TypeError("Samples have no density; fit one with compact(samples, symmetry=...)")

    def relabel(self, move: Move, move_state: Move = keep) -> "Samples":
        """Apply `move` to every draw, `move_state` to every state."""
        return Samples(move(self.draws, 1), self.chain, move_state(self.state, 1))
