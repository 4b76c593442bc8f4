"""The binary version of CIFAR-10 and CIFAR-100.

A file is a sequence of records without a header: one label byte (CIFAR-10) or two (CIFAR-100: the
coarse label, then the fine one), then 1024 red, 1024 green and 1024 blue bytes, each row-major.
The pickled "python version" is never read, because unpickling can run arbitrary code.
"""

import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from onebasin.data.dataset import DataFileError
from onebasin.data.idx import check_labels
from onebasin.data.pixels import Stream, blocks_of, put_scaled

SIDE = 32
PIXELS = 3 * SIDE * SIDE
_COARSE_CLASSES = 20
LARGEST_MEMBER = 1 << 28  # bytes; the largest published file has 154 million


def count_records(size: int, where: str, *, label_bytes: int) -> int:
    """The number of records in `size` bytes; `where` names the file in errors."""
    if not size:
        raise DataFileError(f"{where} is empty; download it again")
    records, rest = divmod(size, label_bytes + PIXELS)
    if rest:
        raise DataFileError(
            f"{where} has {size} bytes, which is not a whole number of records of "
            f"{label_bytes + PIXELS} bytes; download it again"
        )
    return records


def read_records(
    stream: Stream,
    count: int,
    where: str,
    images: np.ndarray,
    *,
    label_bytes: int,
    num_classes: int,
) -> np.ndarray:
    """int32 (fine) labels [count]; the pixels become `images`, float32 in [0, 1], [n, 32, 32, 3].

    Of fewer images only the labels of the other records are looked at.
    """
    labels = np.empty(count, np.int32)
    found = 0
    for first, block in blocks_of(stream, count, label_bytes + PIXELS):
        found = first + len(block)
        labels[first:found] = own = block[:, label_bytes - 1]
        check_labels(where, own, num_classes, first)
        if label_bytes == 2:
            check_labels(f"{where} (coarse labels)", block[:, 0], _COARSE_CLASSES, first)
        planes = block[:, label_bytes:].reshape(-1, 3, SIDE, SIDE)
        put_scaled(planes.transpose(0, 2, 3, 1), images[first:])
    if found < count:
        raise DataFileError(f"{where} ends after {found} of {count} records; download it again")
    return labels


def member_sizes(archive: Path, names: tuple[str, ...]) -> dict[str, int]:
    """Bytes of the named regular files of a tar archive, in whatever folder they are.

    The archive is read to its end, where gzip has the checksum of all.
    """
    with _opened(archive) as tar:
        found = {name: member.size for name, member in _members(tar, names)}
        # An archive may end before its file does.
        assert tar.fileobj is not None
        while tar.fileobj.read(1 << 20):
            pass
    missing = [name for name in names if name not in found]
    if missing:
        raise DataFileError(f"{archive} does not contain {', '.join(missing)}; download it again")
    for name, size in found.items():
        if size > LARGEST_MEMBER:
            raise DataFileError(f"{archive} holds a {name} of {size} bytes; download it again")
    return found


@contextmanager
def opened_members(archive: Path, names: tuple[str, ...]) -> Iterator[Iterator[tuple[str, Stream]]]:
    """The same files, opened one after the other, in the order of the archive.

    Nothing is extracted, so paths that point outside the archive do no harm.
    """
    with _opened(archive) as tar:
        yield (
            (name, stream)
            for name, member in _members(tar, names)
            if (stream := tar.extractfile(member)) is not None  # as it is of a regular file
        )


def _members(tar: tarfile.TarFile, names: tuple[str, ...]) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """The first regular file of each name."""
    found = set()
    for member in tar:
        name = member.name.rsplit("/", 1)[-1]
        if member.isfile() and not member.issparse() and name in names and name not in found:
            found.add(name)
            yield name, member


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive, "r:*") as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataFileError(
            f"{archive} is not a complete tar archive ({error}); download it again"
        ) from error
