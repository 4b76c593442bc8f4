"""Naming and checking the leaves of a params tree."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any  # a pytree whose leaves are float arrays


def leaf_paths(tree: Tree, is_leaf: Any = None) -> list[str]:
    """The key path of every leaf, in the order of `jax.tree.leaves`, e.g. `Dense_0/kernel`."""
    return list(leaves_by_path(tree, is_leaf=is_leaf))


def leaves_by_path(tree: Tree, is_leaf: Any = None) -> dict[str, Any]:
    """The leaves of a tree under their key paths, in the order of `jax.tree.leaves`.

    >>> list(leaves_by_path({"b": [1.0, 2.0], "a": 0.0}))
    ['a', 'b/0', 'b/1']
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    named = {path_name(path): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError(
            "two leaves of the params tree have the same key path; "
            "rename the keys so that joining them by '/' tells the leaves apart"
        )
    return named


def path_name(path: tuple[Any, ...]) -> str:
    """One key path as text; the root itself (a params tree that is one array) is `params`."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "params"


def shapes_by_path(tree: Tree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(np.shape(leaf)) for name, leaf in leaves_by_path(tree).items()}


def all_arrays(tree: Tree) -> bool:
    """Whether every leaf has a shape: false for the placeholders JAX puts into trees."""
    return all(hasattr(leaf, "shape") for leaf in jax.tree.leaves(tree))


def check_same_shapes(expected: Tree, given: Tree, what: str, lead: int = 0) -> None:
    """Refuse a tree whose leaves (after `lead` leading axes) are not those of `expected`."""
    difference = first_difference(shapes_by_path(expected), shapes_by_path(given), lead)
    if difference:
        raise ValueError(f"{what} does not match: {difference}")


def first_difference(
    expected: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]], lead: int = 0
) -> str | None:
    """The first leaf in which two trees differ, as half a sentence, or None."""
    for name in expected.keys() | given.keys():
        if name not in given:
            return f"leaf '{name}' is missing"
        if name not in expected:
            return f"leaf '{name}' is not expected"
    for name, shape in expected.items():
        if given[name][lead:] != shape or len(given[name]) != lead + len(shape):
            want = ("n",) * lead + shape
            return f"leaf '{name}' has shape {given[name]} where {_as_shape(want)} is expected"
    return None


def _as_shape(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def first_non_finite(tree: Tree) -> str | None:
    """The first leaf that holds a NaN or an infinity, or None."""
    for name, leaf in leaves_by_path(tree).items():
        array = np.asarray(leaf)
        if np.issubdtype(array.dtype, np.inexact) or array.dtype.name == "bfloat16":
            # The sum of a finite array may overflow, so a non-finite sum only asks for a look.
            with np.errstate(over="ignore", invalid="ignore"):
                total = array.sum(dtype=np.float64)
            if not np.isfinite(total) and not np.isfinite(array.astype(np.float64)).all():
                return name
    return None


def tree_dot(a: Tree, b: Tree) -> jax.Array:
    """⟨a, b⟩ summed over all leaves."""
    products = jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def num_parameters(tree: Tree) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))
