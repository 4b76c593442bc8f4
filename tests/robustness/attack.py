"""The long attack: `make attack` runs all of it and writes results/robustness.json.

Every part is done in portions, each with a seed and a process of its own, as many at once as there
are cores. The record is written after every portion. A run that was interrupted goes on with the
portions that are missing, as long as the code it attacks and its own are the same; otherwise a part
begins again. The record names the code by a digest.
"""

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from large_files import KINDS

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
    "kills": Part("killer", 200, 20),
    "networks": Part("random_networks", 5_000, 10),
    "kinds": Part("random_kinds", 5_000, 50),
    "files": Part("file_fuzzer", 20_000, 20),
    "command lines": Part("command_lines", 1_000, 10),
    "odd numbers": Part("odd_numbers", 5_000, 10),
    "large files": Part("large_files", len(KINDS), 1),
}


def code_digest() -> str:
    """A digest of the package that is attacked, and of what attacks it."""
    whole = hashlib.sha256()
    for source in (Path(onebasin.__file__).parent, Path(__file__).parent):
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


def portion_here(part: Part, portion: int, seed: int, share: float) -> dict[str, Any]:
    """Try one portion in this process; what came of it, with its defects as texts."""
    first, last = (round(share * part.tries * at / part.portions) for at in (portion, portion + 1))
    attack = importlib.import_module(part.module).attack
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = attack(Path(folder), max(1, last - first), part.portions * seed + portion)
    found.pop("operations", None)  # those of the commands that are killed; the same every time
    texts = found.pop("defects")
    found |= {"defects": len(texts), "seconds": round(time.monotonic() - began)}
    return found | ({"first defects": texts[:SHOWN]} if texts else {})


def portion_apart(name: str, portion: int, seed: int, share: float, shared: str) -> dict[str, Any]:
    """The same in a process of its own; one that dies is a defect."""
    words = ["--only", name, "--seed", str(seed), "--share", str(share), "--portion", str(portion)]
    # Networks, data and fits are tiny: most of the time would go into compiling them.
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": shared,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    environment = {**compiled, **os.environ, "KILLER_WORKERS": "1", "KILLER_COMPILED": shared}
    done = subprocess.run(
        [sys.executable, __file__, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    told = f"portion {portion} ended with {done.returncode}: {done.stderr[-500:]}"
    return {"defects": 1, "first defects": [told]}


def run(parts: list[str], seed: int, share: float, record: Path, workers: int) -> None:
    """Run the portions that the record lacks."""
    asked = {"code": code_digest(), "seed": seed, "share": share}
    known = {}
    for name in parts:
        known[name] = read(record).get(name, {})
        if {key: known[name].get(key) for key in asked} != asked:
            known[name] = {**asked, "portions": PARTS[name].portions, "portions done": []}
    with tempfile.TemporaryDirectory() as shared, ThreadPoolExecutor(workers) as pool:
        under_way = {
            pool.submit(portion_apart, name, portion, seed, share, shared): (name, portion)
            for name in parts
            for portion in range(PARTS[name].portions)
            if portion not in known[name]["portions done"]
        }
        try:
            for future in as_completed(under_way):
                name, portion = under_way[future]
                more = future.result()
                known[name] = merged(known[name], more | {"portions done": [portion]})
                found = read(record) | {name: known[name]}
                record.write_text(json.dumps(found, indent=1) + "\n")
                sys.stdout.write(f"{name}, portion {portion}: {json.dumps(more)}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full number of tries")
    parser.add_argument("--only", choices=PARTS, action="append", help="run only these parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="at once")
    parser.add_argument("--portion", type=int, help="run one portion of one part, and print it")
    given = parser.parse_args()
    if given.portion is not None:
        found = portion_here(PARTS[given.only[0]], given.portion, given.seed, given.share)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    run(given.only or list(PARTS), given.seed, given.share, given.out, given.workers)
    sys.exit(1 if any(part["defects"] for part in read(given.out).values()) else 0)


if __name__ == "__main__":
    main()
