"""A good file of every kind that is read anywhere, with what reads it and what it means.

Folders of Orbax are not among them. Reading a damaged one ends in an error as it should, but
threads of its storage library that are still reading then can end the whole process.
"""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import onebasin as ob
from onebasin.checkpoints import read_checkpoint as read_state_dict
from onebasin.choices import DataName
from onebasin.data import load_dataset
from onebasin.digests import sealed
from onebasin.experiments.facts import add_facts, read_facts
from onebasin.experiments.grid import read_grid
from onebasin.experiments.record import RECORD_VERSION, read_record
from onebasin.experiments.runner import Run, read_result, write_result
from onebasin.experiments.schema import read_sealed
from onebasin.inference.checkpoint import read_checkpoint, write_checkpoint
from onebasin.inference.draws import DrawStore, read_statistics
from onebasin.inference.history import read_rows, write_rows
from onebasin.posterior import (
    Kronecker,
    LowRank,
    LowRankPrecision,
    MeanField,
    Mixture,
    Samples,
    load,
    read_header,
    save,
)
from onebasin.posterior.params_files import read_params, write_params
from onebasin.posterior.sparse import load_sparse, save_sparse
from onebasin.pruning import prune
from onebasin.tensor_files import verify_tensors
from onebasin.trees import leaves_by_path


@dataclass(frozen=True)
class Case:
    """A kind of file: the bytes of a good one, how it is read, and what it means."""

    kind: str
    name: str
    """The file that is damaged, in the folder of the case."""
    data: bytes
    read: Callable[[Path], Any]
    needs: tuple[tuple[str, bytes], ...] = ()
    """Other files that have to lie beside it."""
    checksummed: bool = True

    @property
    def named(self) -> tuple[str, ...]:
        """What an error may call the file: its name, or that of the folder that is read whole."""
        path = Path(self.name)
        return (path.name.removesuffix(".gz"), *path.parts[:-1])


def cases(folder: Path) -> list[Case]:
    """One good file of every kind."""
    rng = np.random.default_rng(0)
    return [
        *_posteriors(rng, folder),
        *_of_runs(folder),
        *_published_data(rng),
        *_own_data(rng, folder),
        *_of_other_packages(rng, folder),
    ]


MEAN = {"a": {"kernel": (5, 4), "bias": (4,)}, "b": ()}
ABOUT = {"seed": 3, "fit": {"method": {"name": "VI", "epochs": 4}, "key": [0, 1]}}


def _posteriors(rng: np.random.Generator, folder: Path) -> Iterator[Case]:
    def tree(*lead: int) -> Any:
        draw = lambda shape: jnp.asarray(rng.normal(size=(*lead, *shape)), jnp.float32)
        return {"a": {k: draw(v) for k, v in MEAN["a"].items()}, "b": draw(())}

    mean, std = tree(), {"a": {"kernel": jnp.full((5, 4), 0.5), "bias": jnp.full(4, 2.0)}, "b": 0.3}
    std = {**std, "b": jnp.float32(0.3)}
    gaussian = MeanField(mean, std)
    bases = (
        {"a": {"kernel": jnp.eye(n), "bias": jnp.eye(m)}, "b": jnp.eye(1)}
        for n, m in ((5, 1), (4, 4))
    )
    samples = Samples(tree(6), jnp.arange(6, dtype=jnp.int32) // 3)
    running = Samples(tree(2), state={"mean": jnp.ones((2, 4))})
    found = {
        "mean-field": gaussian,
        "samples": samples,
        "samples with running statistics": running,
        "low-rank": LowRank(mean, std, tree(2)),
        "low-rank precision": LowRankPrecision(mean, std, tree(2)),
        "kronecker": Kronecker(mean, std, *bases),
        "mixture": Mixture((gaussian, gaussian), jnp.array([0.25, 0.75])),
    }
    for kind, posterior in found.items():
        path = save(folder / "q.safetensors", posterior, network={"kind": "MLP"}, **ABOUT)
        yield Case(kind, path.name, path.read_bytes(), _posterior)
        if kind == "samples":
            yield Case("mapped samples", path.name, path.read_bytes(), _mapped)
        path.unlink()
    path = save_sparse(folder / "sparse.safetensors", prune(mean, std, keep=0.4), **ABOUT)
    yield Case("sparse", path.name, path.read_bytes(), _sparse)
    kinds = {"energy": np.dtype(np.float32)}
    store = DrawStore(mean, 2, 3, folder / "draws.part", kinds)
    for chain in range(2):
        store.put(chain, 0, tree(3), {"energy": rng.normal(size=3)})
    store.become(folder / "draws.safetensors", {"kind": "MLP"}, ABOUT)
    data = (folder / "draws.safetensors").read_bytes()
    yield Case("draws of a fit", "draws.safetensors", data, _draws)
    path = folder / "fit.checkpoint"
    body = {"step": 7, "config": ABOUT["fit"], "history": [{"step": 7, "loss": 0.5}]}
    write_checkpoint(path, body, mean)
    yield Case("checkpoint", path.name, path.read_bytes(), _checkpoint)


def _posterior(path: Path) -> Any:
    header = read_header(path)
    found = load(path)
    leaves = leaves_by_path(found)
    return [header.kind, header.network, header.provenance, leaves]


def _mapped(path: Path) -> Any:
    verify_tensors(path)  # mapped numbers are checked on request
    return [read_header(path).kind, leaves_by_path(load(path, mapped=True))]


def _draws(path: Path) -> Any:
    return [_posterior(path), read_statistics(path)]


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


def _of_runs(folder: Path) -> Iterator[Case]:
    record = json.dumps(_record()).encode()
    yield Case("record", "barriers.json", record, read_record)
    path = folder / "h.jsonl"
    write_rows(path, [{"step": i, "loss": [0.5, i / 3]} for i in range(4)], ended=True)
    rows = lambda path: read_rows(path, 2)
    yield Case("history", path.name, path.read_bytes(), rows)
    write_result(folder, {"barrier": 0.25, "ts": [0.0, 0.5, 1.0], "by": {"layer": 3}}, {"key": "k"})
    result, stage = ((folder / name).read_bytes() for name in ("result.json", "stage.json"))
    reads = lambda path: read_result(path.parent)
    yield Case("result", "result.json", result, reads, (("stage.json", stage),))
    yield Case("stage", "stage.json", stage, reads, (("result.json", result),))
    Run(folder / "run", "toy", quiet=True).open()

    def opened(path: Path) -> Any:
        Run(path.parent, "toy", quiet=True).open()
        return read_sealed(path, "")

    data = (folder / "run" / "run.json").read_bytes()
    yield Case("run folder", "run/run.json", data, opened)
    machine = {"processor": "x", "system": "Linux", "backend": "cpu", "cores": 2, "memory_gib": 8.0}
    add_facts(folder, "stages", {"k": {"seconds": 1.5, "machine": machine}})
    facts = (folder / "facts.json").read_bytes()
    yield Case("facts", "facts.json", facts, lambda path: read_facts(path.parent))
    grid = (
        b"fit:\n  method: vi\n  width: [8, 16]\n  epochs: 2\nalign: {objective: w2}\nrepeats: 2\n"
    )
    yield Case("grid", "grid.yaml", grid, lambda p: repr(read_grid(p)), checksummed=False)
    sizes = {"w1": np.ones((4, 6)), "b1": np.ones(6), "w2": np.ones((6, 2))}
    hidden = {"hidden": [("w1", 1), ("b1", 0), ("w2", 0)]}
    path = ob.Symmetry.by_hand(sizes, hidden).save(folder / "symmetry.json")
    reads = lambda path: repr(ob.Symmetry.load(path).layouts)
    yield Case("symmetry", path.name, path.read_bytes(), reads)


def _record() -> dict[str, Any]:
    folder = Path(__file__).parents[2] / "results" / "reproduction"
    record = json.loads((folder / "width.json").read_text())
    short = {**record, "record": RECORD_VERSION, "numbers": {}, "tables": record["tables"][:1]}
    return sealed(short)


def _dataset(name: DataName) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        return _splits(load_dataset(name, root=path.parent))

    return read


def _splits(data: Any) -> Any:
    return [data.train.x, data.train.y, data.test.x, data.test.y]


def _published_data(rng: np.random.Generator) -> Iterator[Case]:
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
    zipped = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}
    for kind, group in (("idx", files), ("idx.gz", zipped)):
        for name in group:
            others = tuple((n, d) for n, d in group.items() if n != name)
            yield Case(kind, name, group[name], _dataset("mnist"), others, kind == "idx.gz")
    records = {
        f"{stem}.bin": b"".join(
            bytes([int(rng.integers(10))]) + rng.integers(0, 256, 3072, dtype=np.uint8).tobytes()
            for _ in range(2)
        )
        for stem in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    }
    name = "data_batch_2.bin"
    others = tuple((n, d) for n, d in records.items() if n != name)
    yield Case("cifar", name, records[name], _dataset("cifar10"), others, False)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in records.items():
            about = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    archive = gzip.compress(packed.getvalue(), mtime=0)
    yield Case("cifar.tar.gz", "cifar-10-binary.tar.gz", archive, _dataset("cifar10"))


def _own_data(rng: np.random.Generator, folder: Path) -> Iterator[Case]:
    x, y = rng.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 3
    for name, write in (("plain.npz", np.savez), ("compressed.npz", np.savez_compressed)):
        write(folder / name, x=x, y=y)
        reads = lambda path: _splits(ob.read_dataset(path))
        yield Case("npz", name, (folder / name).read_bytes(), reads)
    arrays = {}
    for name, array in (("x", x), ("y", y)):
        stream = io.BytesIO()
        np.save(stream, array)
        arrays[f"arrays/{name}.npy"] = stream.getvalue()
    for name, data in arrays.items():
        others = tuple((n, d) for n, d in arrays.items() if n != name)
        reads = lambda path: _splits(ob.read_dataset(path.parent))
        yield Case("npy", name, data, reads, others, checksummed=False)
    lines = [f"{a:.4f},{b:.4f},word{k}" for (a, b, _), k in zip(x, y, strict=True)]
    table = "\n".join(["height,weight,kind", *lines, ""]).encode()
    reads = lambda path: _splits(ob.read_dataset(path, target="kind"))
    yield Case("csv", "table.csv", table, reads, checksummed=False)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    columns = {"height": x[:, 0], "weight": x[:, 1], "kind": [f"word{k}" for k in y]}
    for checked in (False, True):
        path = folder / "table.parquet"
        parquet.write_table(pyarrow.table(columns), path, write_page_checksum=checked)
        yield Case("parquet", path.name, path.read_bytes(), reads, checksummed=False)


def _of_other_packages(rng: np.random.Generator, folder: Path) -> Iterator[Case]:
    params = {"dense": {"kernel": rng.normal(size=(4, 3)), "bias": np.zeros(3)}}
    reads = lambda path: leaves_by_path(read_params(path))
    for name in ("params.msgpack", "params.safetensors"):
        data = write_params(folder / name, params).read_bytes()
        yield Case(name, name, data, reads, checksummed=False)
    yield from _hugging_face(rng)
    yield from _of_pytorch(rng)


def _state_dict(path: Path) -> Any:
    found = read_state_dict(path)
    return {name: np.array(found.tensors[name]) for name in sorted(found.tensors)}


def _hugging_face(rng: np.random.Generator) -> Iterator[Case]:
    from safetensors.numpy import save as packed

    shards = {
        f"model-{i}.safetensors": packed({f"w{i}": rng.normal(size=(3, 2)).astype(np.float32)})
        for i in (1, 2)
    }
    index = {"metadata": {}, "weight_map": {f"w{i}": f"model-{i}.safetensors" for i in (1, 2)}}
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    files = {f"hub/{name}": data for name, data in (files | shards).items()}
    for name in ("hub/model.safetensors.index.json", "hub/model-2.safetensors"):
        others = tuple((n, d) for n, d in files.items() if n != name)
        reads = lambda path: _state_dict(path.parent)
        yield Case("Hugging Face", name, files[name], reads, others, checksummed=False)


def _of_pytorch(rng: np.random.Generator) -> Iterator[Case]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return
    stream = io.BytesIO()
    weights = {"fc.weight": torch.tensor(rng.normal(size=(3, 2))), "fc.bias": torch.zeros(3)}
    torch.save(weights, stream)
    yield Case("pt", "weights.pt", stream.getvalue(), _state_dict)
