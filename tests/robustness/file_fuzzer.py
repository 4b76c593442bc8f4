"""Damaged files of every kind: each is refused with a sentence that names it, or means the same.

`file_cases.cases(folder)` makes one good file of every kind together with what reads it and what it
means; `mutated(rng, case)` damages its bytes; `judge` says what came of reading the result:

* "refused": an error of ours (ValueError or OSError) whose message names the file,
* "same": it was read and means what the good file means,
* "unverifiable": something else, in a format that has no checksum: plain IDX and CIFAR files, text
  that people write, and what other packages write,
* anything else is a defect: "changed" (read as something else without a word), "foreign" (another
  kind of exception), "unnamed" (a refusal that does not name the file), "hung", "memory".
"""

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from file_cases import Case, cases
from memory import Peak
from time_limits import time_limit

SECONDS = 10  # of computing, after which reading counts as hung
ROOM = 32 << 20  # bytes that reading anything may take; beyond that, four times the file


def meaning(value: Any) -> Any:
    """What two readings are compared by."""
    if isinstance(value, dict):
        return {str(k): meaning(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [meaning(v) for v in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if hasattr(value, "shape"):
        array = np.asarray(value)
        return [str(array.dtype), list(array.shape), array.tobytes()]
    return value


def mutated(rng: np.random.Generator, case: Case) -> bytes:
    """The bytes of a good file with some damage."""
    if case.data[8:9] == b"{" and rng.random() < 0.6:
        return _mutated_header(rng, case.data)
    if case.name.endswith(".json") and rng.random() < 0.7:
        return json.dumps(_mutated_json(rng, json.loads(case.data))).encode()
    return _mutated_bytes(rng, case.data)


def _mutated_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    at = int(rng.integers(len(changed)))
    length = int(rng.integers(1, 1 + min(64, len(changed) - at)))
    match int(rng.integers(8)):
        case 0:
            changed[at] ^= 1 << int(rng.integers(8))
        case 1:
            changed[at : at + length] = bytes(length)
        case 2:
            changed[at : at + length] = b"\xff" * length
        case 3:
            changed[at : at + length] = rng.integers(0, 256, length, dtype=np.uint8).tobytes()
        case 4:
            del changed[at:]
        case 5:
            changed += rng.integers(0, 256, length, dtype=np.uint8).tobytes()
        case 6:
            del changed[at : at + length]
        case _:
            changed[at:at] = changed[at : at + length]
    return bytes(changed)


def _mutated_header(rng: np.random.Generator, data: bytes) -> bytes:
    """A safetensors file whose JSON header is well formed and wrong."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    inside = [k for k, v in metadata.items() if v[:1] in "{["]
    if inside and rng.random() < 0.5:
        name = inside[int(rng.integers(len(inside)))]
        metadata[name] = json.dumps(_mutated_json(rng, json.loads(metadata[name])))
    else:
        header = _mutated_json(rng, header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 10**9, 10**30, 0.5, -0.0, 1e300, float("nan"), float("inf")),
    *("", "x", "F8_E4M3", "BOOL", "\0", "../x", [], [[]], {}, {"a": {}}, [0, 0], [-1], "Mixture"),
)


def _mutated_json(rng: np.random.Generator, value: Any) -> Any:
    """One place of a JSON value, deep inside, removed, replaced, doubled or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        keys = list(value)
        key = keys[int(rng.integers(len(keys)))]
        chance = rng.random()
        if chance < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if chance < 0.15:
            return {(f"{k}x" if k == key else k): v for k, v in value.items()}
        return {k: (_mutated_json(rng, v) if k == key else v) for k, v in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = int(rng.integers(len(value)))
        if rng.random() < 0.15:
            return [*value[:at], *value[at + 1 :]]
        return [_mutated_json(rng, v) if i == at else v for i, v in enumerate(value)]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + int(rng.integers(-3, 4))
    if rng.random() < 0.05:
        return json.loads("[" * 400 + "]" * 400)
    return ODD[int(rng.integers(len(ODD)))]


def judge(case: Case, path: Path, good: Any) -> tuple[str, str]:
    """What came of reading a damaged file, and the message or the difference."""
    tracemalloc.start()
    try:
        with Peak() as resident:
            verdict, text = _read(case, path, good)
        peak = max(tracemalloc.get_traced_memory()[1], resident.bytes)
    finally:
        tracemalloc.stop()
    if peak > ROOM + 4 * path.stat().st_size:
        return "memory", f"{peak / 1e6:.0f} MB for a file of {path.stat().st_size} bytes; {text}"
    return verdict, text


def _read(case: Case, path: Path, good: Any) -> tuple[str, str]:
    with time_limit(SECONDS, TimeoutError("reading took too long")):
        try:
            found = meaning(case.read(path))
        except TimeoutError as error:
            return "hung", str(error)
        except (ValueError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            own = type(error) is ValueError or type(error).__module__ != "builtins"
            if not own and not isinstance(error, OSError):
                return "foreign", text
            return ("refused" if any(name in text for name in case.named) else "unnamed"), text
        except Exception as error:
            return "foreign", f"{type(error).__name__}: {error}"
    if found == good:
        return "same", ""
    return ("changed" if case.checksummed else "unverifiable"), ""


def attack(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Damage `count` files and read them; how often each verdict came, and the defects.

    What is unverifiable is counted by kind of file too.
    """
    rng = np.random.default_rng(seed)
    counts: dict[str, int] = {}
    without: dict[str, int] = {}
    defects: list[str] = []
    known = cases(folder)
    good = []
    for i, case in enumerate(known):
        own = folder / f"case-{i}"
        own.mkdir()
        for name, data in ((case.name, case.data), *case.needs):
            (own / name).parent.mkdir(parents=True, exist_ok=True)
            (own / name).write_bytes(data)
        good.append(meaning(case.read(own / case.name)))
    for number in range(count):
        i = number % len(known)
        case, path = known[i], folder / f"case-{i}" / known[i].name
        _replace(path, mutated(rng, case))
        verdict, text = judge(case, path, good[i])
        # A busy disk can hold up any file, and a library load more of itself on its first error:
        # what truly hangs or takes too much does so again.
        if verdict in ("hung", "memory"):
            verdict, text = judge(case, path, good[i])
        counts[verdict] = counts.get(verdict, 0) + 1
        if verdict == "unverifiable":
            without[case.kind] = without.get(case.kind, 0) + 1
        if verdict not in ("refused", "same", "unverifiable"):
            defects.append(f"{case.kind} #{number}: {verdict}: {text[:200]}")
        _replace(path, case.data)
    found = {"tried": count, "counts": counts, "defects": defects}
    return found | {"changed in formats without a checksum": without}


def _replace(path: Path, data: bytes) -> None:
    """Write a new file: a library may still read the old one in a thread of its own."""
    path.unlink()
    path.write_bytes(data)
