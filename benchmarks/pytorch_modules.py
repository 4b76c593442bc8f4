"""PyTorch modules: conversion, symmetry and alignment of large ones, and the speed of small ones.

    python benchmarks/pytorch_modules.py planted --model resnet50 --out results/pytorch_modules.json
    python benchmarks/pytorch_modules.py planted --model resnet50 --toy
    python benchmarks/pytorch_modules.py speed --out results/pytorch_modules.json

`planted` converts a model of the transformers library with random weights, finds and checks its
symmetry, plants a random permutation, recovers it, loads the aligned weights back and compares
PyTorch's own outputs; the same permutation is given to plain matching as published. One model per
process, so that the peak memory is its own. `speed` runs the forward pass and the gradient of a
ResNet20 and of a small ViT in PyTorch and converted, interleaved. Both need the extra `test-torch`.
"""

import argparse
import copy
import resource
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from torch import nn

import onebasin as ob
from machine import describe, interleaved, record
from onebasin.pytorch_tensors import to_jax
from plain_matching import plain_match

TOY = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 24}


def resnet50(toy: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    small = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]} if toy else {}
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**small))
    return model, {"pixel_values": torch.randn(2, 3, 64, 64)}


def vit(toy: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    small = {**TOY, "image_size": 32} if toy else {}
    config = transformers.ViTConfig(**small)
    model = transformers.ViTForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, config.image_size, config.image_size)}


def gpt2(toy: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    small = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 60} if toy else {}
    config = transformers.GPT2Config(
        use_cache=False, bos_token_id=1, eos_token_id=2, pad_token_id=0, **small
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(3, 60, (2, 8))}


MODELS = {"resnet50": resnet50, "vit": vit, "gpt2": gpt2}


def seconds_of(run: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    return run(), time.perf_counter() - began


def planted(name: str, toy: bool, plain: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model, x = MODELS[name](toy)
    model.eval()
    arrays = {key: to_jax(tensor) for key, tensor in x.items()}
    row: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    network, row["convert_seconds"] = seconds_of(
        lambda: ob.networks.from_torch(model, x, output="logits")
    )
    symmetry, row["symmetry_seconds"] = seconds_of(lambda: ob.find_symmetry(network, x=arrays))
    p = symmetry.random(key=jax.random.key(0))
    moved = symmetry.act(p, network.params)
    state = None if network.state is None else symmetry.act_on_state(p, network.state)
    found, row["align_seconds"] = seconds_of(
        lambda: ob.align(moved, to=network.params, symmetry=symmetry, objective="l2")
    )
    inverse = symmetry.inverse(p)
    row["groups"] = len(symmetry.groups)
    row["recovered"] = sum(
        np.array_equal(found.permutation[g.name], inverse[g.name]) for g in symmetry.groups
    )
    row["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    back = None if state is None else symmetry.act_on_state(found.permutation, state)
    target = network.load_into(copy.deepcopy(model), moved, state)
    aligned = network.load_into(copy.deepcopy(model), found.posterior, back)
    with torch.no_grad():
        expected = model(**x).logits
        for key, other in (("moved_change", target), ("aligned_change", aligned)):
            change = (other(**x).logits - expected).abs().max() / expected.abs().max()
            row[key] = float(change)
    if plain:
        copies = [ob.Samples(jax.tree.map(lambda a: a[None], t)) for t in (moved, network.params)]
        run, row["plain_seconds"] = seconds_of(
            lambda: plain_match(symmetry, *copies, "l2", max_sweeps=10)
        )
        row["plain_recovered"] = sum(
            np.array_equal(run.permutation[g.name], inverse[g.name]) for g in symmetry.groups
        )
    return row


class ResNet20(nn.Module):
    """The ResNet20 of CIFAR-10 (He et al. 2016), with batch normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        blocks, inputs = [], width
        for stage in range(3):
            for block in range(3):
                outputs = width * 2**stage
                blocks.append(Block(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.blocks, self.out = nn.Sequential(*blocks), nn.Linear(inputs, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.c2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity()
        if inputs != outputs:
            self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n2(self.c2(torch.relu(self.n1(self.c1(x)))))
        return torch.relu(h + self.short(x))


def speed(toy: bool, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=4, intermediate_size=128,
        image_size=32, patch_size=4, num_labels=10,
    )  # fmt: skip
    rows = 4 if toy else 64
    modules = {
        "resnet20": (ResNet20(16), None),
        "vit": (transformers.ViTForImageClassification(config), "logits"),
    }
    found: dict[str, Any] = {}
    for name, (module, output) in modules.items():
        module.eval()
        x = torch.randn(rows, 3, 32, 32)
        network = ob.networks.from_torch(module, x, output=output)
        rest = () if network.state is None else (network.state,)
        forward = jax.jit(lambda p, a, n=network, r=rest: n.apply(p, a, *r))
        slope = jax.jit(
            jax.grad(lambda p, a, n=network, r=rest: jnp.sum(jnp.square(n.apply(p, a, *r))))
        )
        arrays = to_jax(x)

        def plain(module=module, x=x, output=output):
            out = module(x)
            return out if output is None else out[output]

        def eager(plain=plain):
            with torch.no_grad():
                plain()

        def backward(plain=plain, module=module):
            module.zero_grad()
            plain().square().sum().backward()

        runs = {
            "torch forward": eager,
            "forward": lambda f=forward, n=network, a=arrays: f(n.params, a).block_until_ready(),
            "torch gradient": backward,
            "gradient": lambda f=slope, n=network, a=arrays: jax.block_until_ready(f(n.params, a)),
        }
        times = {key: float(np.median(own)) for key, own in interleaved(runs, rounds).items()}
        found[name] = {
            "seconds": times,
            "forward_ratio": times["forward"] / times["torch forward"],
            "gradient_ratio": times["gradient"] / times["torch gradient"],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["planted", "speed"])
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--toy", action="store_true", help="a few seconds, to try the script")
    parser.add_argument(
        "--plain", action="store_true", help="plain matching as well, which is slow"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    config = parser.parse_args()
    if config.what == "planted":
        figures = {config.model: planted(config.model, config.toy, config.plain)}
    else:
        figures = {"speed": speed(config.toy, config.rounds)}
    print(figures)
    if config.out:
        record(config.out.stem, {**figures, "machine": describe()})


if __name__ == "__main__":
    main()
