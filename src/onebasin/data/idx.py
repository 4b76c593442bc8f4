"""The IDX format of MNIST and its descendants.

A file is: two zero bytes, a type code, the number of dimensions, the size of each dimension as a
big-endian uint32, and then the array in row-major order, big-endian. Nothing follows.
"""

import gzip
import math
import struct
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from onebasin.data.dataset import DataFileError

TYPES = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
_GZIP_MAGIC = b"\x1f\x8b"
# DEFLATE cannot shrink data by more than about 1032:1, so a header that promises more is wrong;
# knowing this before reading keeps a corrupt header from asking for terabytes.
_MOST_EXPANSION = 1040


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file, gzipped or not (told apart by content, not by name)."""
    with _opened(path) as stream:
        dtype, shape = _header(stream, path)
        size = math.prod(shape) * dtype.itemsize
        body = stream.read(size + 1)
    if len(body) < size:
        raise DataFileError(
            f"{path} is cut short: its header promises {size} bytes of data for shape {shape}, "
            f"there are {len(body)}; fetch it again"
        )
    if len(body) > size:
        raise DataFileError(
            f"{path} is longer than its header says: {size} bytes of data make up the shape "
            f"{shape}, and more follow; fetch it again"
        )
    # Native byte order, and writable memory of its own.
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def read_idx_header(path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    """The element type and shape that an IDX file states, without reading the array."""
    with _opened(path) as stream:
        return _header(stream, path)


@contextmanager
def _opened(path: Path):
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataFileError(f"{path} is not a whole gzip file ({error}); fetch it again") from error


def _header(stream, path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise DataFileError(
            f"{path} is not an IDX file: it starts with {magic.hex(' ') or 'nothing'}, "
            f"not with two zero bytes, a type and a number of dimensions"
        )
    code, dims = magic[2], magic[3]
    if code not in TYPES:
        raise DataFileError(f"{path} has the IDX type code 0x{code:02x}, which does not exist")
    sizes = stream.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise DataFileError(f"{path} is cut short inside its IDX header; fetch it again")
    shape = struct.unpack(f">{dims}I", sizes)
    dtype = TYPES[code]
    most = path.stat().st_size * _MOST_EXPANSION
    if math.prod(shape) * dtype.itemsize > most:
        raise DataFileError(
            f"{path} is cut short: its header promises the shape {shape}, "
            f"which a file of {path.stat().st_size} bytes cannot hold; fetch it again"
        )
    return dtype, shape


def read_images_and_labels(
    images: Path, labels: Path, *, image_shape: tuple[int, int], num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """A pair of IDX files as uint8 images [n, height, width, 1] and int32 labels [n]."""
    _expect(images, read_idx_header(images), image_shape)
    _expect(labels, read_idx_header(labels), ())
    y = read_idx(labels)
    check_labels(labels, y, num_classes)
    x = read_idx(images)
    if len(x) != len(y):
        raise DataFileError(
            f"{images} and {labels} do not pair up: {len(x)} images and {len(y)} labels"
        )
    if not len(x):
        raise DataFileError(f"{images} holds no images")
    return x[..., None], y.astype(np.int32)


def check_labels(path: Path | str, labels: np.ndarray, num_classes: int) -> None:
    """Raise if a label is not a class number below `num_classes`."""
    if labels.size and labels.max() >= num_classes:
        at = int(np.argmax(labels >= num_classes))
        raise DataFileError(
            f"{path} has label {labels[at]} at record {at}; labels must be below {num_classes}"
        )


def _expect(path: Path, header: tuple[np.dtype, tuple[int, ...]], item: tuple[int, ...]) -> None:
    """Raise unless a file holds bytes of shape [n, *item]."""
    dtype, shape = header
    if dtype != TYPES[0x08]:
        raise DataFileError(f"{path} holds {dtype.name} values, unsigned bytes were expected")
    if len(shape) != 1 + len(item) or shape[1:] != item:
        wanted = " × ".join(["n", *map(str, item)])
        raise DataFileError(f"{path} has the shape {shape}, {wanted} was expected")
