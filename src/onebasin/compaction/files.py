"""Draws in a posterior file, mapped rather than read: only what is looked at takes memory."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onebasin.posterior.files import PosteriorFileError, load, read_header
from onebasin.posterior.samples import Samples
from onebasin.posterior.structure import rebuild

DTYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I32": np.int32, "I64": np.int64}


def open_posterior(path: Path) -> Any:
    """The posterior of a file; the draws of `Samples` stay in it, as memory maps."""
    header = read_header(path)
    if header.kind != "Samples":
        return load(path)
    arrays = _mapped(path)
    trees = {
        name: rebuild(
            shape,
            {
                key.removeprefix(f"{name}/"): array
                for key, array in arrays.items()
                if key.startswith(f"{name}/")
            },
        )
        for name, shape in header.description["trees"].items()
    }
    return Samples(trees["draws"], arrays["chain"], trees.get("state"))  # pyright: ignore


def chains_of(samples: Samples, chains: Sequence[int]) -> list[Samples]:
    """The draws of some chains, one `Samples` for each stretch of draws; nothing is copied."""
    wanted = np.flatnonzero(np.isin(np.asarray(samples.chain), chains))
    stretches = np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1) if len(wanted) else []

    def part(stretch: np.ndarray) -> Samples:
        at = slice(int(stretch[0]), int(stretch[-1]) + 1)
        trees = jax.tree.map(lambda leaf: leaf[at], (samples.draws, samples.state))
        return Samples(trees[0], samples.chain[at], trees[1])

    return [part(stretch) for stretch in stretches]


def _mapped(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file: 8 bytes of length, a JSON header, then the numbers."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    arrays = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise PosteriorFileError(
                f"{path}: '{name}' holds {entry['dtype']}, which cannot be mapped; "
                "load it and save it as float32"
            )
        begin, _ = entry["data_offsets"]
        shape = tuple(entry["shape"])
        arrays[name] = np.memmap(path, DTYPES[entry["dtype"]], "r", 8 + length + begin, shape)
    return arrays
