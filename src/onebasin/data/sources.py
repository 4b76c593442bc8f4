"""Which files make up each published data set, what they are called and where they can be had."""

from dataclasses import dataclass
from typing import Literal, get_args

from onebasin.choices import DataName


@dataclass(frozen=True)
class Download:
    """A published file: its name, the MD5 its publisher states, and mirrors to try in order."""

    name: str
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A published image data set.

    `train` and `test` name the files that are read; `folders` are the places under a root where
    publishers, torchvision and people put them ("" is the root itself, and last, because a name
    such as train.bin says little); `published` counts (train, test) examples.
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

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that is read, training ones first."""
        return self.train + self.test

    @property
    def archive(self) -> str | None:
        """The tar archive the files may also be read from."""
        return self.downloads[0].name if self.format == "cifar" else None


_IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_downloads(md5s: tuple[str, ...], mirrors: tuple[str, ...]) -> tuple[Download, ...]:
    names = [f"{name}.gz" for name in _IDX_TRAIN + _IDX_TEST]
    return tuple(
        Download(name, md5, tuple(mirror + name for mirror in mirrors))
        for name, md5 in zip(names, md5s, strict=True)
    )


# MD5s: torchvision/datasets/mnist.py. Mirrors: PyTorch's and the CVDF's, since the original
# page (yann.lecun.com/exdb/mnist) no longer serves the files reliably.
MNIST = Source(
    name="mnist",
    format="idx",
    train=_IDX_TRAIN,
    test=_IDX_TEST,
    folders=("MNIST/raw", "MNIST", "mnist/raw", "mnist", ""),
    downloads=_idx_downloads(
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    num_classes=10,
    published=(60_000, 10_000),
)

# MD5s and mirrors: the README of github.com/zalandoresearch/fashion-mnist (also in torchvision).
FASHION_MNIST = Source(
    name="fashion-mnist",
    format="idx",
    train=_IDX_TRAIN,
    test=_IDX_TEST,
    folders=(
        "FashionMNIST/raw",
        "FashionMNIST",
        "fashion-mnist/raw",
        "fashion-mnist",
        "fashion_mnist",
        "",
    ),
    downloads=_idx_downloads(
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
    ),
    num_classes=10,
    published=(60_000, 10_000),
)

# MD5s: the tables of www.cs.toronto.edu/~kriz/cifar.html, "binary version". That address now
# redirects to cave.cs.toronto.edu, which is the second mirror.
CIFAR10 = Source(
    name="cifar10",
    format="cifar",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", ""),
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
            ),
        ),
    ),
    num_classes=10,
    published=(50_000, 10_000),
)

CIFAR100 = Source(
    name="cifar100",
    format="cifar",
    train=("train.bin",),
    test=("test.bin",),
    folders=("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100", ""),
    downloads=(
        Download(
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-100-binary.tar.gz",
            ),
        ),
    ),
    num_classes=100,
    published=(50_000, 10_000),
    label_bytes=2,
)

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)}
NAMES = get_args(DataName)
