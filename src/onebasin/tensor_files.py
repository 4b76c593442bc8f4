"""Tensors on disk with a JSON header: the one place that reads and writes safetensors files.

A file appears whole or not at all. Its header is a mapping from names to text; the values that
are structured are JSON. Draws that are larger than memory are mapped instead of read, and a file
of known size can be laid out first and filled through the map.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from onebasin.atomic import write_atomically
from onebasin.trees import first_non_finite

Pathlike: TypeAlias = str | os.PathLike[str]
DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64"}
CODES = {name: code for code, name in DTYPES.items()}
LENGTH_BYTES = 8  # in front of the JSON header: its length, little-endian
ALIGNMENT = 64  # of the first tensor, so that maps are aligned


class TensorFileError(ValueError):
    """A file that cannot be read as what it should be, or that will not be written."""


@dataclass(frozen=True)
class TensorHeader:
    """What a file says of itself before any tensor is read."""

    path: Path
    metadata: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)

    def json(self, name: str) -> Any:
        """One entry of the header, decoded."""
        try:
            return json.loads(self.metadata[name])
        except (KeyError, json.JSONDecodeError) as error:
            raise TensorFileError(f"{self.path} has a damaged header: {error!r}") from None


def check_new(path: Pathlike, *, overwrite: bool) -> Path:
    """The path of a file that may be written, or an error before any work is done."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    return path


def write_tensors(path: Path, tensors: Mapping[str, Any], header: Mapping[str, str]) -> None:
    """Write tensors and header; NaN and infinity are refused."""
    arrays = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in tensors.items()}
    bad = first_non_finite(arrays)
    if bad:
        raise TensorFileError(f"not written to {path}: '{bad}' holds NaN or infinity")
    write_atomically(path, lambda part: save_file(arrays, part, metadata=dict(header)))


def read_tensors(path: Pathlike) -> tuple[TensorHeader, dict[str, np.ndarray]]:
    """The header and every tensor; NaN and infinity are refused."""
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
    """The header alone."""
    path = Path(path)
    if path.is_dir():
        raise TensorFileError(f"{path} is a folder; name a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    with _opened(path) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        return TensorHeader(path, file.metadata() or {}, shapes)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise TensorFileError(
            f"{path} is not a whole safetensors file (foreign or cut short): {error}"
        ) from None


def to_json(value: Any, what: str) -> str:
    """A value as an entry of a header."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TensorFileError(f"the {what} cannot be written as JSON: {error}") from None


def finite(value: Any) -> Any:
    """NaN and infinity as None: JSON has neither."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor as a read-only memory map: only what is looked at takes memory."""
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


def _maps(path: Path, entries: Mapping[str, Any], start: int, mode: Any) -> dict[str, np.ndarray]:
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
    """A file laid out for tensors of known shapes, filled through memory maps.

    The header is written last, into `room` bytes that were kept for it; until then the file is
    not a whole safetensors file.
    """

    def __init__(
        self, path: Path, layout: Mapping[str, tuple[tuple[int, ...], np.dtype]], room: int
    ) -> None:
        self.path = path
        self.entries: dict[str, Any] = {}
        offset = 0
        # The widest numbers first, so that every tensor is aligned.
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
        """Whether the file is there; an error if it was laid out for other tensors."""
        if not self.path.exists():
            return False
        if self.path.stat().st_size != self.size:
            raise ValueError(
                f"{self.path} has room for another number of draws; ask for as many as last time, "
                "or overwrite it to start again"
            )
        return True

    def lay_out(self) -> None:
        """Make the file, full of zeros."""
        with open(self.path, "wb") as file:
            file.truncate(self.size)

    def maps(self) -> dict[str, np.ndarray]:
        """Every tensor as a writable memory map."""
        return _maps(self.path, self.entries, LENGTH_BYTES + self.length, "r+")

    def write_header(self, metadata: Mapping[str, str]) -> None:
        """Write the header and flush it to disk."""
        header = json.dumps({"__metadata__": dict(metadata), **self.entries}).encode()
        if len(header) > self.length:
            raise TensorFileError(
                f"the header of {self.path} takes {len(header)} bytes and {self.length} were kept "
                "for it; keep less in the provenance"
            )
        with open(self.path, "r+b") as file:
            file.write(self.length.to_bytes(LENGTH_BYTES, "little") + header.ljust(self.length))
            file.flush()
            os.fsync(file.fileno())
