"""Whether a file of a published data set is whole, and whether it is the published one.

A gzip file and a tar.gz archive end in a checksum. Plain IDX and CIFAR files have none: a changed
pixel shows only in the MD5 of the whole file, which is known for MNIST and Fashion-MNIST.
"""

import gzip
import hashlib
from pathlib import Path

import numpy as np

from onebasin.data.cifar import SIDE, count_records, member_sizes, opened_members, read_records
from onebasin.data.idx import read_idx
from onebasin.data.pixels import BLOCK, Stream
from onebasin.data.sources import SOURCES, Source
from onebasin.regular_files import check_regular

PACKED = "its gzip checksum is right"
PLAIN = "a plain file has no checksum, so that a changed pixel cannot be noticed"


def sources_of(path: Path) -> list[Source]:
    """The published data sets that have a file of this name."""
    name = path.name.removesuffix(".gz")
    return [
        source
        for source in SOURCES.values()
        if name in source.files or any(path.name == d.name for d in source.downloads)
    ]


def verify_published(path: Path) -> str:
    """Read a file of a published data set to its end and compare it with the published one.

    Returns what was found in a few words; a damaged file is a `DataFileError`.
    """
    if not check_regular(path).exists():
        raise FileNotFoundError(f"there is no file {path}; check the name")
    sources = sources_of(path)
    if sources[0].format == "idx":
        return _verify_idx(path, sources)
    source = sources[0]
    if path.name == source.archive:
        with path.open("rb") as stream:
            if _md5(stream) == source.downloads[0].md5:
                return f"the archive of {source.name} as published"
        sizes = member_sizes(path, source.files)
        with opened_members(path, source.files) as members:
            for name, stream in members:
                _check_records(stream, sizes[name], f"{path}:{name}", source)
        return f"an archive like that of {source.name}, not the published one; {PACKED}"
    with path.open("rb") as stream:
        count = _check_records(stream, path.stat().st_size, str(path), source)
    return f"{count} records; {PLAIN}, unlike in {source.archive}"


def _verify_idx(path: Path, sources: list[Source]) -> str:
    shape = " × ".join(map(str, read_idx(path).shape))
    with path.open("rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else path.open("rb") as stream:
        own = _md5(stream)
    name = path.name.removesuffix(".gz")
    for source in sources:
        if own == dict(zip(source.files, source.contents, strict=True))[name]:
            return f"{shape}, as published in {source.name}"
    names = " or ".join(source.name for source in sources)
    return f"{shape}, other numbers than those published in {names}; {PACKED if packed else PLAIN}"


def _check_records(stream: Stream, size: int, where: str, source: Source) -> int:
    """The number of records of a CIFAR file, whose labels are right."""
    count = count_records(size, where, label_bytes=source.label_bytes)
    none = np.empty((0, SIDE, SIDE, 3), np.float32)
    labels = {"label_bytes": source.label_bytes, "num_classes": source.num_classes}
    read_records(stream, count, where, none, **labels)
    return count


def _md5(stream: Stream) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while data := stream.read(BLOCK):
        digest.update(data)
    return digest.hexdigest()
