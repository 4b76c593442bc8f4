"""Pruned params on disk: the kept values and where they stand, nothing else.

For every leaf the file has `indices/<key path>`, the places of the kept values in the flattened
leaf (the smallest unsigned type that holds them), and `values/<key path>`. The header has the
leaves' shapes, the tree's containers, the network's config and free provenance.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from onebasin.atomic import write_atomically
from onebasin.posterior.files import PosteriorFileError
from onebasin.posterior.structure import describe, rebuild
from onebasin.pruning import Pruned
from onebasin.trees import first_non_finite, leaves_by_path, shapes_by_path

FORMAT = "onebasin-sparse"
VERSION = "1"


@dataclass(frozen=True, eq=False)
class SparseFile:
    """A pruned network read back: dense params and mask, and what the file says of itself."""

    pruned: Pruned
    network: dict[str, Any] | None
    provenance: dict[str, Any] = field(repr=False)


def save_sparse(
    path: str | os.PathLike[str],
    pruned: Pruned,
    *,
    network: dict[str, Any] | None = None,
    overwrite: bool = False,
    **provenance: Any,
) -> Path:
    """Write only the kept values and their places; the file appears whole or not at all."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    bad = first_non_finite(pruned.params)
    if bad:
        raise PosteriorFileError(f"not written to {path}: '{bad}' holds NaN or infinity")
    masks = leaves_by_path(pruned.mask)
    tensors: dict[str, np.ndarray] = {}
    for name, leaf in leaves_by_path(pruned.params).items():
        places = np.flatnonzero(np.asarray(masks[name]))
        tensors[f"indices/{name}"] = places.astype(np.min_scalar_type(max(np.size(leaf) - 1, 0)))
        tensors[f"values/{name}"] = np.asarray(leaf).reshape(-1)[places]
    content = {
        "tree": describe(pruned.params),
        "shapes": shapes_by_path(pruned.params),
        "kept": pruned.kept,
        "by": pruned.by,
        "scope": pruned.scope,
    }
    try:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "content": json.dumps(content),
            "network": json.dumps(network, allow_nan=False),
            "provenance": json.dumps(provenance, allow_nan=False),
        }
    except (TypeError, ValueError) as error:
        raise PosteriorFileError(f"the provenance cannot be written as JSON: {error}") from None
    write_atomically(path, lambda part: save_file(tensors, part, metadata=header))
    return path


def load_sparse(path: str | os.PathLike[str]) -> SparseFile:
    """Read a pruned network back into dense params, zeros where nothing was kept."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise PosteriorFileError(f"{path} is no whole safetensors file: {error}") from None
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise PosteriorFileError(
            f"{path} is no sparse file of version {VERSION}; onebasin prune writes them"
        )
    bad = first_non_finite(tensors)
    if bad:
        raise PosteriorFileError(f"{path} holds NaN or infinity in '{bad}'; it was not loaded")
    try:
        content = json.loads(metadata["content"])
        leaves, masks = {}, {}
        for name, shape in content["shapes"].items():
            places, values = tensors[f"indices/{name}"], tensors[f"values/{name}"]
            dense = np.zeros(int(np.prod(shape)), values.dtype)
            mask = np.zeros(len(dense), bool)
            dense[places], mask[places] = values, True
            leaves[name] = jnp.asarray(dense.reshape(shape))
            masks[name] = jnp.asarray(mask.reshape(shape))
        params = rebuild(content["tree"], leaves)
        mask = jax.tree.unflatten(jax.tree.structure(params), [*_in_order(params, masks)])
        pruned = Pruned(params, mask, content["kept"], content["by"], content["scope"])
        return SparseFile(
            pruned, json.loads(metadata["network"]), json.loads(metadata["provenance"])
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PosteriorFileError(f"{path} is damaged: {error!r}") from None


def _in_order(params: Any, masks: dict[str, Any]) -> list[Any]:
    return [masks[name] for name in leaves_by_path(params)]
