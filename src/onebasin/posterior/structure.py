"""The container structure of a params tree as JSON, so that a file returns the same tree.

Dictionaries (string or integer keys), lists, tuples and None are recorded. Other containers (an
Equinox module, a named tuple) are recorded by key path only; `load(path, like=...)` puts the
arrays into the containers of a given tree.
"""

from collections.abc import Mapping
from typing import Any

import jax

from onebasin.tensor_files import REPLACE
from onebasin.trees import PyTree, first_difference, leaves_by_path, shapes_by_path, with_leaves


def describe(tree: PyTree) -> Any:
    """A JSON value that `rebuild` turns back into the containers of `tree`."""
    if tree is None:
        return None
    if type(tree) is dict:
        if all(isinstance(k, str) for k in tree):
            return {"dict": {k: describe(tree[k]) for k in sorted(tree)}}
        if all(isinstance(k, int) for k in tree):
            return {"int-dict": {str(k): describe(tree[k]) for k in sorted(tree)}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [describe(child) for child in tree]}
    if jax.tree_util.all_leaves([tree]):
        return "leaf"
    return {"paths": list(leaves_by_path(tree))}


def rebuild(shape: Any, arrays: Mapping[str, Any], path: tuple[str, ...] = ()) -> PyTree:
    """The tree that `describe` recorded, filled with arrays by key path.

    Containers of other kinds become a dictionary from key paths to arrays.
    """
    if shape is None:
        return None
    if shape == "leaf":
        return arrays["/".join(path) or "params"]
    ((kind, children),) = shape.items()
    if kind == "dict":
        return {k: rebuild(child, arrays, (*path, k)) for k, child in children.items()}
    if kind == "int-dict":
        return {int(k): rebuild(child, arrays, (*path, k)) for k, child in children.items()}
    if kind in ("list", "tuple"):
        rebuilt = [rebuild(c, arrays, (*path, str(i))) for i, c in enumerate(children)]
        return rebuilt if kind == "list" else tuple(rebuilt)
    if kind == "paths":
        return {name: arrays["/".join((*path, name))] for name in children}
    raise ValueError(f"unknown container '{kind}'; {REPLACE}")


def rebuild_like(like: PyTree, arrays: Mapping[str, Any], lead: int) -> PyTree:
    """The stored arrays in the containers of `like`; an error names the first leaf that differs."""
    given = {name: tuple(a.shape) for name, a in arrays.items()}
    difference = first_difference(shapes_by_path(like), given, lead)
    if difference:
        raise ValueError(
            f"the file does not fit the tree given as like=: {difference}; give one of its network"
        )
    return with_leaves(like, arrays)
