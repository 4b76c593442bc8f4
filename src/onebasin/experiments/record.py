"""Records of experiments on disk: JSON, versioned."""

import json
from pathlib import Path
from typing import Any

RECORD_VERSION = 1


def read_record(path: Path) -> dict[str, Any]:
    """A record, or an error that says why the file is none."""
    try:
        record = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{path} is no JSON file; give a record that reproduce wrote") from None
    if not isinstance(record, dict) or record.get("record") != RECORD_VERSION:
        raise ValueError(f"{path} is no record of an experiment; give one that reproduce wrote")
    return record
