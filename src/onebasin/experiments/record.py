"""Records of experiments on disk: versioned JSON, whose parts can be read back as outcomes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebasin import __version__

if TYPE_CHECKING:
    from onebasin.experiments.stage import Stage

RECORD_VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """What a stage produced: the numbers it returned, its files, its cost."""

    result: dict[str, Any]
    folder: Path
    seconds: float
    key: str
    machine: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.result[name]


def versions() -> dict[str, str]:
    import jax  # here, so that reading a record imports nothing heavy

    return {"onebasin": __version__, "jax": jax.__version__}


def check_same(path: Path, made: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a file or folder that was made with other versions or another preset."""
    for name, value in now.items():
        if made.get(name) != value:
            raise ValueError(
                f"{path} was made with {name} {made.get(name)}, but this is {name} {value}; "
                "choose another folder with --out"
            )


def read_record(path: Path) -> dict[str, Any]:
    """A record, or an error that says why the file is not one."""
    try:
        record = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{path} is not JSON; give a record written by reproduce") from None
    if not isinstance(record, dict) or record.get("record") != RECORD_VERSION:
        raise ValueError(f"{path} is not a record of an experiment; give one written by reproduce")
    return record


def lineage(plan: Mapping[str, "Stage"]) -> list["Stage"]:
    """The stages of a part and all stages they depend on, each once, in execution order."""
    return list(dict.fromkeys(s for stage in plan.values() for s in stage.lineage()))


class RecordedParts:
    """The parts of a record on disk, without the folders of their stages; empty without a file.

    A part is identified by the keys of its stages, which are digests of their settings, their
    data and the versions of their code. A record does not hold the files that stages wrote.
    """

    def __init__(self, path: Path) -> None:
        record: dict[str, Any] = read_record(path) if path.exists() else {}
        self.path = path
        self.numbers = record.get("numbers", {})
        stages = record.get("stages", {})
        if stages:
            check_same(path, record["versions"], versions())
        # Rows of older records do not say on which of its machines a stage ran.
        known = record.get("machines", [])
        default = known[0] if len(known) == 1 else {}
        rows = [row for part in stages.values() for row in part]
        self.keys = {part: {row["key"] for row in own} for part, own in stages.items()}
        self.seconds = {row["key"]: row["seconds"] for row in rows}
        self.machines = {row["key"]: row.get("machine", default) for row in rows}

    def has(self, part: str, plan: Mapping[str, "Stage"]) -> bool:
        """Whether the part was made by exactly the stages of this plan."""
        if part not in self.keys:
            return False
        stages = lineage(plan)
        missing = {name for s in stages if not s.data_is_here for name in s.data}
        if missing:  # the key of a stage needs its data, so the part cannot be identified
            raise ValueError(
                f"{self.path} holds part '{part}', whose data ({', '.join(sorted(missing))}) are "
                "not on this machine; set ONEBASIN_DATA, or choose another folder with --out"
            )
        same = {stage.key for stage in stages} == self.keys[part]
        return same and self.numbers[part].keys() == plan.keys()

    def outcomes(self, part: str, plan: Mapping[str, "Stage"]) -> dict[str, Outcome]:
        return {name: self.outcome(stage, self.numbers[part][name]) for name, stage in plan.items()}

    def outcome(self, stage: "Stage", result: dict[str, Any]) -> Outcome:
        key = stage.key
        return Outcome(result, self.path.parent, self.seconds[key], key, self.machines[key])
