"""What is fitted, as a plain value: data set, network, prior and temperature."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from onebasin.choices import DataName, NetworkName
from onebasin.data import Dataset, load_dataset, pydoc
from onebasin.data.inventory import describe
from onebasin.networks import GPT, MLP, LeNet, ResNet20, ViT, network_named
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry, find_symmetry

SHAPES = {
    "digits": (8, 8, 1),
    "mnist": (28, 28, 1),
    "fashion-mnist": (28, 28, 1),
    "pydoc": (pydoc.LENGTH,),
}
TITLES = {
    "digits": "digits",
    "pydoc": "Python's reference",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
}
TRAIN_EXAMPLES = {"digits": 1442, "cifar10": 50_000, "cifar100": 50_000}
TEST_EXAMPLES = {"digits": 355}
NETWORKS = {"lenet": "LeNet", "resnet20": "ResNet20", "vit": "ViT", "gpt": "GPT"}
CLASSES = {"cifar100": 100, "pydoc": len(pydoc.ALPHABET)}  # 10 of all others


@dataclass(frozen=True)
class Setting:
    """A network on a data set with a prior; `problem` builds the `Problem`."""

    data: DataName
    network: NetworkName = "mlp"
    width: int = 512
    depth: int = 3
    """Number of hidden layers of the MLP."""
    prior_variance: float = 0.01
    temperature: float = 1.0
    limit: int | None = None
    """Use only this many training examples, the first ones."""

    @property
    def num_train(self) -> int:
        if self.data == "pydoc":
            return self.limit or pydoc.counts()[0]
        return self.limit or TRAIN_EXAMPLES.get(self.data, 60_000)

    @property
    def num_test(self) -> int:
        if self.data == "pydoc":
            return pydoc.counts()[1]
        return TEST_EXAMPLES.get(self.data, 10_000)

    @property
    def network_title(self) -> str:
        if self.network == "mlp":
            return f"MLP {self.depth}×{self.width}"
        if self.network in ("vit", "gpt"):
            return f"{NETWORKS[self.network]} {self.depth}×{self.width}"
        return f"{NETWORKS[self.network]} (width {self.width})"

    @property
    def title(self) -> str:
        few = "" if self.limit is None else f" (first {self.limit:,} {self.things})"
        cold = "" if self.temperature == 1 else f", temperature {self.temperature:g}"
        return f"{self.network_title} on {TITLES[self.data]}{few}{cold}"

    @property
    def things(self) -> str:
        """What the examples are."""
        return "sequences" if self.data == "pydoc" else "images"

    def module(self, num_classes: int) -> MLP | LeNet | ResNet20 | ViT | GPT:
        """The Flax module."""
        return network_named(
            self.network, width=self.width, depth=self.depth, num_classes=num_classes
        )

    def same_size(self, other: "Setting") -> bool:
        """Whether data set, network and temperature equal those of `other`, the published ones.

        False if the files on this machine hold only part of the published data set.
        """
        fields = ("data", "network", "width", "depth", "limit", "temperature")
        if any(getattr(self, name) != getattr(other, name) for name in fields):
            return False
        whole = replace(self, limit=None).num_train
        recorded = _recorded_sizes.get()
        if recorded is not None:
            return recorded.get(self.data, whole) >= whole
        return not is_here(self.data) or len(dataset(self.data).train.y) >= whole


@dataclass(frozen=True)
class TransformerSetting(Setting):
    """The same with what a transformer has besides its width and depth.

    A class of its own, since `Setting` as it is identifies the stages of committed records.
    """

    heads: int = 4
    norm: str = "layer"
    patch: int = 4
    """Side of the patches of the ViT."""

    @property
    def network_title(self) -> str:
        words = [f"patch {self.patch}"] if self.network == "vit" else []
        words += ["RMSNorm"] if self.norm == "rms" else []
        more = f" ({', '.join(words)})" if words else ""
        return f"{NETWORKS[self.network]} {self.depth}×{self.width}{more}"

    def module(self, num_classes: int) -> ViT | GPT:
        """The Flax module."""
        shared = {"width": self.width, "depth": self.depth, "heads": self.heads, "norm": self.norm}
        if self.network == "vit":
            return ViT(patch=self.patch, num_classes=num_classes, **shared)  # pyright: ignore[reportArgumentType]
        return GPT(context=pydoc.LENGTH, num_classes=num_classes, **shared)  # pyright: ignore[reportArgumentType]


_recorded_sizes: ContextVar[Mapping[str, int] | None] = ContextVar("sizes", default=None)


@contextmanager
def sizes_of_record(record: Mapping[str, Any]) -> Iterator[None]:
    """Judge by the numbers of examples in a record, whatever data are on this machine."""
    sizes = {name: found["train"] for name, found in record["data"].items()}
    token = _recorded_sizes.set(sizes)
    try:
        yield
    finally:
        _recorded_sizes.reset(token)


@lru_cache(maxsize=2)
def dataset(name: DataName) -> Dataset:
    data = load_dataset(name)
    is_here.cache_clear()  # loading may have downloaded it
    return data


@lru_cache(maxsize=16)
def problem(setting: Setting) -> Problem:
    """The problem of a setting, cached so that stages of one setting share compiled programs."""
    whole = dataset(setting.data)
    data = load_dataset(setting.data, limit=setting.limit) if setting.limit else whole
    return Problem.from_network(
        setting.module(whole.num_outputs),
        data,
        prior_variance=setting.prior_variance,
        temperature=setting.temperature,
    )


@lru_cache(maxsize=16)
def symmetry(setting: Setting) -> Symmetry:
    return find_symmetry(problem(setting))


@lru_cache(maxsize=8)
def is_here(name: str) -> bool:
    """Whether a data set is on this machine, without reading or downloading it."""
    return any(found.name == name and found.place != "nowhere" for found in describe())


def examples(name: str) -> dict[str, Any]:
    """The number of examples that a data set has on this machine, and a digest of them."""
    data = dataset(name)
    return {"train": len(data.train.y), "test": len(data.test.y), "digest": fingerprint(name)}


@lru_cache(maxsize=8)
def fingerprint(name: str) -> str:
    """A digest of all examples of a data set."""
    digest = hashlib.sha256()
    data = dataset(name)
    for array in (data.train.x, data.train.y, data.test.x, data.test.y):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


@lru_cache(maxsize=64)
def flops(setting: Setting) -> float:
    """Floating-point operations of the forward pass of one example; needs no data."""
    net = setting.module(CLASSES.get(setting.data, 10))
    x = jax.ShapeDtypeStruct((1, *SHAPES.get(setting.data, (32, 32, 3))), np.float32)
    params = jax.eval_shape(net.init, jax.random.key(0), x)
    analysis = jax.jit(net.apply).lower(params, x).cost_analysis() or {}
    return float(analysis.get("flops", 0.0))


def gradient_flops(setting: Setting) -> float:
    """Operations of the gradient of one example.

    Three forward passes, without the gradient with respect to the image.
    """
    to_image = 2 * math.prod(SHAPES.get(setting.data, (32, 32, 3))) * setting.width
    return 3 * flops(setting) - (to_image if setting.network == "mlp" else 0)
