"""The published data sets: their files, checksums and mirrors."""

from dataclasses import dataclass
from typing import Literal, get_args

from onebasin.choices import DataName


@dataclass(frozen=True)
class Download:
    """A published file: its name, its published MD5, and the mirrors in order of preference."""

    name: str
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A published image data set.

    `train` and `test` name the files. `folders` are their usual places under a root folder, where
    "" is the root itself and comes last, because a name such as train.bin is not specific.
    `published` counts (train, test) examples.
    """

    name: str
    format: Literal["idx", "cifar"]
    train: tuple[str, ...]
    test: tuple[str, ...]
    folders: tuple[str, ...]
    downloads: tuple[Download, ...]
    num_classes: int
    published: tuple[int, int]
    label_bytes: int = 1
    contents: tuple[str, ...] = ()
    """MD5 of the unpacked files, in the order of `files`, where they are known."""

    @property
    def files(self) -> tuple[str, ...]:
        """All files, those of the training split first."""
        return self.train + self.test

    @property
    def archive(self) -> str | None:
        """The tar archive that holds the files, if they are published as one."""
        return self.downloads[0].name if self.format == "cifar" else None


_IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx(
    name: str,
    folders: tuple[str, ...],
    md5s: tuple[str, ...],
    contents: tuple[str, ...],
    mirrors: tuple[str, ...],
) -> Source:
    files = [f"{file}.gz" for file in _IDX_TRAIN + _IDX_TEST]
    downloads = tuple(
        Download(file, md5, tuple(mirror + file for mirror in mirrors))
        for file, md5 in zip(files, md5s, strict=True)
    )
    counts = (60_000, 10_000)
    places = (*folders, "")
    return Source(
        name, "idx", _IDX_TRAIN, _IDX_TEST, places, downloads, 10, counts, contents=contents
    )


# The checksums are the "binary version" of the tables at www.cs.toronto.edu/~kriz/cifar.html. That
# address now redirects to cave.cs.toronto.edu, the second mirror.
_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")


def _cifar(classes: int, folder: str, train: tuple[str, ...], test: str, md5: str) -> Source:
    name, archive = f"cifar{classes}", f"cifar-{classes}-binary.tar.gz"
    return Source(
        name=name,
        format="cifar",
        train=train,
        test=(test,),
        folders=(folder, f"{name}/{folder}", name, ""),
        downloads=(Download(archive, md5, tuple(mirror + archive for mirror in _TORONTO)),),
        num_classes=classes,
        published=(50_000, 10_000),
        label_bytes=1 if classes == 10 else 2,
    )


_ALL = (
    # Checksums: torchvision/datasets/mnist.py. Mirrors: PyTorch's and the CVDF's, since the
    # original page (yann.lecun.com/exdb/mnist) no longer serves the files reliably.
    _idx(
        "mnist",
        ("MNIST/raw", "MNIST", "mnist/raw", "mnist"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    # Checksums and mirrors: the README of github.com/zalandoresearch/fashion-mnist.
    _idx(
        "fashion-mnist",
        (
            "FashionMNIST/raw",
            "FashionMNIST",
            "fashion-mnist/raw",
            "fashion-mnist",
            "fashion_mnist",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
    ),
    _cifar(
        10,
        "cifar-10-batches-bin",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
    _cifar(100, "cifar-100-binary", ("train.bin",), "test.bin", "03b5dce01913d631647c71ecec9e9cb8"),
)
SOURCES = {source.name: source for source in _ALL}
NAMES = get_args(DataName)
