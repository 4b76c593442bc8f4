"""The parts of a record as outcomes again, without the folders of their stages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onebasin.experiments.record import read_record
from onebasin.experiments.runner import Outcome
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
        self.folder = path.parent
        self.numbers = record.get("numbers", {})
        self.machines = record.get("machines", [])
        stages = record.get("stages", {})
        self.keys = {part: {row["key"] for row in rows} for part, rows in stages.items()}
        self.seconds = {row["key"]: row["seconds"] for rows in stages.values() for row in rows}

    def has(self, part: str, plan: Mapping[str, Stage]) -> bool:
        """Whether the part was made of the very stages of this plan, on one kind of machine."""
        if part not in self.keys or len(self.machines) != 1:
            return False
        stages = lineage(plan)
        if not all(stage.data_is_here for stage in stages):
            return False  # without its data a stage has no key
        return {stage.key for stage in stages} == self.keys[part]

    def outcomes(self, part: str, plan: Mapping[str, Stage]) -> dict[str, Outcome]:
        return {
            name: Outcome(
                self.numbers[part][name],
                self.folder,
                self.seconds[stage.key],
                stage.key,
                self.machines[0],
            )
            for name, stage in plan.items()
        }
