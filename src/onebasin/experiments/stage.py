"""A stage: a pure function of a typed config and of files that earlier stages wrote.

A stage function is `function(config, inputs, work) -> dict`: `config` is a frozen dataclass,
`inputs` maps names to files, its own files go into `work.folder`, and the returned dictionary can
be written as JSON. It is defined at module level and uses no globals, so that it can be pickled.

The key of a stage is a digest of its name and version, its config, the data that the config names
and the keys of its inputs. Whatever changes a result changes the key, and nothing else does.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from onebasin.experiments.setting import Setting, fingerprint, is_here
from onebasin.experiments.speed import speed
from onebasin.pickling import PickledByFields
from onebasin.progress import ProgressStyle

RESULT = "result.json"
USUAL_DEVICES = 4  # as many as the commands offer


@dataclass(frozen=True)
class Work:
    """Where a stage function writes its files, and whether it reports progress."""

    folder: Path
    quiet: bool = False
    checkpoint_interval: float = 60.0
    """Seconds between the checkpoints of a fit."""

    @property
    def progress(self) -> ProgressStyle:
        """The `progress` argument of what the stage calls."""
        return "silent" if self.quiet else "auto"


def step(
    *,
    version: int,
    seconds: Callable[[Any], float],
    resumes: bool = False,
    spreads: Callable[[Any], int] | None = None,
) -> Callable[[Callable], Callable]:
    """Make a function a stage function.

    `version` is increased whenever the function would give another result. `seconds(config)`
    estimates the time on the reference machine of `speed`. With `resumes`, an interrupted stage
    finds the files it had written so far in its folder. `spreads(config)` is the number of
    computations that are spread over the devices: how many share a device changes their rounding.
    """

    def mark(function: Any) -> Callable:
        function.version, function.seconds, function.resumes = version, seconds, resumes
        function.spreads = spreads
        return function

    return mark


@dataclass(frozen=True)
class File:
    """A file that a stage writes."""

    stage: "Stage"
    name: str


@dataclass(frozen=True)
class Stage(PickledByFields):
    """A stage function with its config and inputs; `stage["name"]` is a file that it writes.

    Where it is unpickled its key is computed anew: data and devices may be others.
    """

    function: Any
    """Marked by `step`, which sets its `version`, `seconds`, `resumes` and `spreads`."""
    config: Any
    inputs: Mapping[str, File] = field(default_factory=dict)

    def __getitem__(self, name: str) -> File:
        return File(self, name)

    @property
    def name(self) -> str:
        return self.function.__name__.replace("_", "-")

    @property
    def title(self) -> str:
        title = getattr(self.config, "title", "")
        return f"{self.name}: {title}" if title else self.name

    @property
    def seconds(self) -> float:
        """The estimated time on this machine."""
        return float(self.function.seconds(self.config)) / speed()

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets that the config names."""
        return tuple(sorted({setting.data for setting in _settings(self.config)}))

    @property
    def data_is_here(self) -> bool:
        return all(is_here(name) for stage in self.lineage() for name in stage.data)

    def description(self) -> dict[str, Any]:
        """The content of which the key is a digest."""
        return {
            "stage": self.name,
            "version": self.function.version,
            "config": encode(self.config),
            "data": {name: fingerprint(name) for name in self.data},
            "inputs": {name: [f.stage.key, f.name] for name, f in sorted(self.inputs.items())},
            **self._devices(),
        }

    def _devices(self) -> dict[str, int]:
        """The number of devices, where the result depends on it.

        It does where a device has to hold more or fewer computations than usual; so the keys of
        earlier records stay as they were.
        """
        if self.function.spreads is None:
            return {}
        count, here = self.function.spreads(self.config), len(jax.devices())
        same = -(-count // here) == -(-count // USUAL_DEVICES)
        return {} if same else {"devices": here}

    @cached_property
    def key(self) -> str:
        text = json.dumps(self.description(), sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def lineage(self) -> list["Stage"]:
        """The stages that this one needs, in execution order, and itself last."""
        before = [stage for f in self.inputs.values() for stage in f.stage.lineage()]
        return [*dict.fromkeys(before), self]

    def __hash__(self) -> int:
        return hash((self.function, self.config, tuple(sorted(self.inputs.items()))))


def fewest_devices(stages: Iterable[Stage]) -> int:
    """On so few devices all stages would have the results, and the keys, that they have here."""
    counts = {s.function.spreads(s.config) for s in stages if s.function.spreads is not None}

    def held(devices: int) -> list[int]:
        return [-(-count // devices) for count in sorted(counts)]

    here = len(jax.devices())
    return next(devices for devices in range(1, here + 1) if held(devices) == held(here))


def encode(value: Any) -> Any:
    """A config as JSON; dataclasses keep their type names, so that two types never coincide."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: encode(getattr(value, f.name)) for f in fields(value)}
        return {"type": type(value).__name__, **own}
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(
        f"a config may hold plain values and dataclasses, but not a {type(value).__name__}"
    )


def _settings(config: Any) -> list[Setting]:
    if isinstance(config, Setting):
        return [config]
    if is_dataclass(config):
        return [s for f in fields(config) for s in _settings(getattr(config, f.name))]
    return [s for item in config for s in _settings(item)] if isinstance(config, tuple) else []
