"""The IDX format of MNIST and its descendants.

A file holds two zero bytes, a type code, the number of dimensions, the size of each dimension as a
big-endian uint32, and the array in row-major order, big-endian.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import numpy as np

from onebasin.data.dataset import DataFileError
from onebasin.data.pixels import blocks_of, put_scaled, room_for

TYPES = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
_GZIP_MAGIC = b"\x1f\x8b"
# DEFLATE compresses by at most about 1032:1. A header that promises more is corrupt, and must not
# make the reader ask for terabytes.
_MAX_RATIO = 1040


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file; gzip is recognised by content, not by name."""
    with _opened(path) as stream:
        dtype, shape = _header(stream, path)
        size = math.prod(shape) * dtype.itemsize
        body = stream.read(size + 1)
    _check_size(path, len(body), size, shape)
    # In native byte order, and writable.
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _check_size(path: Path, found: int, promised: int, shape: tuple[int, ...]) -> None:
    """Raise unless a file has as many bytes of data as its header says."""
    if found != promised:
        fault = "truncated" if found < promised else "too long"
        raise DataFileError(
            f"{path} is {fault}: its header promises {promised} bytes of data for shape {shape}; "
            "download it again"
        )


def read_idx_header(path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    """The element type and shape in the header of an IDX file."""
    with _opened(path) as stream:
        return _header(stream, path)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataFileError(
            f"{path} is not a complete gzip file ({error}); download it again"
        ) from error


def _header(stream: BufferedReader | gzip.GzipFile, path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise DataFileError(
            f"{path} is not an IDX file: it starts with {magic.hex(' ') or 'nothing'} instead of "
            f"two zero bytes, a type and a number of dimensions; download it again"
        )
    code, dims = magic[2], magic[3]
    if code not in TYPES:
        raise DataFileError(f"{path} has the unknown IDX type code 0x{code:02x}; download it again")
    sizes = stream.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise DataFileError(f"{path} is truncated inside its IDX header; download it again")
    shape = struct.unpack(f">{dims}I", sizes)
    dtype = TYPES[code]
    if math.prod(shape) * dtype.itemsize > path.stat().st_size * _MAX_RATIO:
        raise DataFileError(
            f"{path} is truncated: its header promises the shape {shape}, "
            f"which a file of {path.stat().st_size} bytes cannot hold; download it again"
        )
    return dtype, shape


def read_images_and_labels(
    images: Path,
    labels: Path,
    *,
    image_shape: tuple[int, int],
    num_classes: int,
    keep: Callable[[int], int],
) -> tuple[np.ndarray, np.ndarray]:
    """A pair of IDX files: images in [0, 1], float32 [kept, height, width, 1]; int32 labels [n].

    `keep(n)` says how many of the images are kept. The files are read to their end in any case.
    """
    _expect(images, read_idx_header(images), image_shape)
    _expect(labels, read_idx_header(labels), ())
    y = read_idx(labels)
    check_labels(labels, y, num_classes)
    (count, *_), size = read_idx_header(images)[1], math.prod(image_shape)
    check_pair(images, labels, count, len(y))
    if not count:
        raise DataFileError(f"{images} holds no images; download it again")
    kept = keep(count)
    with _opened(images) as stream:
        _, shape = _header(stream, images)
        if isinstance(stream, BufferedReader):  # before memory is taken
            _check_size(images, images.stat().st_size - stream.tell(), count * size, shape)
        x = room_for(kept, (*image_shape, 1), images)
        found = 0
        for first, block in blocks_of(stream, count, size):
            put_scaled(block.reshape(-1, *image_shape, 1), x[first:])
            found = (first + len(block)) * size
        _check_size(images, found + len(stream.read(1)), count * size, shape)
    return x, y.astype(np.int32)


def check_pair(images: Path, labels: Path, num_images: int, num_labels: int) -> None:
    """Raise unless there is one label per image."""
    if num_images != num_labels:
        raise DataFileError(
            f"{images} has {num_images} images but {labels} has {num_labels} labels; download both "
            "again"
        )


def check_labels(path: Path | str, labels: np.ndarray, num_classes: int, first: int = 0) -> None:
    """Raise unless all labels, those of the records from `first` on, are below `num_classes`."""
    if labels.size and labels.max() >= num_classes:
        at = int(np.argmax(labels >= num_classes))
        raise DataFileError(
            f"{path} has label {labels[at]} at record {first + at}; labels must be below "
            f"{num_classes}, so download it again"
        )


def _expect(path: Path, header: tuple[np.dtype, tuple[int, ...]], item: tuple[int, ...]) -> None:
    """Raise unless a file holds bytes of shape [n, *item]."""
    dtype, shape = header
    if dtype != TYPES[0x08]:
        raise DataFileError(
            f"{path} holds {dtype.name} values instead of unsigned bytes; download it again"
        )
    if len(shape) != 1 + len(item) or shape[1:] != item:
        wanted = " × ".join(["n", *map(str, item)])
        raise DataFileError(
            f"{path} has shape {shape} instead of {wanted}; put the published file there, or "
            "download it again"
        )
