"""Trees of arrays: names, shapes and checks of their leaves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.mapped import release

PyTree: TypeAlias = Any
"""A tree of arrays (dictionaries, lists, modules, …); JAX has no type for it."""

BLOCK_BYTES = 1 << 23  # of a part of an array that is processed by parts


def leaves_by_path(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """The leaves of a tree by key path, in the order of `jax.tree.leaves`.

    >>> list(leaves_by_path({"b": [1.0, 2.0], "a": 0.0}))
    ['a', 'b/0', 'b/1']
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    named = {path_name(path): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError(
            "two leaves of the params tree have the same key path; "
            "rename the keys so that their paths, joined by '/', are distinct"
        )
    return named


def with_leaves(like: PyTree, by_path: Mapping[str, Any]) -> PyTree:
    """A tree with the containers of `like` and the arrays of `by_path`.

    >>> with_leaves([0.0, {"a": 0.0}], {"1/a": 3.0, "0": 2.0})
    [2.0, {'a': 3.0}]
    """
    leaves = [by_path[path] for path in leaves_by_path(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def stack_trees(trees: Sequence[PyTree]) -> PyTree:
    """Stack trees of one structure along a new leading axis of every leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def take_entry(tree: PyTree, index: int | slice | np.ndarray | jax.Array) -> PyTree:
    """Index the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def add_axis(tree: PyTree) -> PyTree:
    """Add a leading axis of length one to every leaf."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


def path_name(path: tuple[Any, ...]) -> str:
    """A key path as text; the root of a tree that is a single array is `params`."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "params"


def shapes_by_path(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """The shapes of the leaves by key path."""
    return {name: tuple(np.shape(leaf)) for name, leaf in leaves_by_path(tree).items()}


def all_arrays(tree: PyTree) -> bool:
    """Whether every leaf is an array or a shape; JAX also puts placeholders into trees."""
    arrays = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)
    return all(isinstance(leaf, arrays) for leaf in jax.tree.leaves(tree))


def is_writeable(tree: PyTree) -> bool:
    """Whether a leaf is a NumPy array that can change."""
    leaves = jax.tree.leaves(tree)
    return any(isinstance(leaf, np.ndarray) and leaf.flags.writeable for leaf in leaves)


def check_same_shapes(expected: PyTree, given: PyTree, what: str, lead: int = 0) -> None:
    """Refuse a tree whose leaves differ from `expected` in name or shape after `lead` axes."""
    difference = first_difference(shapes_by_path(expected), shapes_by_path(given), lead)
    if difference:
        raise ValueError(f"{what} does not match: {difference}; give trees of one network")


def first_difference(
    expected: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]], lead: int = 0
) -> str | None:
    """A clause that names the first leaf in which two trees differ, or None."""
    for name in expected:
        if name not in given:
            return f"leaf '{name}' is missing"
    for name in given:
        if name not in expected:
            return f"leaf '{name}' is not expected"
    for name, shape in expected.items():
        if given[name][lead:] != shape or len(given[name]) != lead + len(shape):
            want = str(("n",) * lead + shape).replace("'", "")
            return f"leaf '{name}' has shape {given[name]} where {want} is expected"
    return None


def first_non_finite(tree: PyTree) -> str | None:
    """The key path of the first leaf with a NaN or an infinity, or None."""
    for name, leaf in leaves_by_path(tree).items():
        array = np.asarray(leaf)
        if np.issubdtype(array.dtype, np.inexact) or array.dtype.name == "bfloat16":
            # The sum is a fast first test; that of a finite array may overflow.
            with np.errstate(over="ignore", invalid="ignore"):
                total = sum(float(block.sum(dtype=np.float64)) for block in blocks(array))
            if not np.isfinite(total) and not all(
                np.isfinite(block.astype(np.float64)).all() for block in blocks(array)
            ):
                return name
    return None


def blocks(array: Any, *, whole_rows: bool = False) -> Iterator[np.ndarray]:
    """An array in consecutive parts of about `BLOCK_BYTES`.

    Contiguous NumPy arrays and memory maps are cut anywhere, into flat parts. With `whole_rows`,
    and of any other array-like, such as one that computes what it is asked for, slices of the first
    axis are taken.
    """
    size = max(1, array.nbytes)
    if isinstance(array, np.ndarray) and array.flags.c_contiguous and not whole_rows:
        array = array.reshape(-1)
    if not array.ndim:
        yield np.asarray(array)
        return
    length = len(array)
    step = max(1, BLOCK_BYTES * length // size)
    for start in range(0, max(1, length), step):
        yield np.asarray(array[start : start + step])
        release(array)  # if it is a map


def tree_dot(a: PyTree, b: PyTree) -> jax.Array:
    """⟨a, b⟩ summed over all leaves."""
    products = jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def num_parameters(tree: PyTree) -> int:
    """The number of coordinates of all leaves."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))
