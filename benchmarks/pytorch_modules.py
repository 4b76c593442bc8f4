"""PyTorch modules: conversion, symmetry and alignment of large ones, and the speed of small ones.

    python benchmarks/pytorch_modules.py planted --model resnet50 --plain --record
    python benchmarks/pytorch_modules.py planted --model resnet50 --toy
    python benchmarks/pytorch_modules.py speed --record
    taskset -c 0 python benchmarks/pytorch_modules.py speed --record
    python benchmarks/pytorch_modules.py merge --record

`planted` converts a model of the transformers library with random weights, finds and checks its
symmetry, plants a random permutation, recovers it, loads the aligned weights back and compares
PyTorch's own outputs; the same permutation is given to plain matching as published. One model per
process, so that the peak memory is its own. `speed` runs the forward pass and the gradient of a
ResNet20 and of a small ViT in PyTorch and converted, interleaved, on the cores that the process may
use; on one, its seconds are those of the processor, which other processes do not lengthen. The
gradient in a loop is that of a step of a fit, which runs its steps in one `lax.scan`. `merge`
averages two files of a large MLP while the memory that a process may allocate is limited to less
than three times the size of one. All need the extra `test-torch`.
"""

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
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

LOOP = 2  # steps in one loop
TOY = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 24}


def resnet50(toy: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    small = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]} if toy else {}
    config = transformers.ResNetConfig(num_labels=1000, **small)
    model = transformers.ResNetForImageClassification(config)
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


def bert(toy: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    small = {**TOY, "vocab_size": 60} if toy else {}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**small))
    return model, {"input_ids": torch.randint(3, 60, (2, 8))}


MODELS = {"resnet50": resnet50, "vit": vit, "gpt2": gpt2, "bert": bert}


def timed(row: dict[str, Any], name: str, run: Any) -> Any:
    """What a function returns; its seconds, and those of the processors, are added to the row."""
    began, used = time.perf_counter(), time.process_time()
    result = run()
    row[f"{name}_seconds"] = time.perf_counter() - began
    row[f"{name}_processor_seconds"] = time.process_time() - used
    return result


def planted(name: str, toy: bool, plain: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model, x = MODELS[name](toy)
    model.eval()
    arrays = {key: to_jax(tensor) for key, tensor in x.items()}
    row: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    network = timed(row, "convert", lambda: ob.networks.from_torch(model, x, output="logits"))
    symmetry = timed(row, "symmetry", lambda: ob.find_symmetry(network, x=arrays))
    p = symmetry.random(key=jax.random.key(0))
    moved = symmetry.act(p, network.params)
    state = None if network.state is None else symmetry.act_on_state(p, network.state)
    found = timed(
        row,
        "align",
        lambda: ob.align(moved, to=network.params, symmetry=symmetry, objective="l2"),
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
        run = plain_match(symmetry, *copies, "l2", max_sweeps=10)
        row["plain_seconds"] = run.seconds  # of the algorithm, without its scores
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


def looped(slope: Any) -> Any:
    """Steps along a gradient, as a fit takes them."""

    def steps(params: Any, x: jax.Array) -> Any:
        def step(params: Any, _: None) -> tuple[Any, None]:
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, slope(params, x)), None

        return jax.lax.scan(step, params, None, length=LOOP)[0]

    return steps


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
        steps = jax.jit(looped(slope))
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
            "gradients in a loop": lambda f=steps, n=network, a=arrays: jax.block_until_ready(
                f(n.params, a)
            ),
        }
        clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
        found_times = interleaved(runs, rounds, clock=clock)
        times = {key: float(np.median(own)) for key, own in found_times.items()}
        found[name] = {
            "seconds": times,
            "forward_ratio": times["forward"] / times["torch forward"],
            "gradient_ratio": times["gradient"] / times["torch gradient"],
            "loop_ratio": times["gradients in a loop"] / LOOP / times["torch gradient"],
        }
    return found


def merge_within(size_gib: float, share: float) -> dict[str, Any]:
    """Merge two files while no more than a part of their sizes may be allocated.

    The limit is on the data of the process (RLIMIT_DATA): files that are mapped do not count, since
    the system can drop their pages at any time; everything that is allocated does.
    """
    width = 4096
    layers = max(1, int(size_gib * 2**30 / 4 / width**2))
    names = [f"{i}.weight" for i in range(layers)]
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        orders = [rng.permutation(width) for _ in names]
        write_copies(Path(folder), names, orders, width)
        size = (Path(folder) / "a.safetensors").stat().st_size
        places = {f"units {i}": [(names[i], 0), (names[i + 1], 1)] for i in range(layers - 1)}
        shapes = {name: jax.ShapeDtypeStruct((width, width), np.float32) for name in names}
        ob.Symmetry.by_hand(shapes, places).save(f"{folder}/net.json")
        program = (
            "import resource, sys\n"
            "from onebasin.cli.main import main\n"
            "limit = int(sys.argv[1])\n"
            "resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))\n"
            "main(sys.argv[2:])\n"
        )
        command = ["merge", "a.safetensors", "b.safetensors", "--symmetry", "net.json",
                   "--out", "merged.safetensors"]  # fmt: skip
        limit = int(share * size)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program, str(limit), *command],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        equal = done.returncode == 0 and same_file(Path(folder), names)
    return {
        "file_gib": size / 2**30,
        "limit_in_files": share,
        "finished": done.returncode == 0,
        "recovered": equal,
        "seconds": seconds,
        "error": done.stderr[-300:],
    }


def write_copies(folder: Path, names: list[str], orders: list[np.ndarray], width: int) -> None:
    """A file of square layers, and a copy with its hidden units permuted, one tensor at a time."""
    from onebasin.checkpoints.layout import layout_of, write_like

    template = {name: np.broadcast_to(np.float32(0), (width, width)) for name in names}
    layout = layout_of(template, {"format": "pt"})

    def tensors(move: bool) -> Any:
        for name in layout.in_order():
            i = names.index(name)
            own = np.random.default_rng(i).standard_normal((width, width), np.float32)
            if move and i < len(names) - 1:
                own = own[orders[i]]
            if move and i > 0:
                own = own[:, orders[i - 1]]
            yield name, own

    write_like(folder / "a.safetensors", layout, tensors(False))
    write_like(folder / "b.safetensors", layout, tensors(True))


def same_file(folder: Path, names: list[str]) -> bool:
    """Whether the average of the copies is the first of them."""
    from safetensors import safe_open

    with (
        safe_open(folder / "a.safetensors", "np") as a,
        safe_open(folder / "merged.safetensors", "np") as merged,
    ):
        return all(np.array_equal(a.get_tensor(n), merged.get_tensor(n)) for n in names)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["planted", "speed", "merge"])
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--toy", action="store_true", help="a few seconds, to try the script")
    parser.add_argument("--plain", action="store_true", help="plain matching too, which is slow")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--record", action="store_true", help="add to results/pytorch_modules.json")
    config = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if config.what == "planted":
        name, figures = config.model, planted(config.model, config.toy, config.plain)
    elif config.what == "speed":
        name, figures = f"speed_{cores}_core", speed(config.toy, config.rounds)
    else:
        name, figures = "merge", merge_within(0.1 if config.toy else 1.5, 20 if config.toy else 2.9)
    figures = {**figures, "cores_used": cores, "machine": describe()}
    print(json.dumps({name: figures}, indent=2))
    if config.record and not config.toy:
        record("pytorch_modules", {name: figures})


if __name__ == "__main__":
    main()
