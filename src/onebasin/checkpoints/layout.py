"""Plain safetensors files, byte by byte: tensors of any type as memory maps, and files like others.

A file written like another has its header, so its names, data types, metadata and order, and drops
into its place.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from onebasin.atomic import write_atomically
from onebasin.tensor_files import ALIGNMENT, LENGTH_BYTES, TensorFileError

DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Layout:
    """The header of a safetensors file, as bytes and decoded."""

    header: bytes
    """Everything before the first tensor."""
    entries: Mapping[str, Any]
    metadata: Mapping[str, str]

    def in_order(self) -> list[str]:
        """The names of the tensors in the order of their bytes."""
        return sorted(self.entries, key=lambda name: self.entries[name]["data_offsets"])

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        ends = [entry["data_offsets"][1] for entry in self.entries.values()]
        return len(self.header) + max(ends, default=0)


def read_layout(path: Path) -> Layout:
    """The layout of a safetensors file, which the library has found whole."""
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise TensorFileError(f"{path} is not a whole safetensors file: {error}") from None
    with open(path, "rb") as file:
        length = file.read(LENGTH_BYTES)
        header = length + file.read(int.from_bytes(length, "little"))
    entries = json.loads(header[LENGTH_BYTES:])
    metadata = entries.pop("__metadata__", {})
    for name, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise TensorFileError(
                f"{path}: '{name}' holds {entry['dtype']}, which is not supported"
            )
    return Layout(header, entries, metadata)


def map_layout(path: Path, layout: Layout) -> dict[str, np.ndarray]:
    """All tensors as read-only memory maps, in the order of the file's header."""
    mapped: dict[str, np.ndarray] = {}
    for name, entry in layout.entries.items():
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        if math.prod(shape):
            start = len(layout.header) + entry["data_offsets"][0]
            mapped[name] = np.memmap(path, dtype, "r", start, shape)
        else:  # an empty range cannot be mapped
            mapped[name] = np.zeros(shape, dtype)
    return mapped


def layout_of(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Layout:
    """The layout of a new file: the widest types first, so that every tensor is aligned."""
    entries: dict[str, Any] = {}
    offset = 0
    for name in sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n)):
        tensor = tensors[name]
        end = offset + tensor.nbytes
        entries[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    content = {"__metadata__": dict(metadata), **entries} if metadata else entries
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + LENGTH_BYTES) % ALIGNMENT)
    return Layout(len(text).to_bytes(LENGTH_BYTES, "little") + text, entries, dict(metadata))


def write_like(path: Path, layout: Layout, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write a file of a layout; the tensors come in the order of their bytes, one at a time."""

    def write(part: str) -> None:
        with open(part, "wb") as file:
            file.write(layout.header)
            for name, array in tensors:
                dtype = DTYPES[layout.entries[name]["dtype"]]
                whole = np.ascontiguousarray(array, dtype)
                file.write(whole.reshape(-1).view(np.uint8).data)

    write_atomically(path, write, layout.size)
