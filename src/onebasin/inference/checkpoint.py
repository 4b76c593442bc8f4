"""Checkpoints: the states of all replicas and the settings of the fit, in one file.

A checkpoint is a safetensors file with arrays by key path and JSON in its header. It is replaced
atomically: at whatever moment a process is killed, the file is the last complete checkpoint.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; an incomplete or damaged one is refused."""
    try:
        header, arrays = read_tensors(path)
        header.check_form(FORMAT, VERSION, "a checkpoint of OneBasin")
        if any(name.startswith("record/") for name in arrays):
            raise TensorFileError(f"{path} is of chains that an earlier OneBasin has not finished")
        match header.json("body", dict):
            case {"step": int(step), "config": dict(config), "history": list(history)}:
                return Checkpoint(step, config, history, arrays)
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
