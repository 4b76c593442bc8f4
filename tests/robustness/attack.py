"""The long attack: `make attack` runs all of it and writes results/robustness.json.

Every part is done in portions, each with a seed of its own, and the record is written after every
portion. A run that was interrupted goes on where it ended, as long as the code it attacks is the
same; otherwise a part begins again. The record names the code by a digest.
"""

import argparse
import hashlib
import importlib
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onebasin

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "robustness.json"
SHOWN = 20  # defects of a portion that are printed and kept


@dataclass(frozen=True)
class Part:
    """A module with a function `attack`, how often it tries, and in how many portions."""

    module: str
    tries: int
    portions: int


PARTS = {
    "kills": Part("killer", 200, 10),
    "networks": Part("random_networks", 5_000, 10),
    "files": Part("file_fuzzer", 20_000, 20),
    "command lines": Part("command_lines", 1_000, 10),
    "odd numbers": Part("odd_numbers", 5_000, 10),
}


def code_digest() -> str:
    """A digest of the package that is attacked."""
    source = Path(onebasin.__file__).parent
    whole = hashlib.sha256()
    for path in sorted(p for p in source.rglob("*") if p.suffix in (".py", ".pyi", ".html")):
        whole.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:16]


def merged(before: Any, more: Any) -> Any:
    """Counts added up, by name; lists joined."""
    if isinstance(more, dict):
        known = before or {}
        return {k: merged(known.get(k), more.get(k)) for k in {**known, **more}}
    if before is None or more is None:
        return before if more is None else more
    return before + more


def read(record: Path) -> dict[str, Any]:
    """The parts of a record, by name."""
    return json.loads(record.read_text()) if record.exists() else {}


def run_portion(part: Part, portion: int, seed: int, share: float) -> dict[str, Any]:
    """Try one portion; what came of it, with its defects as texts."""
    first, last = (round(share * part.tries * at / part.portions) for at in (portion, portion + 1))
    attack = importlib.import_module(part.module).attack
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = attack(Path(folder), max(1, last - first), part.portions * seed + portion)
    found.pop("operations", None)  # those of the commands that are killed; the same every time
    texts = found.pop("defects")
    found |= {"defects": len(texts), "seconds": round(time.monotonic() - began)}
    return found | ({"first defects": texts[:SHOWN]} if texts else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full number of tries")
    parser.add_argument("--only", choices=PARTS, action="append", help="run only these parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    asked = {"code": code_digest(), "seed": arguments.seed, "share": arguments.share}
    for name in arguments.only or PARTS:
        part, known = PARTS[name], read(arguments.out).get(name, {})
        if {key: known.get(key) for key in asked} != asked:
            known = {**asked, "portions done": 0, "portions": part.portions}
        for portion in range(known["portions done"], part.portions):
            more = run_portion(part, portion, arguments.seed, arguments.share)
            known = merged(known, more | {"portions done": 1})
            # Read again: other parts may be under way in other processes.
            found = read(arguments.out) | {name: known}
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")
            sys.stdout.write(f"{name}, {portion + 1} of {part.portions}: {json.dumps(more)}\n")
            sys.stdout.flush()
    sys.exit(1 if any(part["defects"] for part in read(arguments.out).values()) else 0)


if __name__ == "__main__":
    main()
