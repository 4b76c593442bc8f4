"""Reads and writes safetensors files: named tensors and a header of names and texts.

A file appears whole or not at all. Structured values of the header are JSON. Draws larger than
memory are mapped instead of read, and a file of known size can be allocated first and filled
through memory maps.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from onebasin.atomic import write_atomically
from onebasin.trees import first_non_finite

Pathlike: TypeAlias = str | os.PathLike[str]
DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64"}
CODES = {name: code for code, name in DTYPES.items()}
LENGTH_BYTES = 8  # before the JSON header: its length, little-endian
ALIGNMENT = 64  # of the first tensor


class TensorFileError(ValueError):
    """A file that cannot be read or that must not be written."""


@dataclass(frozen=True)
class TensorHeader:
    """The header of a file: texts by name, and the shapes of the tensors."""

    path: Path
    metadata: Mapping[str, str] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)

    def json(self, name: str) -> Any:
        """An entry of the header, decoded from JSON."""
        try:
            return json.loads(self.metadata[name])
        except (KeyError, json.JSONDecodeError) as error:
            raise TensorFileError(f"{self.path} has a damaged header: {error!r}") from None


def check_new(path: Pathlike, *, overwrite: bool) -> Path:
    """The path of a file that may be written; call it before any work is done."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    return path


def write_tensors(path: Path, tensors: Mapping[str, ArrayLike], header: Mapping[str, str]) -> None:
    """Write tensors and a header; NaN and infinity are refused."""
    arrays = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in tensors.items()}
    bad = first_non_finite(arrays)
    if bad:
        raise TensorFileError(f"not written to {path}: '{bad}' holds NaN or infinity")
    write_atomically(path, lambda part: save_file(arrays, part, metadata=dict(header)))


def read_tensors(path: Pathlike) -> tuple[TensorHeader, dict[str, np.ndarray]]:
    """The header and all tensors; NaN and infinity are refused."""
    header = read_tensor_header(path)
    with _opened(header.path) as file:
        try:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise TensorFileError(f"{path} cannot be read whole: {error}") from None
    bad = first_non_finite(tensors)
    if bad:
        raise TensorFileError(f"{path} holds NaN or infinity in '{bad}'; it was not loaded")
    return header, tensors


def read_tensor_header(path: Pathlike) -> TensorHeader:
    """The header of a file, without its tensors."""
    path = Path(path)
    if path.is_dir():
        raise TensorFileError(f"{path} is a folder; name a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    with _opened(path) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        return TensorHeader(path, file.metadata() or {}, shapes)


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise TensorFileError(
            f"{path} is not a whole safetensors file (foreign or cut short): {error}"
        ) from None


def to_json(value: object, what: str) -> str:
    """A value as JSON, for an entry of a header."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TensorFileError(f"the {what} cannot be written as JSON: {error}") from None


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None, since JSON has neither."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors as read-only memory maps."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise TensorFileError(
                f"{path}: '{name}' holds {entry['dtype']}, which cannot be mapped; "
                "load it and save it as float32"
            )
    return _maps(path, entries, LENGTH_BYTES + length, "r")


def _maps(
    path: Path, entries: Mapping[str, Any], start: int, mode: Literal["r", "r+"]
) -> dict[str, np.ndarray]:
    return {
        name: np.memmap(
            path,
            np.dtype(DTYPES[entry["dtype"]]),
            mode,
            start + entry["data_offsets"][0],
            tuple(entry["shape"]),
        )
        for name, entry in entries.items()
    }


class GrowingFile:
    """A file allocated for tensors of known shapes and filled through memory maps.

    The header gets `room` bytes besides the layout. Until it is written, the file is not a valid
    safetensors file.
    """

    def __init__(
        self, path: Path, layout: Mapping[str, tuple[tuple[int, ...], np.dtype]], room: int
    ) -> None:
        self.path = path
        self.entries: dict[str, Any] = {}
        offset = 0
        # The widest types first, so that every tensor is aligned.
        for name, (shape, dtype) in sorted(layout.items(), key=lambda i: -i[1][1].itemsize):
            size = int(np.prod(shape)) * dtype.itemsize
            self.entries[name] = {
                "dtype": CODES[dtype.name],
                "shape": list(shape),
                "data_offsets": [offset, offset + size],
            }
            offset += size
        length = len(json.dumps(self.entries)) + room
        self.length = -(-length // ALIGNMENT) * ALIGNMENT
        self.size = LENGTH_BYTES + self.length + offset

    @property
    def is_there(self) -> bool:
        """Whether the file exists; an error if it was allocated for other tensors."""
        if not self.path.exists():
            return False
        if self.path.stat().st_size != self.size:
            raise ValueError(
                f"{self.path} has room for another number of draws; ask for as many as last time, "
                "or overwrite it to start again"
            )
        return True

    def lay_out(self) -> None:
        """Create the file, filled with zeros."""
        with open(self.path, "wb") as file:
            file.truncate(self.size)

    def maps(self) -> dict[str, np.ndarray]:
        """All tensors as writable memory maps."""
        return _maps(self.path, self.entries, LENGTH_BYTES + self.length, "r+")

    def write_header(self, metadata: Mapping[str, str]) -> None:
        """Write the header and flush it to disk."""
        header = json.dumps({"__metadata__": dict(metadata), **self.entries}).encode()
        if len(header) > self.length:
            raise TensorFileError(
                f"the header of {self.path} takes {len(header)} bytes, but {self.length} are "
                "reserved for it; shorten the provenance"
            )
        with open(self.path, "r+b") as file:
            file.write(self.length.to_bytes(LENGTH_BYTES, "little") + header.ljust(self.length))
            file.flush()
            os.fsync(file.fileno())
