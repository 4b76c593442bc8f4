"""Records of experiments on disk: versioned JSON, whose parts can be read back as outcomes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebasin import __version__
from onebasin.digests import DIGEST, Damaged, unsealed
from onebasin.experiments.facts import MACHINE, with_facts
from onebasin.experiments.schema import (
    Named,
    Optional,
    anything,
    check,
    file_name,
    is_bool,
    is_count,
    is_number,
    is_object,
    is_text,
    one_of,
    parse_json,
    read_text,
    table,
)

if TYPE_CHECKING:
    from onebasin.experiments.stage import Stage

RECORD_VERSION = 2
VERSIONS = (1, 2)
LARGEST_RECORD = 2**26  # bytes
VERDICTS = ("holds", "holds at smaller scale", "does not hold", "not tested")
CLAIM = {
    **dict.fromkeys(("text", "published", "source", "ours", "criterion", "conditions"), is_text),
    "verdict": one_of(*VERDICTS),
    "reason": is_text,
    "value": Optional(is_number),
    "stderr": Optional(is_number),
    "figure": Optional(is_text),
    "headline": Optional(is_text),
}
SCHEMA = {
    **dict.fromkeys(("experiment", "title", "question", "source", "preset"), is_text),
    "config": anything,
    "parts": Optional(Named(is_bool)),
    "claims": [CLAIM],
    "tables": [table],
    "figures": [{"file": file_name, "title": is_text, "alt": is_text}],
    "numbers": Optional(Named(Named(anything))),
    "stages": Named(
        [
            {
                "stage": is_text,
                "key": is_text,
                "seconds": Optional(is_number),
                "machine": Optional(is_object),
            }
        ]
    ),
    "data": Optional(Named({"train": is_count, "test": is_count})),
    "versions": Named(is_text),
    "machines": Optional([MACHINE]),
    "concluded_with": Optional(is_text),
    "digest": Optional(is_text),
}
"""What a record must hold; other fields are kept and not looked at."""


@dataclass(frozen=True)
class Outcome:
    """What a stage produced: the numbers it returned, and the folder of its files."""

    result: dict[str, Any]
    folder: Path

    def __getitem__(self, name: str) -> Any:
        return self.result[name]


def versions() -> dict[str, str]:
    import jax  # here, so that reading a record imports nothing heavy

    return {"onebasin": __version__, "jax": jax.__version__}


def check_same(path: Path | str, made: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a file or folder that was made with other versions or another preset."""
    for name in {**now, **made}:
        if made.get(name) != now.get(name):
            raise ValueError(
                f"{path} was made with {name} {made.get(name)!s:.40}, but this is {name} "
                f"{now.get(name)}; "
                "choose another folder with --out"
            )


def read_record(path: Path) -> dict[str, Any]:
    """A record that is whole, or a ValueError that names the file and what is wrong with it."""
    try:
        record = parse_json(read_text(path, LARGEST_RECORD))
    except json.JSONDecodeError:
        raise ValueError(f"{path} is not JSON; give a record written by reproduce") from None
    except Damaged as error:
        raise ValueError(f"{path} {error}; give a record written by reproduce") from None
    version = record.get("record") if isinstance(record, dict) else None
    if version not in VERSIONS or isinstance(version, bool):
        raise ValueError(f"{path} is not a record of an experiment; give one written by reproduce")
    try:
        check(record, SCHEMA)
        # Records of version 1 were written without a digest.
        unsealed({DIGEST: None, **record} if version > 1 else record)
    except Damaged as error:
        raise ValueError(
            f"{path} {error}; the record is damaged or was edited: run reproduce again"
        ) from None
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
        record = with_facts(read_record(path), path.parent) if path.exists() else {}
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
        self.facts = {
            row["key"]: {"seconds": row["seconds"], "machine": row.get("machine", default)}
            for row in rows
            if row.get("seconds") is not None
        }

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
        numbers = self.numbers[part]
        return {name: Outcome(numbers[name], self.path.parent) for name in plan}
