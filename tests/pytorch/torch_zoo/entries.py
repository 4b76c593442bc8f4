"""How an entry of the zoo is written.

The places of a group are words. `layer` stands for the first axis of what the layer has: weight,
bias, and running statistics; `>layer` for the second axis of its weight, along which it reads
units; `name[axis]` for one axis of one parameter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

OWN = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class Entry:
    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    groups: tuple[tuple[int, str], ...]
    output: str | int | None = None
    single: bool = False
    """The module itself computes in single precision somewhere, whatever its params."""


ZOO: list[Entry] = []


def entry(*groups: tuple[int, str], output: str | int | None = None, single: bool = False) -> Any:
    """Add the module that a function builds to the zoo, with its groups."""

    def register(build: Callable[[], tuple[nn.Module, Any]]) -> Any:
        ZOO.append(Entry(build.__name__, build, groups, output, single))
        return build

    return register


def made(entry: Entry) -> tuple[nn.Module, Any]:
    """The module in evaluation mode with weights that hide nothing, and an example."""
    torch.manual_seed(0)
    module, x = entry.build()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim <= 1:  # biases are not all zero, gains not all one
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(0.1 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("running_var"):
                buffer.mul_(1 + 0.3 * torch.rand(buffer.shape, generator=generator))
    return module.eval(), x


def places(words: str, params: Mapping[str, Any], state: Mapping[str, Any]) -> frozenset[str]:
    """The places that the words of a group stand for."""
    found: set[str] = set()
    for word in words.split():
        if word.endswith("]"):
            found.add(word)
        elif word.startswith(">"):
            found.add(f"{word[1:]}.weight[1]")
        else:
            own = [f"{word}.{part}" for part in OWN]
            some = {f"{name}[0]" for name in own if name in params}
            some |= {f"state:{name}[0]" for name in own if name in state}
            assert some, f"there is no layer {word}"
            found |= some
    return frozenset(found)


def attention(
    heads: int, size: int, q: str, k: str, v: str, out: str
) -> tuple[tuple[int, str], ...]:
    """The groups inside attention: heads, dimensions of queries and keys, and those of values."""
    return (
        (heads, f"{q} {k} {v} >{out}"),
        (size, f"{q} {k}"),
        (size, f"{v} >{out}"),
    )


def image(channels: int, side: int, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, channels, side, side, generator=torch.Generator().manual_seed(2))


def tokens(vocabulary: int, rows: int = 2, length: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, vocabulary, (rows, length), generator=generator)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))
