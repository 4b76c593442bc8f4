"""The binary version of CIFAR-10 and CIFAR-100.

A file is a sequence of records without a header: one label byte (CIFAR-10) or two (CIFAR-100: the
coarse label, then the fine one), then 1024 red, 1024 green and 1024 blue bytes, each row-major.
The pickled "python version" is never read, because unpickling can run arbitrary code.
"""

import tarfile
import zlib
from pathlib import Path

import numpy as np

from onebasin.data.dataset import DataFileError
from onebasin.data.idx import check_labels

SIDE = 32
PIXELS = 3 * SIDE * SIDE
_COARSE_CLASSES = 20
LARGEST_MEMBER = 1 << 28  # bytes; the largest published file has 154 million


def parse_records(
    data: bytes, where: str, *, label_bytes: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [n, 32, 32, 3] and int32 (fine) labels [n]; `where` names the data in errors."""
    size = label_bytes + PIXELS
    if not data:
        raise DataFileError(f"{where} is empty; download it again")
    if len(data) % size:
        raise DataFileError(
            f"{where} has {len(data)} bytes, which is not a whole number of records of {size} "
            f"bytes; download it again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    labels = records[:, label_bytes - 1]
    check_labels(where, labels, num_classes)
    if label_bytes == 2:
        check_labels(f"{where} (coarse labels)", records[:, 0], _COARSE_CLASSES)
    images = records[:, label_bytes:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return images, labels.astype(np.int32)


def read_members(archive: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of the named regular files of a tar archive, in whatever folder they are.

    Members are read into memory and nothing is extracted, so paths that point outside the archive
    do no harm.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                if member.isfile() and name in names and name not in found:
                    if member.size > LARGEST_MEMBER:
                        raise DataFileError(
                            f"{archive} holds a {name} of {member.size} bytes; download it again"
                        )
                    stream = tar.extractfile(member)
                    assert stream is not None  # it is a regular file
                    found[name] = stream.read()
            # An archive may end before its file does: gzip has the checksum of all at the end.
            assert tar.fileobj is not None
            while tar.fileobj.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataFileError(
            f"{archive} is not a complete tar archive ({error}); download it again"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DataFileError(f"{archive} does not contain {', '.join(missing)}; download it again")
    return found
