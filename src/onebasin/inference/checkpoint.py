"""Checkpoints: the states of all replicas and the settings of the fit, in one file.

A checkpoint is a safetensors file with arrays by key path and JSON in its header. It is replaced
atomically: at whatever moment a process is killed, the file is the last complete checkpoint.

Where several processes share a fit, each writes the states of its own replicas to a part beside the
checkpoint. The checkpoint then holds the names of the parts, and is replaced once all are complete.
Any number of processes can go on from there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.atomic import sweep
from onebasin.posterior import read_header
from onebasin.tensor_files import (
    REPLACE,
    TensorFileError,
    read_tensors,
    to_json,
    write_tensors,
)
from onebasin.trees import PyTree, first_difference, leaves_by_path, shapes_by_path, with_leaves

FORMAT = "onebasin-checkpoint"
PART = "onebasin-checkpoint-part"
NUMBERS = r"\.\d+-\d+"  # at the end of the name of a part: its step and first replica
VERSION = 2  # the first has no checksums, and for chains the statistics of their draws


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or belongs to another fit."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file."""

    step: int
    config: dict[str, Any]
    history: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]
    layout: dict[str, int] = field(default_factory=dict)
    """How the replicas were spread over devices; empty in earlier files."""

    def states(self, like: PyTree) -> PyTree:
        """The states, with a leading axis of replicas, in the containers of `like`."""
        prefix = "state/"
        found = {name: array for name, array in self.arrays.items() if name.startswith(prefix)}
        arrays = {name.removeprefix(prefix): array for name, array in found.items()}
        shapes = {name: array.shape for name, array in arrays.items()}
        difference = first_difference(shapes_by_path(like), shapes)
        if difference:
            raise CheckpointError(
                f"the checkpoint does not match this fit: {difference}; overwrite it to start again"
            )
        return with_leaves(like, arrays)


def write_checkpoint(path: Path, body: dict[str, Any], states: PyTree) -> None:
    """Write a checkpoint; `body` has the step, config and history."""
    tensors = {f"state/{name}": leaf for name, leaf in leaves_by_path(states).items()}
    header = {"format": FORMAT, "version": str(VERSION), "body": to_json(body, "checkpoint")}
    write_tensors(path, tensors, header)


def part_of(path: Path, step: int, first: int) -> Path:
    """The part of a checkpoint with the replicas from `first` on."""
    return path.with_name(f"{path.name}.{step}-{first}")


def write_part(path: Path, step: int, first: int, states: PyTree) -> None:
    """Write the states of one process's replicas, the first of which is `first`."""
    tensors = {f"state/{name}": leaf for name, leaf in leaves_by_path(states).items()}
    header = {"format": PART, "version": str(VERSION)}
    write_tensors(part_of(path, step, first), tensors, header)


def write_index(path: Path, body: dict[str, Any], firsts: Sequence[int]) -> None:
    """Replace the checkpoint by one that consists of parts, and remove those of the last one."""
    parts = [part_of(path, body["step"], first).name for first in firsts]
    header = {"format": FORMAT, "version": str(VERSION)}
    write_tensors(path, {}, {**header, "body": to_json({**body, "parts": parts}, "checkpoint")})
    remove_parts(path, keep=parts)


def remove_parts(path: Path, keep: Sequence[str] = ()) -> None:
    """Remove the parts of a checkpoint, except some."""
    sweep(path, NUMBERS)
    ours = re.compile(re.escape(path.name) + NUMBERS)
    for other in path.parent.iterdir():
        if ours.fullmatch(other.name) and other.name not in keep:
            other.unlink(missing_ok=True)


def _joined(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of all parts, joined along the axis of replicas."""
    parts = []
    for name in names:
        header, arrays = read_tensors(path.with_name(name))
        header.check_form(PART, VERSION, "a part of a checkpoint of OneBasin")
        parts.append(arrays)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; an incomplete or damaged one is refused."""
    try:
        header, arrays = read_tensors(path)
        header.check_form(FORMAT, VERSION, "a checkpoint of OneBasin")
        if any(name.startswith("record/") for name in arrays):
            raise TensorFileError(f"{path} is of chains that an earlier OneBasin has not finished")
        body = header.json("body", dict)
        if parts := body.get("parts"):
            arrays = _joined(path, parts)
        match body:
            case {"step": int(step), "config": dict(config), "history": list(history)}:
                return Checkpoint(step, config, history, arrays, body.get("layout", {}))
        raise TensorFileError(f"{path} has a damaged header: it lacks step, config or history")
    except TensorFileError as error:
        text = str(error).removesuffix(f"; {REPLACE}")
        raise CheckpointError(f"{text}; delete the checkpoint and start again") from None


def settings_of(path: Path) -> dict[str, Any]:
    """The settings of the fit that wrote a posterior file."""
    return read_header(path).provenance.get("fit", {})


def check_same_fit(
    saved: dict[str, Any], config: dict[str, Any], where: str, *, longer: bool = False
) -> None:
    """Raise if the settings differ; the message names the first one that does.

    With `longer`, chains may be asked for more draws than before: a chain does not depend on their
    total number.
    """
    before, now = saved.get("method", {}), config["method"]
    if longer and before.get("draws", 0) < now.get("draws", 0):
        saved = {**saved, "method": {**before, "draws": now["draws"]}}
    difference = _difference(saved, config)
    if difference:
        raise CheckpointError(
            f"{where} belongs to another fit: {difference}; "
            "give the same settings, or overwrite it to start again"
        )


def _difference(saved: Any, now: Any, name: str = "") -> str | None:
    if isinstance(saved, dict) and isinstance(now, dict):
        for key in [*saved, *(k for k in now if k not in saved)]:
            found = _difference(saved.get(key), now.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return None
    return None if saved == now else f"{name} was {saved!r} and is {now!r}"
