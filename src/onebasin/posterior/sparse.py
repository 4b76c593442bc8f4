"""Pruned params, in memory and on disk, where only the remaining values and indices are stored.

For every leaf the file has `indices/<key path>`, the indices of the remaining values in the
flattened leaf (in the smallest sufficient unsigned type), and `values/<key path>`. The header has
the shapes of the leaves, the containers of the tree, the config of the network and provenance.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from onebasin.posterior.files import header_of
from onebasin.posterior.structure import describe, rebuild
from onebasin.tensor_files import (
    REPLACE,
    Pathlike,
    TensorFileError,
    check_new,
    read_tensors,
    write_tensors,
)
from onebasin.trees import PyTree, leaves_by_path, num_parameters, shapes_by_path, with_leaves

FORMAT, VERSION = "onebasin-sparse", 2  # the first version has no checksums
LARGEST_EXPANSION = 1e5  # parameters per stored value; a file that claims more is damaged


@dataclass(frozen=True, eq=False)
class Pruned:
    """Params with zeros where weights were pruned, and the mask of the remaining ones."""

    params: PyTree = field(repr=False)
    mask: PyTree = field(repr=False)
    kept: float
    """The remaining fraction of all parameters."""
    by: str
    scope: str

    def __repr__(self) -> str:
        size = num_parameters(self.params)
        return f"Pruned({self.kept:.3g} of {size:,} parameters kept by {self.by}, {self.scope})"


@dataclass(frozen=True, eq=False)
class SparseFile:
    """A pruned network read from a file: dense params and mask, and the header."""

    pruned: Pruned
    network: dict[str, Any] | None
    provenance: dict[str, Any] = field(repr=False)


def save_sparse(
    path: Pathlike,
    pruned: Pruned,
    *,
    network: dict[str, Any] | None = None,
    overwrite: bool = False,
    **provenance: Any,
) -> Path:
    """Write only the remaining values and their indices, atomically."""
    path = check_new(path, overwrite=overwrite)
    masks = leaves_by_path(pruned.mask)
    tensors: dict[str, np.ndarray] = {}
    for name, leaf in leaves_by_path(pruned.params).items():
        indices = np.flatnonzero(np.asarray(masks[name]))
        tensors[f"indices/{name}"] = indices.astype(np.min_scalar_type(max(np.size(leaf) - 1, 0)))
        tensors[f"values/{name}"] = np.asarray(leaf).reshape(-1)[indices]
    content = {
        "tree": describe(pruned.params),
        "shapes": shapes_by_path(pruned.params),
        "kept": pruned.kept,
        "by": pruned.by,
        "scope": pruned.scope,
    }
    form = (FORMAT, str(VERSION))
    write_tensors(path, tensors, header_of(form, "content", content, network, provenance))
    return path


def load_sparse(path: Pathlike) -> SparseFile:
    """Read a pruned network into dense params, with zeros at pruned coordinates."""
    header, tensors = read_tensors(path)
    header.check_form(FORMAT, VERSION, "a sparse file; `onebasin prune` writes them")
    content = header.json("content", dict)
    try:
        sizes = {name: math.prod(shape) for name, shape in content["shapes"].items()}
        stored = sum(len(tensors[f"values/{name}"]) for name in sizes)
        if min(sizes.values(), default=0) < 0 or sum(sizes.values()) > LARGEST_EXPANSION * (
            stored + 1
        ):
            raise ValueError(f"{stored} values cannot fill {sum(sizes.values())} parameters")
        leaves, masks = {}, {}
        for name, shape in content["shapes"].items():
            indices, values = tensors[f"indices/{name}"], tensors[f"values/{name}"]
            dense = np.zeros(sizes[name], values.dtype)
            mask = np.zeros(len(dense), bool)
            dense[indices], mask[indices] = values, True
            leaves[name] = jnp.asarray(dense.reshape(shape))
            masks[name] = jnp.asarray(mask.reshape(shape))
        params = rebuild(content["tree"], leaves)
        mask = with_leaves(params, masks)
        pruned = Pruned(params, mask, content["kept"], content["by"], content["scope"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TensorFileError(f"{path} is damaged: {error!r}; {REPLACE}") from None
    network = header.json("network", dict, type(None))
    return SparseFile(pruned, network, header.json("provenance", dict))
