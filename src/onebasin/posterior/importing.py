"""Draws of other packages as params trees with one leading axis of draws, and the chain of each.

Everything here looks at what objects have, not at their classes: no other package is imported.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.trees import PyTree, first_difference, leaves_by_path, stack_trees, with_leaves

SEPARATORS = re.compile(r"[./]")
Joined = tuple[PyTree, np.ndarray]
"""Draws along one axis, and the chain of each."""


def join_chains(draws: PyTree, like: PyTree | None) -> Joined:
    """Leaves [chains, draws, ...] as [chains × draws, ...], one chain after another."""
    shapes = {name: np.shape(leaf) for name, leaf in leaves_by_path(draws).items()}
    if not shapes:
        raise ValueError("there are no draws; give a tree of arrays [chains, draws, ...]")
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if len(shape) < 2 or shape[:2] != shapes[first][:2]:
            raise ValueError(
                f"leaf '{name}' has shape {shape}; every leaf begins with the same numbers of "
                f"chains and draws, {shapes[first][:2]} in leaf '{first}'"
            )
    chains, count = shapes[first][:2]
    if not chains * count:
        raise ValueError("there are no draws; give at least one of one chain")
    joined = jax.tree.map(lambda leaf: jnp.reshape(leaf, (chains * count, *leaf.shape[2:])), draws)
    return _in_containers(joined, like), np.repeat(np.arange(chains, dtype=np.int32), count)


def _in_containers(draws: PyTree, like: PyTree | None) -> PyTree:
    """The leaves that `like` has, in its containers; a dot in a name is as good as a slash."""
    if like is None:
        return draws
    arrays = {SEPARATORS.sub("/", name): leaf for name, leaf in leaves_by_path(draws).items()}
    wanted = {
        SEPARATORS.sub("/", name): tuple(np.shape(leaf))
        for name, leaf in leaves_by_path(like).items()
    }
    given = {name: tuple(leaf.shape[1:]) for name, leaf in arrays.items() if name in wanted}
    difference = first_difference(wanted, given)
    if difference:
        raise ValueError(
            f"the draws do not fit the tree given as like=: {difference}; the draws hold "
            f"{', '.join(arrays)}"
        )
    by_path = {name: arrays[SEPARATORS.sub("/", name)] for name in leaves_by_path(like)}
    return with_leaves(like, by_path)


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Names such as `dense.w` and `dense/w` as nested dictionaries.

    >>> nested({"dense.w": 1, "dense.b": 2, "s": 3})
    {'dense': {'w': 1, 'b': 2}, 's': 3}
    """
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = SEPARATORS.split(name)
        level = tree
        for parent in parents:
            level = level.setdefault(parent, {})
            if not isinstance(level, dict):
                raise ValueError(f"'{name}' cannot be both a leaf and a part of others; rename it")
        if last in level:
            raise ValueError(f"'{name}' cannot be both a leaf and a part of others; rename it")
        level[last] = leaf
    return tree


def of_arviz(data: Any, group: str, like: PyTree | None) -> Joined:
    """The variables of a group of an `InferenceData` or a `DataTree` of ArviZ."""
    found = getattr(data, group, None)
    variables = getattr(found, "data_vars", None)
    if variables is None:
        raise ValueError(
            f"a {type(data).__name__} has no group '{group}' of variables; give an InferenceData "
            "or a DataTree of ArviZ"
        )
    leaves = {}
    for name, array in variables.items():
        if not {"chain", "draw"} <= set(array.dims):
            raise ValueError(
                f"variable '{name}' of group '{group}' has dimensions {tuple(array.dims)}; draws "
                "have the dimensions chain and draw"
            )
        leaves[str(name)] = np.asarray(array.transpose("chain", "draw", ...).values)
    return join_chains(leaves if like is not None else nested(leaves), like)


def of_numpyro(mcmc: Any, like: PyTree | None) -> Joined:
    """The latent sites of a finished `MCMC` of NumPyro; deterministic sites are no parameters."""
    state = getattr(mcmc, "last_state", None)
    if state is None or not hasattr(mcmc, "get_samples"):
        raise ValueError(
            f"a {type(mcmc).__name__} holds no draws; give an MCMC of NumPyro after mcmc.run(...)"
        )
    draws = mcmc.get_samples(group_by_chain=True)
    latent = getattr(state, mcmc.sampler.sample_field, None)
    if isinstance(draws, Mapping) and isinstance(latent, Mapping):
        draws = {name: leaf for name, leaf in draws.items() if name in latent}
        # Sites of `flax_module` hold trees, whose names are nested already.
        flat = {name: leaf for name, leaf in draws.items() if hasattr(leaf, "shape")}
        if like is None and len(flat) == len(draws):
            draws = nested(flat)
    return join_chains(draws, like)


def of_blackjax(states: Any, chain_axis: int | None, like: PyTree | None) -> Joined:
    """The positions of states of BlackJAX, without gradients and log densities."""
    position, density = (getattr(states, name, None) for name in ("position", "logdensity"))
    if position is None:
        raise ValueError(
            f"a {type(states).__name__} has no positions; give the states that the sampler returned"
        )
    axes = 1 if chain_axis is None else 2
    if density is not None and np.ndim(density) != axes:
        shape = np.shape(density)
        if len(shape) == 2:
            raise ValueError(
                f"the states have two leading axes {shape}; say which one is that of the chains "
                "with chain_axis=0 or chain_axis=1"
            )
        raise ValueError(
            f"the states have the leading axes {shape}; collect them along one axis of draws, or "
            "of draws and chains with chain_axis="
        )
    if chain_axis is None:
        draws = jax.tree.map(lambda leaf: leaf[None], position)
    elif chain_axis in (0, 1):
        draws = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, chain_axis, 0), position)
    else:
        raise ValueError(f"chain_axis is {chain_axis!r}; give 0, 1, or None for one chain")
    return join_chains(draws, like)


def of_list(members: Sequence[PyTree]) -> Joined:
    """Params trees, such as the members of an ensemble, stacked: a chain each."""
    if not isinstance(members, Sequence) or not members:
        raise ValueError("there are no members; give a list of at least one params tree")
    shapes = [{k: np.shape(v) for k, v in leaves_by_path(m).items()} for m in members]
    for number, given in enumerate(shapes[1:], 1):
        difference = first_difference(shapes[0], given)
        if difference:
            raise ValueError(
                f"member {number} differs from the first: {difference}; give trees of one network"
            )
    return stack_trees(members), np.arange(len(members), dtype=np.int32)


def check_is_draws(draws: Any, chain: Any) -> None:
    """Refuse what another package returned whole, and chains × draws taken for draws."""
    name = type(draws).__name__
    if hasattr(draws, "position") and hasattr(draws, "_fields"):
        raise ValueError(
            f"a {name} of BlackJAX holds gradients and log densities besides the positions; use "
            "Samples.from_blackjax(states)"
        )
    if hasattr(draws, "get_samples") and hasattr(draws, "sampler"):
        raise ValueError(f"an {name} of NumPyro is not a tree of draws; use Samples.from_numpyro")
    if hasattr(draws, "posterior") and type(draws).__module__.startswith(("arviz", "xarray")):
        raise ValueError(f"a {name} of ArviZ is not a tree of draws; use Samples.from_arviz(data)")
    if chain is not None:
        return
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(draws)]
    if len(shapes) < 2 or any(len(shape) < 2 for shape in shapes):
        return
    if len({shape[:2] for shape in shapes}) == 1 and 1 < shapes[0][0] < shapes[0][1]:
        count, second = shapes[0][:2]
        raise ValueError(
            f"every leaf begins with {(count, second)}, which looks like {count} chains of "
            f"{second} draws; use Samples.from_chains(draws), or give chain= if these are {count} "
            "draws"
        )
