"""The parts of a record as outcomes again, without the folders of their stages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onebasin.experiments.record import read_record
from onebasin.experiments.runner import Outcome, versions
from onebasin.experiments.stage import Stage


def lineage(plan: Mapping[str, Stage]) -> list[Stage]:
    """The stages of a part and all that they need, each once, in the order they must run."""
    return list(dict.fromkeys(s for stage in plan.values() for s in stage.lineage()))


class RecordedParts:
    """What a record on disk says of its parts; nothing if there is none.

    A part is known by the keys of its stages, which are digests of their settings, their data and
    the versions of their code. Files that stages left beside their numbers are not in a record.
    """

    def __init__(self, path: Path) -> None:
        record: dict[str, Any] = read_record(path) if path.exists() else {}
        self.path = path
        self.numbers = record.get("numbers", {})
        stages = record.get("stages", {})
        for name, now in versions().items() if stages else ():
            made = record["versions"].get(name)
            if made != now:
                raise ValueError(
                    f"{path} was made with {name} {made} and this is {now}; "
                    "name another folder by --out"
                )
        # Rows of older records do not say on which of its machines a stage ran.
        known = record.get("machines", [])
        unsaid = known[0] if len(known) == 1 else {}
        rows = [row for part in stages.values() for row in part]
        self.keys = {part: {row["key"] for row in own} for part, own in stages.items()}
        self.seconds = {row["key"]: row["seconds"] for row in rows}
        self.machines = {row["key"]: row.get("machine", unsaid) for row in rows}

    def has(self, part: str, plan: Mapping[str, Stage]) -> bool:
        """Whether the part was made of the very stages of this plan."""
        if part not in self.keys:
            return False
        stages = lineage(plan)
        missing = {name for s in stages if not s.data_is_here for name in s.data}
        if missing:  # without its data a stage has no key, and the part could not be told
            raise ValueError(
                f"{self.path} holds part '{part}', whose data ({', '.join(sorted(missing))}) are "
                "not on this machine; set ONEBASIN_DATA, or name another folder by --out"
            )
        same = {stage.key for stage in stages} == self.keys[part]
        return same and self.numbers[part].keys() == plan.keys()

    def outcomes(self, part: str, plan: Mapping[str, Stage]) -> dict[str, Outcome]:
        return {name: self.outcome(stage, self.numbers[part][name]) for name, stage in plan.items()}

    def outcome(self, stage: Stage, result: dict[str, Any]) -> Outcome:
        key = stage.key
        return Outcome(result, self.path.parent, self.seconds[key], key, self.machines[key])
