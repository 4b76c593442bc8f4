"""Facts of a run itself, which do not follow from what was asked: times and machines.

They are in one file, `facts.json`. The rest of a run folder is a function of the command, the data
and the versions: two runs of one command give equal folders, except for this file and for the
experiment `timings`, whose results are times.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onebasin.atomic import lock, write_atomically
from onebasin.digests import Damaged, sealed_text, unsealed
from onebasin.experiments.schema import (
    Named,
    Optional,
    anything,
    check,
    is_count,
    is_number,
    is_object,
    is_text,
    parse_json,
    read_text,
)

FACTS = "facts.json"
LARGEST = 2**26  # bytes
MACHINE = {
    **dict.fromkeys(("processor", "system", "backend"), is_text),
    "cores": is_count,
    "memory_gib": is_number,
    "devices": Optional(is_count),
}
SCHEMA = {
    "stages": Optional(Named({"seconds": is_number, "machine": is_object})),
    "records": Optional(Named([MACHINE])),
    "plan": Optional(Named(anything)),
}
"""By the key of a stage, its time and machine; by experiment, its machines; the estimated times."""


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of a run folder; empty without the file."""
    path = folder / FACTS
    try:
        facts = parse_json(read_text(path, LARGEST))
        check(facts, SCHEMA)
        facts = unsealed(facts)
        if not facts or not facts.keys() <= SCHEMA.keys():
            raise Damaged(f"must hold some of {', '.join(SCHEMA)}, and nothing else")
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError:
        raise ValueError(f"{path} is not JSON; delete it, and times are no longer shown") from None
    except Damaged as error:
        raise ValueError(f"{path} {error}; delete it, and times are no longer shown") from None
    return facts


def add_facts(folder: Path, section: str, facts: Mapping[str, Any]) -> None:
    """Add facts by name to a section of the file; other processes may do so at the same time."""
    path = folder / FACTS
    with lock(path, lambda: None):
        known = read_facts(folder)
        merged = dict(sorted({**(known.get(section) or {}), **facts}.items()))
        text = sealed_text({**known, section: merged})
        write_atomically(path, lambda part: Path(part).write_text(text))


def with_facts(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A record with the times and machines of its stages, as far as they are known.

    Records of version 1 hold them; for others they are in the facts of their folder.
    """
    facts = read_facts(folder)
    known = facts.get("stages") or {}
    stages = {
        part: [{**known.get(row["key"], {}), **row} for row in rows]
        for part, rows in record.get("stages", {}).items()
    }
    machines = (facts.get("records") or {}).get(record.get("experiment"), [])
    return {**record, "stages": stages, "machines": record.get("machines") or machines}
