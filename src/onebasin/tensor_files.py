"""Reads and writes safetensors files: named tensors and a header of names and texts.

Files are written atomically. Structured values of the header are JSON. Draws larger than
memory are mapped instead of read, and a file of known size can be allocated first and filled
through memory maps.

The header's entry `integrity` holds a checksum of every tensor and one of the rest of the header.
The header is checked whenever a file is opened, a tensor when it is read. A mapped tensor is not
read before it is used: `verify_tensors` checks it on request.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from onebasin.atomic import write_atomically
from onebasin.checksums import DIGITS, Checksum, checksum
from onebasin.regular_files import check_regular
from onebasin.trees import blocks, first_non_finite

Pathlike: TypeAlias = str | os.PathLike[str]
DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64"}
MAPPABLE = {**DTYPES, "BF16": "bfloat16"}
CODES = {name: code for code, name in DTYPES.items()}
READABLE = (*DTYPES, "BF16", "U8", "U16", "U32")  # all that is ever written
INTEGRITY = "integrity"
REPLACE = "make it again, or take another copy of it"  # the remedy for a damaged file
LENGTH_BYTES = 8  # before the JSON header: its length, little-endian
ALIGNMENT = 64  # of the first tensor


class TensorFileError(ValueError):
    """A file that cannot be read or that must not be written."""


class NoChecksumsWarning(UserWarning):
    """A file of an earlier version, in which damage cannot be detected."""


@dataclass(frozen=True)
class TensorHeader:
    """The header of a file: texts by name, the shapes of the tensors and their checksums.

    `checksums` is None for a file that was written without any.
    """

    path: Path
    metadata: Mapping[str, str] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    checksums: Mapping[str, str] | None = field(repr=False)

    def json(self, name: str, *kinds: type) -> Any:
        """An entry of the header, decoded from JSON; it must be of one of `kinds`, if given."""
        try:
            value = json.loads(self.metadata[name])
        except (KeyError, ValueError, RecursionError) as error:
            raise TensorFileError(
                f"{self.path} has a damaged header: {error!r}; {REPLACE}"
            ) from None
        if kinds and not isinstance(value, kinds):
            raise TensorFileError(
                f"{self.path} has a damaged header: '{name}' is {value!r:.40}; {REPLACE}"
            )
        return value

    def check_form(self, form: str, version: int, is_not: str) -> int:
        """The version of a file of one of our formats; versions up to `version` are read.

        The first version of every format has no checksums: it is read with a warning.
        """
        if self.metadata.get("format") != form:
            raise TensorFileError(f"{self.path} is a safetensors file but not {is_not}")
        known = [str(v) for v in range(1, version + 1)]
        found = self.metadata.get("version", "")
        if found not in known:
            raise TensorFileError(
                f"{self.path} has format version '{found}' and this OneBasin reads "
                f"{' and '.join(known)}; use the OneBasin that wrote it, or save it again"
            )
        if self.checksums is None and found != "1":
            raise TensorFileError(
                f"{self.path} is damaged: its header has lost the checksums; {REPLACE}"
            )
        if self.checksums is None:
            warnings.warn(
                f"{self.path} was written without checksums, so damage cannot be detected; "
                "save it again",
                NoChecksumsWarning,
                stacklevel=4,
            )
        return int(found)


def check_new(path: Pathlike, *, overwrite: bool) -> Path:
    """The path of a file that may be written; call it before any work is done."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
    return path


def write_tensors(path: Path, tensors: Mapping[str, Any], header: Mapping[str, str]) -> None:
    """Write tensors and a header; NaN and infinity are refused.

    Tensors are NumPy and JAX arrays, memory maps, or array-likes that compute slices of their first
    axis when they are asked for: the file is written in blocks.
    """
    arrays = {name: _sliceable(array) for name, array in tensors.items()}
    entries = {name: (_code(name, a.dtype), tuple(a.shape)) for name, a in arrays.items()}
    size = sum(array.nbytes for array in arrays.values())
    write_atomically(path, lambda part: _write_file(path, part, arrays, entries, header), size)


def _sliceable(array: Any) -> Any:
    if isinstance(array, np.memmap) or not isinstance(array, jax.Array | np.ndarray | np.generic):
        return array if hasattr(array, "nbytes") else np.asarray(array)
    return np.ascontiguousarray(array).reshape(np.shape(array))


def _write_file(
    path: Path,
    part: str,
    arrays: Mapping[str, Any],
    entries: Mapping[str, tuple[str, tuple[int, ...]]],
    header: Mapping[str, str],
) -> None:
    """Write a safetensors file; the library's own writer orders the metadata at random.

    The checksums, which the header holds, are known once the tensors have been written.
    """
    # The widest types first, so that every tensor is aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    sums = dict.fromkeys(arrays, "0" * DIGITS)
    with open(part, "wb") as file:
        file.write(_header_bytes(order, arrays, entries, _with_integrity(header, entries, sums)))
        for name in order:
            found = Checksum(arrays[name].nbytes)
            for block in blocks(arrays[name]):
                if first_non_finite(block):
                    raise TensorFileError(
                        f"not written to {path}: '{name}' holds NaN or infinity; give finite "
                        "numbers"
                    )
                found.update(block)
                file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
            sums[name] = found.digest()
        file.seek(0)
        file.write(_header_bytes(order, arrays, entries, _with_integrity(header, entries, sums)))


def _header_bytes(
    order: Iterable[str],
    arrays: Mapping[str, Any],
    entries: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, str],
) -> bytes:
    """The length of the header and the header: its length does not depend on the checksums."""
    layout: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    for name in order:
        code, shape = entries[name]
        end = offset + arrays[name].nbytes
        layout[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(layout, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header


def _code(name: str, dtype: np.dtype) -> str:
    """The name of a type in a safetensors header."""
    if dtype.name == "bfloat16":
        return "BF16"
    code = f"{dtype.kind.upper()}{8 * dtype.itemsize}"
    if code not in READABLE:
        raise TensorFileError(f"'{name}' has the type {dtype}; give floating-point numbers")
    return code


def _with_integrity(
    header: Mapping[str, str], entries: Mapping[str, Any], sums: Mapping[str, str]
) -> dict[str, str]:
    """The header with the checksums of the tensors and of itself."""
    own = {"tensors": dict(sums), "header": _header_sum(header, entries, sums)}
    return {**header, INTEGRITY: json.dumps(own)}


def _header_sum(
    header: Mapping[str, str], entries: Mapping[str, Any], sums: Mapping[str, str]
) -> str:
    shapes = {name: [code, list(shape)] for name, (code, shape) in entries.items()}
    texts = {name: text for name, text in header.items() if name != INTEGRITY}
    content = json.dumps([texts, shapes, dict(sums)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]


def read_tensors(path: Pathlike) -> tuple[TensorHeader, dict[str, np.ndarray]]:
    """The header and all tensors; NaN and infinity are refused."""
    header = read_tensor_header(path)
    with _opened(header.path) as file:
        try:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise TensorFileError(f"{path} cannot be read whole: {error}; {REPLACE}") from None
    _check_tensors(header, tensors)
    return header, tensors


def _check_tensors(header: TensorHeader, tensors: Mapping[str, np.ndarray]) -> None:
    for name, known in (header.checksums or {}).items():
        if checksum(tensors[name]) != known:
            raise TensorFileError(
                f"{header.path} is damaged: the numbers of '{name}' have changed; {REPLACE}"
            )
    bad = first_non_finite(tensors)
    if bad:
        raise TensorFileError(
            f"{header.path} holds NaN or infinity in '{bad}'; drop those draws, or make it again"
        )


def verify_tensors(path: Pathlike) -> TensorHeader:
    """Check every tensor of a file, without reading the file into memory."""
    header = read_tensor_header(path)
    _check_tensors(header, map_tensors(header.path))
    return header


def read_tensor_header(path: Pathlike) -> TensorHeader:
    """The header of a file, without its tensors."""
    path = Path(path)
    if path.is_dir():
        raise TensorFileError(f"{path} is a folder; name a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}; check the name")
    check_regular(path, TensorFileError)
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        entries = {n: (str(s.get_dtype()), tuple(s.get_shape())) for n, s in slices.items()}
        metadata = file.metadata() or {}
    for name, (code, _) in entries.items():
        if code not in READABLE:
            raise TensorFileError(f"{path}: '{name}' holds {code} numbers; save it as float32")
    header = TensorHeader(path, metadata, {n: shape for n, (_, shape) in entries.items()}, None)
    if INTEGRITY not in metadata:
        return header
    own = header.json(INTEGRITY, dict)
    sums = own.get("tensors")
    if not isinstance(sums, dict) or _header_sum(metadata, entries, sums) != own.get("header"):
        raise TensorFileError(
            f"{path} is damaged: its header has changed since it was written; {REPLACE}"
        )
    return replace(header, checksums=sums)


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise TensorFileError(
            f"{path} is not a whole safetensors file (foreign or cut short): {error}; {REPLACE}"
        ) from None


def to_json(value: object, what: str) -> str:
    """A value as JSON, for an entry of a header."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TensorFileError(
            f"the {what} cannot be written as JSON: {error}; give texts, numbers, lists and "
            "dictionaries"
        ) from None


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
        if entry["dtype"] not in MAPPABLE:
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
            np.dtype(MAPPABLE[entry["dtype"]]),
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
        sums = dict.fromkeys(self.entries, "0" * DIGITS)
        integrity = _with_integrity({}, dict.fromkeys(self.entries, ("", ())), sums)
        length = len(json.dumps(self.entries)) + len(json.dumps(integrity)) + room
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
            # A map of a sparse file ends in a bus error when the disk is full: take the blocks now.
            os.posix_fallocate(file.fileno(), 0, self.size)

    def maps(self) -> dict[str, np.ndarray]:
        """All tensors as writable memory maps."""
        return _maps(self.path, self.entries, LENGTH_BYTES + self.length, "r+")

    def write_header(self, metadata: Mapping[str, str]) -> None:
        """Write the header, with checksums of the tensors as they are, and flush it to disk."""
        sums = {name: checksum(array) for name, array in self.maps().items()}
        entries = {name: (e["dtype"], e["shape"]) for name, e in self.entries.items()}
        metadata = _with_integrity(metadata, entries, sums)
        header = json.dumps({"__metadata__": metadata, **self.entries}).encode()
        if len(header) > self.length:
            raise TensorFileError(
                f"the header of {self.path} takes {len(header)} bytes, but {self.length} are "
                "reserved for it; shorten the provenance"
            )
        with open(self.path, "r+b") as file:
            file.write(self.length.to_bytes(LENGTH_BYTES, "little") + header.ljust(self.length))
            file.flush()
            os.fsync(file.fileno())
