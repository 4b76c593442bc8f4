"""Posterior files: safetensors with a JSON header.

Every tensor is named by its tree and key path, e.g. `mean/Dense_0/kernel` or
`components/1/draws/w`. The header holds the format version, the kind of posterior, the containers
of its trees, the config of the network and provenance. The safetensors library alone can read the
arrays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from onebasin.posterior.kronecker import Kronecker
from onebasin.posterior.low_rank import LowRank
from onebasin.posterior.low_rank_precision import LowRankPrecision
from onebasin.posterior.mean_field import MeanField
from onebasin.posterior.mixture import Mixture
from onebasin.posterior.protocol import Posterior
from onebasin.posterior.samples import Samples
from onebasin.posterior.structure import describe, rebuild, rebuild_like
from onebasin.tensor_files import (
    REPLACE,
    Pathlike,
    TensorFileError,
    TensorHeader,
    check_new,
    map_tensors,
    read_tensor_header,
    read_tensors,
    to_json,
    write_tensors,
)
from onebasin.trees import PyTree, leaves_by_path, with_leaves

FORMAT = "onebasin-posterior"
VERSION = 2  # the first version has no checksums

# The trees of each kind, with the number of leading axes of their leaves; None if these have shapes
# of their own.
TREES: dict[str, dict[str, int | None]] = {
    "MeanField": {"mean": 0, "std": 0},
    "Samples": {"draws": 1},
    "LowRank": {"mean": 0, "std": 0, "factors": 1},
    "LowRankPrecision": {"mean": 0, "std": 0, "factors": 1},
    "Kronecker": {"mean": 0, "std": 0, "left": None, "right": None},
}
KINDS = {kind.__name__: kind for kind in (MeanField, Samples, LowRank, LowRankPrecision, Kronecker)}


@dataclass(frozen=True)
class Header:
    """The header of a posterior file, as `read_header` returns it.

    `kind` is the class of the posterior, `network` the config of its network, `provenance` what
    was given to `save`, and `shapes` maps the names of all tensors to their shapes.
    """

    kind: str
    network: dict[str, Any] | None
    provenance: dict[str, Any]
    version: int
    shapes: Mapping[str, tuple[int, ...]]
    description: dict[str, Any]

    def __repr__(self) -> str:
        network = (self.network or {}).get("kind", "unknown")
        return f"Header({self.kind}, {len(self.shapes)} tensors, network {network})"

    def params_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of one params tree by key path."""
        return _params_shapes(self.description, self.shapes, "")


def save(
    path: Pathlike,
    posterior: Posterior,
    *,
    network: dict[str, Any] | None = None,
    overwrite: bool = False,
    **provenance: Any,
) -> Path:
    """Write a posterior to a safetensors file, atomically.

    Further keyword arguments are kept in the header as provenance; they must be serialisable as
    JSON.

    Args:
      path: the file to write.
      posterior: a `MeanField`, `Samples`, `LowRank`, `LowRankPrecision`, `Kronecker` or `Mixture`.
      network: the config of the network, serialisable as JSON.
      overwrite: replace an existing file.

    Returns:
      The path.

    >>> import tempfile, onebasin as ob, jax.numpy as jnp
    >>> q = ob.MeanField({"w": jnp.zeros(3)}, {"w": jnp.ones(3)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ob.load(ob.save(f"{folder}/q.safetensors", q, seed=1))
    MeanField(3 parameters)
    """
    path = check_new(path, overwrite=overwrite)
    tensors: dict[str, Any] = {}
    description = _describe_posterior(posterior, "", tensors)
    write_tensors(path, tensors, header_text(description, network, provenance))
    return path


def header_text(
    description: dict[str, Any], network: dict[str, Any] | None, provenance: Mapping[str, Any]
) -> dict[str, str]:
    """The header of a posterior file."""
    return header_of((FORMAT, str(VERSION)), "posterior", description, network, provenance)


def header_of(
    form: tuple[str, str],
    name: str,
    content: object,
    network: dict[str, Any] | None,
    provenance: Mapping[str, Any],
) -> dict[str, str]:
    """The header of a file of a format and version, with its content described under `name`."""
    entries = {name: content, "network": network, "provenance": dict(provenance)}
    texts = {name: to_json(value, name) for name, value in entries.items()}
    return {"format": form[0], "version": form[1], **texts}


def load(path: Pathlike, like: PyTree | None = None, *, mapped: bool = False) -> Any:
    """Read a posterior; an incomplete or damaged file is refused.

    Args:
      path: a file written by `save`, `fit` or the command line.
      like: a params tree whose containers the result takes; without it the result has the
        dictionaries, lists and tuples that were saved.
      mapped: leave the draws of `Samples` on disk, as memory maps.

    Returns:
      A `MeanField`, `Samples`, `LowRank`, `LowRankPrecision`, `Kronecker` or `Mixture`.

    >>> import tempfile, onebasin as ob, jax.numpy as jnp
    >>> q = ob.Samples({"w": jnp.ones((4, 3))})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ob.load(ob.save(f"{folder}/q.safetensors", q))
    Samples(3 parameters, 4 draws)
    """
    header = read_header(path)
    if mapped and header.kind == "Samples":
        tensors, convert = map_tensors(Path(path)), np.asanyarray
    else:
        tensors, convert = read_tensors(path)[1], jnp.asarray
    try:
        return _build(header.description, "", tensors, like, convert)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TensorFileError(
            f"{path} lacks an array its header promises: {error}; {REPLACE}"
        ) from None
    except ValueError as error:
        raise TensorFileError(f"{path}: {error}") from None


def read_header(path: Pathlike) -> Header:
    """Read the header of a posterior file, without its arrays.

    >>> import tempfile, onebasin as ob, jax.numpy as jnp
    >>> q = ob.MeanField({"w": jnp.zeros(3)}, {"w": jnp.ones(3)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     header = ob.read_header(ob.save(f"{folder}/q.safetensors", q, seed=1))
    >>> header
    Header(MeanField, 2 tensors, network unknown)
    >>> header.params_shapes(), header.provenance
    ({'w': (3,)}, {'seed': 1})
    """
    found = read_tensor_header(path)
    remedy = "build a posterior from its arrays and write it with onebasin.save"
    version = found.check_form(FORMAT, VERSION, f"a OneBasin posterior; {remedy}")
    description = found.json("posterior", dict)
    _check_description(found, description)
    return Header(
        kind=description["kind"],
        network=found.json("network", dict, type(None)),
        provenance=found.json("provenance", dict),
        version=version,
        shapes=found.shapes,
        description=description,
    )


def _check_description(found: TensorHeader, description: Any) -> None:
    """Refuse what does not describe a posterior, before anything is built from it."""
    match description:
        case {"kind": "Mixture", "components": [_, *_] as parts}:
            for part in parts:
                _check_description(found, part)
        case {"kind": str(kind), "trees": dict(trees)} if kind in TREES:
            if not TREES[kind].keys() <= trees.keys():
                raise TensorFileError(
                    f"{found.path} has a damaged header: a {kind} lacks a tree; {REPLACE}"
                )
        case {"kind": kind}:
            raise TensorFileError(
                f"{found.path}: a posterior of unknown kind {kind!r:.40}; use the OneBasin that "
                "wrote it"
            )
        case _:
            raise TensorFileError(
                f"{found.path} has a damaged header: it does not name a kind of posterior; "
                f"{REPLACE}"
            )


def _describe_posterior(posterior: object, prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """The JSON description of a posterior; its arrays are added to `tensors`."""
    kind = type(posterior).__name__
    if isinstance(posterior, Mixture):
        tensors[f"{prefix}weights"] = posterior.weights
        parts = [
            _describe_posterior(c, f"{prefix}components/{i}/", tensors)
            for i, c in enumerate(posterior.components)
        ]
        return {"kind": kind, "components": parts}
    if kind not in TREES:
        raise TensorFileError(
            f"a {kind} is not a posterior; save a MeanField, Samples, LowRank, "
            "LowRankPrecision, Kronecker or Mixture"
        )
    if isinstance(posterior, Samples):
        tensors[f"{prefix}chain"] = posterior.chain
    trees = {name: getattr(posterior, name) for name in (*TREES[kind], "state")}
    for name, tree in trees.items():
        for path, leaf in leaves_by_path(tree).items():
            tensors[f"{prefix}{name}/{path}"] = leaf
    return {"kind": kind, "trees": {name: describe(tree) for name, tree in trees.items()}}


def describe_samples(like: PyTree, state: PyTree | None = None) -> dict[str, Any]:
    """The description of `Samples` of a params tree, before any draw exists."""
    return {"kind": "Samples", "trees": {"draws": describe(like), "state": describe(state)}}


def _build(
    description: Mapping[str, Any],
    prefix: str,
    tensors: Mapping[str, np.ndarray],
    like: PyTree | None,
    convert: Callable[[np.ndarray], Any],
) -> Posterior:
    kind = description["kind"]
    if kind == "Mixture":
        parts = [
            _build(part, f"{prefix}components/{i}/", tensors, like, convert)
            for i, part in enumerate(description["components"])
        ]
        return Mixture(tuple(parts), convert(tensors[f"{prefix}weights"]))
    fields: dict[str, Any] = {}
    for name, containers in description["trees"].items():
        arrays = {key: convert(a) for key, a in _under(f"{prefix}{name}/", tensors).items()}
        if like is not None and name in TREES[kind]:
            lead = TREES[kind][name]
            fields[name] = (
                with_leaves(like, arrays) if lead is None else rebuild_like(like, arrays, lead)
            )
        else:
            fields[name] = rebuild(containers, arrays)
    if kind == "Samples":
        fields["chain"] = convert(tensors[f"{prefix}chain"])
    return KINDS[kind](**fields)


def _under(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): a for k, a in tensors.items() if k.startswith(prefix)}


def _params_shapes(
    description: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], prefix: str
) -> dict[str, tuple[int, ...]]:
    kind = description["kind"]
    if kind == "Mixture":
        return _params_shapes(description["components"][0], shapes, f"{prefix}components/0/")
    tree, lead = next(iter(TREES[kind].items()))
    assert lead is not None
    return {name: shape[lead:] for name, shape in _under(f"{prefix}{tree}/", shapes).items()}
