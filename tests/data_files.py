"""Small, well-formed data files."""

import gzip
import io
import struct
import tarfile

import numpy as np

from onebasin.data import SOURCES
from onebasin.data.idx import TYPES

PIXELS = 3 * 32 * 32


def idx_bytes(array: np.ndarray, code: int) -> bytes:
    head = bytes([0, 0, code, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return head + array.astype(TYPES[code]).tobytes()


def write_mnist(folder, train=7, test=3, *, zipped=True, seed=0):
    """Write a small MNIST and return its arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    arrays = {}
    for prefix, count in (("train", train), ("t10k", test)):
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{prefix}-labels-idx1-ubyte"] = rng.integers(0, 10, count).astype(np.uint8)
    for name, array in arrays.items():
        data = idx_bytes(array, 0x08)
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            (folder / name).write_bytes(data)
    return arrays


def cifar_bytes(labels: list[list[int]], seed=0) -> bytes:
    """Records of label bytes followed by pixels."""
    rng = np.random.default_rng(seed)
    return b"".join(
        bytes(label) + rng.integers(0, 256, PIXELS, np.uint8).tobytes() for label in labels
    )


def write_cifar10(folder, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(SOURCES["cifar10"].files):
        (folder / name).write_bytes(cifar_bytes([[i], [9 - i]], seed + i))


def tar_bytes(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()
