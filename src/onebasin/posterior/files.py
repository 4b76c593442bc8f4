"""Posteriors on disk: one safetensors file with a JSON header.

Every tensor is named by the tree it belongs to and its key path, e.g.
`mean/Dense_0/kernel` or `components/1/draws/w`. The header holds the format
version, the kind of posterior, the containers of its trees, the network's config
and free provenance. Anyone can read the arrays with the safetensors library alone.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from onebasin.atomic import write_atomically
from onebasin.posterior.low_rank import LowRank
from onebasin.posterior.mean_field import MeanField
from onebasin.posterior.mixture import Mixture
from onebasin.posterior.samples import Samples
from onebasin.posterior.structure import describe, rebuild, rebuild_like
from onebasin.trees import Tree, first_non_finite, leaves_by_path

FORMAT = "onebasin-posterior"
VERSION = 1

# The trees of each kind and how many leading axes their leaves have before a params leaf's own.
TREES = {
    "MeanField": {"mean": 0, "std": 0},
    "Samples": {"draws": 1},
    "LowRank": {"mean": 0, "std": 0, "factors": 1},
}
KINDS = {"MeanField": MeanField, "Samples": Samples, "LowRank": LowRank}


class PosteriorFileError(ValueError):
    """A file that is not a posterior OneBasin can read, or a posterior it will not write."""


@dataclass(frozen=True)
class Header:
    """What a posterior file says of itself before any array is read."""

    kind: str
    network: dict[str, Any] | None
    provenance: dict[str, Any]
    version: int
    shapes: dict[str, tuple[int, ...]] = field(repr=False)
    description: dict[str, Any] = field(repr=False)

    def params_shapes(self) -> dict[str, tuple[int, ...]]:
        """Key path → shape of one params tree."""
        return _params_shapes(self.description, self.shapes, "")


def save(
    path: str | os.PathLike[str],
    posterior: Any,
    *,
    network: dict[str, Any] | None = None,
    overwrite: bool = False,
    **provenance: Any,
) -> Path:
    """Write a posterior; the file appears whole or not at all.

    `network` is the network's JSON-able config; everything else given by keyword is
    kept as provenance and must be JSON-able too.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    tensors: dict[str, np.ndarray] = {}
    description = _describe_posterior(posterior, "", tensors)
    bad = first_non_finite(tensors)
    if bad:
        raise PosteriorFileError(f"not written to {path}: '{bad}' holds NaN or infinity")
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "posterior": json.dumps(description),
        "network": _json(network, "network"),
        "provenance": _json(provenance, "provenance"),
    }
    write_atomically(path, lambda part: save_file(tensors, part, metadata=header))
    return path


def load(path: str | os.PathLike[str], like: Tree = None) -> Any:
    """Read a posterior whole, or raise an error that says what is wrong with the file.

    `like` is a params tree whose containers the result takes on; without it the
    result has the dictionaries, lists and tuples that were saved.
    """
    header = read_header(path)
    with _opened(path) as file:
        try:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise PosteriorFileError(f"{path} cannot be read whole: {error}") from None
    bad = first_non_finite(tensors)
    if bad:
        raise PosteriorFileError(f"{path} holds NaN or infinity in '{bad}'; it was not loaded")
    try:
        return _build(header.description, "", tensors, like)
    except (KeyError, TypeError, AttributeError) as error:
        raise PosteriorFileError(f"{path} lacks an array its header promises: {error}") from None
    except ValueError as error:
        raise PosteriorFileError(f"{path}: {error}") from None


def read_header(path: str | os.PathLike[str]) -> Header:
    """What a posterior file holds, read from its header alone."""
    with _opened(path) as file:
        metadata = file.metadata() or {}
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    if metadata.get("format") != FORMAT:
        raise PosteriorFileError(
            f"{path} is a safetensors file but no OneBasin posterior; "
            "build a posterior from its arrays and write it with onebasin.save"
        )
    version = metadata.get("version", "")
    if version != str(VERSION):
        raise PosteriorFileError(
            f"{path} has format version '{version}' and this OneBasin reads version {VERSION}; "
            "use the OneBasin that wrote it, or save it again"
        )
    try:
        description = json.loads(metadata["posterior"])
        return Header(
            kind=description["kind"],
            network=json.loads(metadata["network"]),
            provenance=json.loads(metadata["provenance"]),
            version=VERSION,
            shapes=shapes,
            description=description,
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise PosteriorFileError(f"{path} has a damaged header: {error!r}") from None


def _opened(path: str | os.PathLike[str]) -> Any:
    path = Path(path)
    if path.is_dir():
        raise PosteriorFileError(f"{path} is a folder; name a posterior file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise PosteriorFileError(
            f"{path} is no whole safetensors file (foreign or cut short): {error}"
        ) from None


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PosteriorFileError(f"the {what} cannot be written as JSON: {error}") from None


def _describe_posterior(posterior: Any, prefix: str, tensors: dict[str, np.ndarray]) -> Any:
    """The JSON description of a posterior; its arrays go into `tensors`."""
    kind = type(posterior).__name__
    if isinstance(posterior, Mixture):
        _put(tensors, f"{prefix}weights", posterior.weights)
        parts = [
            _describe_posterior(c, f"{prefix}components/{i}/", tensors)
            for i, c in enumerate(posterior.components)
        ]
        return {"kind": kind, "components": parts}
    if kind not in TREES:
        raise PosteriorFileError(
            f"a {kind} is no posterior; save a MeanField, Samples, LowRank or Mixture"
        )
    if isinstance(posterior, Samples):
        _put(tensors, f"{prefix}chain", posterior.chain)
    trees = {name: getattr(posterior, name) for name in (*TREES[kind], "state")}
    for name, tree in trees.items():
        for path, leaf in leaves_by_path(tree).items():
            _put(tensors, f"{prefix}{name}/{path}", leaf)
    return {"kind": kind, "trees": {name: describe(tree) for name, tree in trees.items()}}


def _put(tensors: dict[str, np.ndarray], name: str, leaf: Any) -> None:
    tensors[name] = np.ascontiguousarray(leaf).reshape(np.shape(leaf))


def _build(description: Any, prefix: str, tensors: dict[str, np.ndarray], like: Tree) -> Any:
    kind = description["kind"]
    if kind == "Mixture":
        parts = [
            _build(part, f"{prefix}components/{i}/", tensors, like)
            for i, part in enumerate(description["components"])
        ]
        return Mixture(tuple(parts), jnp.asarray(tensors[f"{prefix}weights"]))
    if kind not in KINDS:
        raise ValueError(f"a posterior of unknown kind '{kind}'")
    fields: dict[str, Any] = {}
    for name, shape in description["trees"].items():
        arrays = {
            key.removeprefix(f"{prefix}{name}/"): jnp.asarray(array)
            for key, array in tensors.items()
            if key.startswith(f"{prefix}{name}/")
        }
        if like is not None and name in TREES[kind]:
            fields[name] = rebuild_like(like, arrays, TREES[kind][name])
        else:
            fields[name] = rebuild(shape, arrays)
    if kind == "Samples":
        fields["chain"] = jnp.asarray(tensors[f"{prefix}chain"])
    return KINDS[kind](**fields)


def _params_shapes(
    description: Any, shapes: dict[str, tuple[int, ...]], prefix: str
) -> dict[str, tuple[int, ...]]:
    kind = description["kind"]
    if kind == "Mixture":
        return _params_shapes(description["components"][0], shapes, f"{prefix}components/0/")
    tree, lead = next(iter(TREES[kind].items()))
    start = f"{prefix}{tree}/"
    return {
        name.removeprefix(start): shape[lead:]
        for name, shape in shapes.items()
        if name.startswith(start)
    }
