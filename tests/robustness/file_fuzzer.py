"""Damaged files of every kind: each is refused with a sentence that names it, or means the same.

`cases(folder)` writes one good file of every kind together with what reads it and what it means;
`mutations(rng, data, kind)` damages its bytes; `judge` says what came of reading the result:

* "refused": an error of ours (ValueError or OSError) whose message names the file,
* "same": it was read and means what the good file means,
* "unverifiable": other pixels or labels in a published format that has no checksum (plain IDX and
  CIFAR files; the compressed ones have one),
* anything else is a defect: "changed" (read as something else without a word), "foreign" (another
  kind of exception), "unnamed" (a refusal that does not name the file), "hung", "memory".
"""

import gzip
import json
import math
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from time_limits import time_limit

from onebasin.choices import DataName
from onebasin.data import load_dataset
from onebasin.experiments.record import RECORD_VERSION, read_record, sealed
from onebasin.inference.checkpoint import read_checkpoint, write_checkpoint
from onebasin.posterior import LowRank, MeanField, Mixture, Samples, load, read_header, save
from onebasin.posterior.sparse import load_sparse, save_sparse
from onebasin.pruning import prune
from onebasin.tensor_files import verify_tensors
from onebasin.trees import leaves_by_path

SECONDS = 10  # of computing, after which reading counts as hung
ROOM = 32 << 20  # bytes that reading anything may take; beyond that, four times the file


@dataclass(frozen=True)
class Case:
    """A kind of file: the bytes of a good one, how it is read, and what it means."""

    kind: str
    name: str
    data: bytes
    read: Callable[[Path], Any]
    needs: tuple[tuple[str, bytes], ...] = ()
    """Other files that have to lie beside it."""
    checksummed: bool = True


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


def _posterior(path: Path) -> Any:
    header = read_header(path)
    leaves = leaves_by_path(load(path))
    return [header.kind, header.network, header.provenance, leaves]


def _mapped(path: Path) -> Any:
    verify_tensors(path)  # mapped numbers are checked on request
    return [read_header(path).kind, leaves_by_path(load(path, mapped=True))]


def _sparse(path: Path) -> Any:
    found = load_sparse(path)
    pruned = found.pruned
    return [
        leaves_by_path(pruned.params),
        leaves_by_path(pruned.mask),
        [pruned.kept, pruned.by, pruned.scope],
        found.network,
        found.provenance,
    ]


def _checkpoint(path: Path) -> Any:
    found = read_checkpoint(path)
    return [found.step, found.config, found.history, found.arrays]


def _dataset(name: DataName) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        data = load_dataset(name, root=path.parent)
        return [data.train.x, data.train.y, data.test.x, data.test.y]

    return read


def cases(folder: Path) -> list[Case]:
    """One good file of every kind."""
    rng = np.random.default_rng(0)
    mean = {"a": {"kernel": rng.normal(size=(5, 4)), "bias": rng.normal(size=4)}, "b": rng.normal()}
    mean = {
        "a": {k: jnp.asarray(v, jnp.float32) for k, v in mean["a"].items()},
        "b": jnp.float32(mean["b"]),
    }
    std = {"a": {k: jnp.abs(v) + 0.1 for k, v in mean["a"].items()}, "b": jnp.float32(0.3)}

    def stacked(count: int) -> Any:
        return {
            "a": {k: jnp.stack([v + i for i in range(count)]) for k, v in mean["a"].items()},
            "b": mean["b"] + jnp.arange(count, dtype=jnp.float32),
        }

    gaussian = MeanField(mean, std)
    samples = Samples(stacked(6), jnp.arange(6, dtype=jnp.int32) // 3)
    posteriors = {
        "mean-field": gaussian,
        "samples": samples,
        "low-rank": LowRank(mean, std, stacked(2)),
        "mixture": Mixture((gaussian, gaussian), jnp.array([0.25, 0.75])),
    }
    found = []
    about = {"seed": 3, "fit": {"method": {"name": "VI", "epochs": 4}, "key": [0, 1]}}
    for kind, posterior in posteriors.items():
        path = save(folder / f"{kind}.safetensors", posterior, network={"kind": "MLP"}, **about)
        found.append(Case(kind, path.name, path.read_bytes(), _posterior))
    path = folder / "samples.safetensors"
    found.append(Case("mapped samples", path.name, path.read_bytes(), _mapped))
    path = save_sparse(folder / "sparse.safetensors", prune(mean, std, keep=0.4), **about)
    found.append(Case("sparse", path.name, path.read_bytes(), _sparse))
    path = folder / "fit.checkpoint"
    body = {"step": 7, "config": about["fit"], "history": [{"step": 7, "loss": 0.5}]}
    write_checkpoint(path, body, mean)
    found.append(Case("checkpoint", path.name, path.read_bytes(), _checkpoint))
    record = _record()
    found.append(Case("record", "barriers.json", json.dumps(record).encode(), read_record))
    found += _data_cases(rng)
    return found


def _record() -> dict[str, Any]:
    folder = Path(__file__).parents[2] / "results" / "reproduction"
    record = json.loads((folder / "width.json").read_text())
    short = {**record, "record": RECORD_VERSION, "numbers": {}, "tables": record["tables"][:1]}
    return sealed(short)


def _data_cases(rng: np.random.Generator) -> list[Case]:
    files = {}
    for split, count in (("train", 6), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        files[f"{split}-images-idx3-ubyte"] = (
            b"\0\0\x08\x03" + struct.pack(">3I", count, 28, 28) + images.tobytes()
        )
        files[f"{split}-labels-idx1-ubyte"] = (
            b"\0\0\x08\x01" + struct.pack(">I", count) + labels.tobytes()
        )
    found = []
    zipped = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}
    for kind, group in (("idx", files), ("idx.gz", zipped)):
        for name in group:
            others = tuple((n, d) for n, d in group.items() if n != name)
            zipped_too = kind == "idx.gz"
            found.append(Case(kind, name, group[name], _dataset("mnist"), others, zipped_too))
    records = {
        f"{stem}.bin": b"".join(
            bytes([int(rng.integers(10))]) + rng.integers(0, 256, 3072, dtype=np.uint8).tobytes()
            for _ in range(2)
        )
        for stem in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    }
    name = "data_batch_2.bin"
    others = tuple((n, d) for n, d in records.items() if n != name)
    found.append(Case("cifar", name, records[name], _dataset("cifar10"), others, False))
    return found


def mutated(rng: np.random.Generator, case: Case) -> bytes:
    """The bytes of a good file with some damage."""
    if case.data[8:9] == b"{" and rng.random() < 0.6:
        return _mutated_header(rng, case.data)
    if case.kind == "record" and rng.random() < 0.7:
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
        with time_limit(SECONDS, TimeoutError("reading took too long")):
            try:
                found = meaning(case.read(path))
                verdict, text = ("same", "") if found == good else ("changed", "")
                if verdict == "changed" and not case.checksummed:
                    verdict = "unverifiable"
            except TimeoutError as error:
                verdict, text = "hung", str(error)
            except (ValueError, OSError) as error:
                text = f"{type(error).__name__}: {error}"
                verdict = "refused" if path.name.removesuffix(".gz") in text else "unnamed"
                if type(error).__module__ == "builtins" and type(error) is not ValueError:
                    verdict = "refused" if isinstance(error, OSError) else "foreign"
            except Exception as error:
                verdict, text = "foreign", f"{type(error).__name__}: {error}"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > ROOM + 4 * path.stat().st_size:
        return "memory", f"{peak / 1e6:.0f} MB for a file of {path.stat().st_size} bytes; {text}"
    return verdict, text


def attack(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Damage `count` files and read them; how often each verdict came, and the defects."""
    rng = np.random.default_rng(seed)
    counts: dict[str, int] = {}
    defects: list[str] = []
    known = cases(folder)
    good = []
    for i, case in enumerate(known):
        own = folder / f"case-{i}"
        own.mkdir()
        for name, data in ((case.name, case.data), *case.needs):
            (own / name).write_bytes(data)
        good.append(meaning(case.read(own / case.name)))
    for number in range(count):
        i = number % len(known)
        case, path = known[i], folder / f"case-{i}" / known[i].name
        path.write_bytes(mutated(rng, case))
        verdict, text = judge(case, path, good[i])
        if verdict == "hung":  # a busy disk can hold up any file; what truly hangs does so again
            verdict, text = judge(case, path, good[i])
        counts[verdict] = counts.get(verdict, 0) + 1
        if verdict not in ("refused", "same", "unverifiable"):
            defects.append(f"{case.kind} #{number}: {verdict}: {text[:200]}")
        path.write_bytes(case.data)
    return {"tried": count, "counts": counts, "defects": defects}
