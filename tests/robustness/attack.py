"""The long attack: `make attack` runs all of it and writes results/robustness.json."""

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "robustness.json"
FULL = {
    "files": 20_000,
    "kills": 200,
    "networks": 5_000,
    "command lines": 1_000,
    "odd numbers": 5_000,
}
MODULES = {
    "files": "file_fuzzer",
    "kills": "killer",
    "networks": "random_networks",
    "command lines": "command_lines",
    "odd numbers": "odd_numbers",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full number of trials")
    parser.add_argument("--only", choices=FULL, action="append", help="run only these parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.only or FULL:
        count = max(1, round(arguments.share * FULL[name]))
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = importlib.import_module(MODULES[name]).attack(
                Path(folder), count, arguments.seed
            )
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
