"""The long attack: `make attack` runs all of it and writes results/robustness.json."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_lines
import file_fuzzer
import killer
import random_networks

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "robustness.json"
FULL = {"files": 20_000, "kills": 200, "networks": 5_000, "command lines": 1_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full number of trials")
    parser.add_argument("--only", choices=FULL, action="append", help="run only these parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    parts: dict[str, Callable[[Path, int, int], dict[str, Any]]] = {
        "files": file_fuzzer.attack,
        "kills": killer.attack,
        "networks": lambda _, count, seed: random_networks.attack(count, seed),
        "command lines": lambda _, count, seed: command_lines.attack(count, seed),
    }
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.only or FULL:
        count = max(1, round(arguments.share * FULL[name]))
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = parts[name](Path(folder), count, arguments.seed)
        defects = result.pop("defects")
        found[name] = {**result, "defects": len(defects), "seed": arguments.seed}
        seconds = time.monotonic() - began
        sys.stdout.write(f"{name}: {json.dumps(found[name])} in {seconds:.0f} s\n")
        sys.stdout.writelines(f"  {defect}\n" for defect in defects[:20])
        sys.stdout.flush()
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if any(part["defects"] for part in found.values()) else 0)


if __name__ == "__main__":
    main()
