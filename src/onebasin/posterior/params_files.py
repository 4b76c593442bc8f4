"""Params trees in the files of other packages: Flax msgpack, Orbax checkpoints, safetensors.

A file of a training run often holds more than params (an optimiser, a step counter); `names` says
which leaf goes where.
"""

import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from onebasin.atomic import naming_failures, temporary_file, write_atomically
from onebasin.posterior.importing import SEPARATORS, nested
from onebasin.regular_files import check_regular
from onebasin.tensor_files import Pathlike, TensorFileError, check_new
from onebasin.trees import (
    PyTree,
    first_difference,
    first_non_finite,
    leaves_by_path,
    shapes_by_path,
    with_leaves,
)

Names: TypeAlias = Mapping[str, str] | Callable[[str], str | None]
MSGPACK = (".msgpack", ".flax")
FORMS = "a Flax .msgpack, a .safetensors, or the folder of an Orbax checkpoint"


def read_params(
    path: Pathlike, *, names: Names | None = None, like: PyTree | None = None
) -> PyTree:
    """Read a params tree that another package saved.

    Args:
      path: a Flax .msgpack file (`flax.serialization.to_bytes`), a .safetensors file, or the folder
        of an Orbax checkpoint (which needs `orbax-checkpoint`).
      names: where the leaves go: a mapping from the names in the file to key paths, in which leaves
        it does not name are left out; or a function of a name that returns a key path or None. By
        default names stay, with dots as slashes.
      like: a params tree whose containers the result takes. It must have the same leaves.

    >>> import tempfile, flax.serialization, jax.numpy as jnp, onebasin as ob
    >>> saved = {"params": {"w": jnp.ones(3)}, "step": jnp.array(7)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = ob.write_params(f"{folder}/run.msgpack", saved)
    ...     ob.read_params(path, names={"params/w": "w"})
    {'w': Array([1., 1., 1.], dtype=float32)}
    """
    path = Path(path)
    arrays = _arrays(path)
    place = names if callable(names) else (names or {name: name for name in arrays}).get
    if isinstance(names, Mapping):
        absent = next((name for name in names if name not in arrays), None)
        if absent is not None:
            raise TensorFileError(f"{path} has no array '{absent}'; it has {_listed(arrays)}")
    kept: dict[str, Any] = {}
    for name, array in arrays.items():
        target = place(name)
        if target is None:
            continue
        if target in kept:
            raise TensorFileError(f"names sends two arrays of {path} to '{target}'; keep one")
        with np.errstate(over="ignore", invalid="ignore"):  # refused now
            kept[target] = jnp.asarray(array)
        if first_non_finite(kept[target]):
            raise TensorFileError(
                f"'{name}' in {path} holds NaN, infinity or numbers that are too large for "
                f"{kept[target].dtype.name}; leave it out with names=, or save it again"
            )
    if not kept:
        raise TensorFileError(f"names keeps none of the arrays of {path}; it has {_listed(arrays)}")
    if like is None:
        return nested(kept)
    by_path = {SEPARATORS.sub("/", name): array for name, array in kept.items()}
    wanted = {SEPARATORS.sub("/", name): shape for name, shape in shapes_by_path(like).items()}
    difference = first_difference(wanted, {name: a.shape for name, a in by_path.items()})
    if difference:
        raise TensorFileError(
            f"{path} does not fit like=: {difference}; map its leaves with names="
        )
    return with_leaves(like, {n: by_path[SEPARATORS.sub("/", n)] for n in leaves_by_path(like)})


def _listed(arrays: Mapping[str, Any]) -> str:
    """Some of the names in a file."""
    first = list(arrays)[:8]
    return ", ".join(first) + (f" and {len(arrays) - 8} others" if len(arrays) > 8 else "")


def _arrays(path: Path) -> dict[str, Any]:
    """The arrays of a file by name, with dots as slashes in names that are no key paths yet."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}; give the path of {FORMS}")
    check_regular(path, TensorFileError, or_folder=True)
    if path.is_dir():
        tree = _read_orbax(path)
    elif path.suffix == ".safetensors":
        tree = nested(_read_safetensors(path))
    elif path.suffix in MSGPACK:
        tree = _read_msgpack(path)
    else:
        raise TensorFileError(f"{path} has an unknown suffix; give {FORMS}")
    return {
        name: leaf
        for name, leaf in leaves_by_path(tree).items()
        if np.asarray(leaf).dtype.kind not in "OSUMm"  # objects, texts and times
    }


def _read_msgpack(path: Path) -> PyTree:
    from flax import serialization

    try:
        tree = serialization.msgpack_restore(path.read_bytes())
        leaves_by_path(tree)  # keys of several types cannot be put in an order
        return tree
    except Exception as error:  # of msgpack, in many kinds
        raise TensorFileError(
            f"{path} is not a whole msgpack file of Flax; write it again: {error}"
        ) from None


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise TensorFileError(
            f"{path} is not a whole safetensors file; write it again: {error}"
        ) from None


def _orbax() -> Any:
    try:
        from orbax import checkpoint  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "checkpoints of Orbax need it; install it with: pip install orbax-checkpoint"
        ) from None
    return checkpoint


def _read_orbax(path: Path) -> PyTree:
    checkpoint = _orbax()
    try:
        with checkpoint.PyTreeCheckpointer() as reader, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sharding info not provided")  # one array each
            return reader.restore(path.resolve())
    except (ValueError, KeyError, FileNotFoundError) as error:
        told = " ".join(str(error).split())[:200]
        raise TensorFileError(
            f"{path} is not an Orbax checkpoint; name its folder: {told}"
        ) from None


def write_params(path: Pathlike, params: PyTree, *, overwrite: bool = False) -> Path:
    """Write a params tree for other packages, in the format of the suffix.

    Args:
      path: a .msgpack file for Flax, a .safetensors file, or a folder (a path without a suffix) for
        an Orbax checkpoint.
      params: nested dictionaries of arrays, such as a draw, or any tree.
      overwrite: replace an existing file.

    >>> import tempfile, jax.numpy as jnp, onebasin as ob
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = ob.write_params(f"{folder}/draw.safetensors", {"dense": {"w": jnp.ones(2)}})
    ...     ob.read_params(path)
    {'dense': {'w': Array([1., 1.], dtype=float32)}}
    """
    path = Path(path)
    if path.suffix and path.suffix not in (".safetensors", *MSGPACK):
        raise TensorFileError(f"{path} has an unknown suffix; give {FORMS}")
    path = check_new(path, overwrite=overwrite)
    leaves = {name: np.asarray(leaf) for name, leaf in leaves_by_path(params).items()}
    size = sum(leaf.nbytes for leaf in leaves.values())
    if path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        dotted = {name.replace("/", "."): np.ascontiguousarray(a) for name, a in leaves.items()}
        write_atomically(path, lambda part: save_file(dotted, part), size)
    elif path.suffix:
        from flax import serialization

        content = serialization.msgpack_serialize(nested(leaves))
        write_atomically(path, lambda part: Path(part).write_bytes(content), size)
    else:
        orbax = _orbax()  # before a folder is made for it
        with naming_failures(path, size), temporary_file(path) as part:
            with orbax.PyTreeCheckpointer() as writer:
                writer.save(part.resolve(), nested(leaves))
            if path.exists():
                shutil.rmtree(path)
            part.rename(path)
    return path
