"""Networks to and from dictionaries that can be written as JSON.

    {"kind": "MLP", "widths": [512, 512, 512], "num_classes": 10, "activation": "relu",
     "input_shape": [28, 28, 1]}

`input_shape` (of one example) is optional: tracing needs it, the network does not. A network of
one's own is recorded by the place of the function that makes it (`onebasin.networks.own`):

    {"kind": "own", "source": "net.py:make_network", "digest": "sha256:…", "input_shape": [13]}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from onebasin.networks.checks import check_counts
from onebasin.networks.gpt import GPT
from onebasin.networks.lenet import LeNet
from onebasin.networks.mlp import MLP
from onebasin.networks.own import Place
from onebasin.networks.resnet import ResNet20
from onebasin.networks.vit import ViT

KINDS = {"MLP": MLP, "LeNet": LeNet, "ResNet20": ResNet20, "ViT": ViT, "GPT": GPT}
OWN = "own"  # the kind of a network of one's own
_FLAX_FIELDS = {"parent", "name"}


def to_config(
    network: nn.Module | str, input_shape: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """The config of one of our networks, or of your own, named as "./net.py:make_network".

    >>> to_config(MLP(widths=(8,)), (8, 8, 1))["widths"]
    [8]
    """
    if isinstance(network, str):
        if input_shape is None:
            raise ValueError(f"the config of {network} needs the input_shape of one example")
        check_counts(network, "input_shape", input_shape)
        place = Place.of(network)
        record = {"kind": OWN, "source": str(place), "digest": place.digest()}
        return {**record, "input_shape": [int(n) for n in input_shape]}
    kind = type(network).__name__
    if KINDS.get(kind) is not type(network):
        raise ValueError(
            f"only {', '.join(KINDS)} have a config, got {kind}; name the function that makes your "
            "own network, as in to_config('./net.py:make_network', input_shape)"
        )
    config: dict[str, Any] = {"kind": kind}
    for field in _fields(type(network)):
        value = getattr(network, field)
        config[field] = list(value) if isinstance(value, tuple) else value
    if input_shape is not None:
        check_counts(kind, "input_shape", input_shape)
        config["input_shape"] = [int(n) for n in input_shape]
    return config


def from_config(config: Mapping[str, Any]) -> MLP | LeNet | ResNet20 | ViT | GPT:
    """The network that a config describes; omitted fields take their defaults."""
    if not isinstance(config, Mapping):
        raise ValueError(f"a network config must be a dictionary, got {type(config).__name__}")
    kind = config.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"network kind must be one of {', '.join(KINDS)}, got {kind!r}")
    get_input_shape(config)
    values = {key: value for key, value in config.items() if key not in ("kind", "input_shape")}
    known = _fields(KINDS[kind])
    for key in values:
        if key not in known:
            raise ValueError(f"{kind} has no field {key!r}; it has {', '.join(known)}")
    # JSON turns tuples into lists. The network itself checks all other types.
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return KINDS[kind](**values)


def get_input_shape(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of one example, if the config has it."""
    shape = config.get("input_shape")
    if shape is None:
        return None
    check_counts(str(config.get("kind")), "input_shape", shape)
    return tuple(shape)


def _fields(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name not in _FLAX_FIELDS]
