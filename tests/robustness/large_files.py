"""Large good files of every kind: reading one takes at most four times its size in memory.

What is read at once besides is called buffers. Pixels are bytes in their files and numbers of four
bytes afterwards, which is four times already: they have to be read without a copy.
"""

import gc
import gzip
import struct
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from memory import Peak

import onebasin as ob
from onebasin.checkpoints import read_checkpoint as read_state_dict
from onebasin.data import load_dataset
from onebasin.inference.checkpoint import read_checkpoint, write_checkpoint
from onebasin.posterior.sparse import load_sparse, save_sparse
from onebasin.pruning import prune
from onebasin.tensor_files import verify_tensors

MOST = 4  # times the size of the file
BUFFERS = 4 << 20  # bytes more, for blocks that are read at once and for labels
SIZE = 48_000_000  # bytes of a large file, roughly
SMALL = 40_000

Kind = tuple[Callable[[Path, int], Path], Callable[[Path], Any]]


def _numbers(size: int, *lead: int) -> dict[str, Any]:
    """A params tree of about so many bytes in two leaves."""
    rng, half = np.random.default_rng(0), size // 8 // max(1, int(np.prod(lead)))
    draw = lambda: rng.standard_normal((*lead, half), np.float32)
    return {"a": draw(), "b": draw()}


def _mean_field(folder: Path, size: int) -> Path:
    mean = _numbers(size // 2)
    std = {name: np.abs(leaf) + 1 for name, leaf in mean.items()}
    return ob.save(folder / "q.safetensors", ob.MeanField(mean, std))


def _draws(folder: Path, size: int) -> Path:
    samples = ob.Samples(_numbers(size, 8), np.zeros(8, np.int32))
    return ob.save(folder / "draws.safetensors", samples)


def _sparse(folder: Path, size: int) -> Path:
    mean = {name: jnp.asarray(leaf) for name, leaf in _numbers(size).items()}
    std = {name: jnp.ones_like(leaf) for name, leaf in mean.items()}
    return save_sparse(folder / "sparse.safetensors", prune(mean, std, keep=0.9))


def _checkpoint(folder: Path, size: int) -> Path:
    path = folder / "fit.checkpoint"
    write_checkpoint(path, {"step": 1, "config": {}, "history": []}, _numbers(size))
    return path


def _idx(folder: Path, size: int, *, zipped: bool = False) -> Path:
    """Images whose bytes do not compress."""
    count, rng = max(2, size // 784), np.random.default_rng(0)
    pack = (lambda data: gzip.compress(data, 1)) if zipped else (lambda data: data)
    for split, n in (("train", count), ("t10k", 2)):
        images = rng.integers(0, 256, (n, 28, 28), np.uint8).tobytes()
        labels = rng.integers(0, 10, n, np.uint8).tobytes()
        for name, head, body in (
            ("images-idx3", struct.pack(">4I", 0x803, n, 28, 28), images),
            ("labels-idx1", struct.pack(">2I", 0x801, n), labels),
        ):
            path = folder / f"{split}-{name}-ubyte{'.gz' * zipped}"
            path.write_bytes(pack(head + body))
    return folder / f"train-images-idx3-ubyte{'.gz' * zipped}"


def _cifar(folder: Path, size: int, *, packed: bool = False) -> Path:
    """Records whose bytes do not compress, most of them for training."""
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name in names:
        count = 2 if name == names[-1] else max(2, size // 3073 // 5)
        records = rng.integers(0, 256, (count, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    if not packed:
        return folder
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name in reversed(names):
            tar.add(folder / name, name)
            (folder / name).unlink()
    return path


def _own_arrays(size: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((size // 80, 20), np.float32)
    return {"x": x, "y": np.arange(len(x)) % 7}


def _npz(folder: Path, size: int) -> Path:
    own = _own_arrays(size)
    np.savez(folder / "own.npz", x=own["x"], y=own["y"])
    return folder / "own.npz"


def _npy(folder: Path, size: int) -> Path:
    (folder / "own").mkdir()
    for name, array in _own_arrays(size).items():
        np.save(folder / "own" / f"{name}.npy", array)
    return folder / "own"


def _csv(folder: Path, size: int) -> Path:
    x = np.random.default_rng(0).standard_normal((size // 115, 10))
    with (folder / "own.csv").open("w") as file:
        file.write(",".join(f"c{i}" for i in range(10)) + "\n")
        np.savetxt(file, x, "%.8f", ",")  # as many digits as single precision has; fewer take more
    return folder / "own.csv"


def _parquet(folder: Path, size: int) -> Path:
    import pyarrow
    from pyarrow import parquet

    x = np.random.default_rng(0).standard_normal((size // 80, 10))
    table = pyarrow.table({f"c{i}": x[:, i] for i in range(10)})
    parquet.write_table(table, folder / "own.parquet", compression="none", use_dictionary=False)
    return folder / "own.parquet"


def _msgpack(folder: Path, size: int) -> Path:
    return ob.write_params(folder / "params.msgpack", _numbers(size))


def _pt(folder: Path, size: int) -> Path:
    import torch  # pyright: ignore[reportMissingImports]

    tensors = {name: torch.from_numpy(leaf) for name, leaf in _numbers(size).items()}
    torch.save(tensors, folder / "weights.pt")
    return folder / "weights.pt"


KINDS: dict[str, Kind] = {
    "posterior": (_mean_field, ob.load),
    "draws": (_draws, ob.load),
    "mapped draws": (_draws, lambda path: (verify_tensors(path), ob.load(path, mapped=True))),
    "sparse": (_sparse, load_sparse),
    "checkpoint": (_checkpoint, read_checkpoint),
    "idx": (_idx, lambda path: load_dataset("mnist", root=path.parent)),
    "idx.gz": (
        lambda folder, size: _idx(folder, size, zipped=True),
        lambda path: load_dataset("mnist", root=path.parent),
    ),
    "cifar": (_cifar, lambda path: load_dataset("cifar10", root=path)),
    "cifar.tar.gz": (
        lambda folder, size: _cifar(folder, size, packed=True),
        lambda path: load_dataset("cifar10", root=path.parent),
    ),
    "npz": (_npz, ob.read_dataset),
    "npy": (_npy, ob.read_dataset),
    "csv": (_csv, lambda path: ob.read_dataset(path, target="c0")),
    "parquet": (_parquet, lambda path: ob.read_dataset(path, target="c0")),
    "msgpack": (_msgpack, ob.read_params),
}
if find_spec("torch"):  # `make test` runs without PyTorch
    KINDS["pt"] = (_pt, read_state_dict)


def size_of(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def times_of(kind: str, folder: Path, size: int) -> tuple[float, bool]:
    """The memory that reading a file takes, as a multiple of its size; and whether it is too much.

    A small one is read before, so that libraries are loaded and programs compiled.
    """
    write, read = KINDS[kind]
    paths = []
    for name, bytes_ in (("small", min(SMALL, size)), ("large", size)):
        (folder / name).mkdir(parents=True)
        paths.append(write(folder / name, bytes_))
    read(paths[0])
    gc.collect()
    with Peak() as peak:
        kept = read(paths[1])
    del kept
    size = size_of(paths[1])
    return peak.bytes / size, peak.bytes > MOST * size + BUFFERS


def attack(folder: Path, count: int, seed: int, size: int = SIZE) -> dict[str, Any]:
    """Read files of the first `count` kinds; a defect is a kind that takes too much memory."""
    del seed
    times = {kind: times_of(kind, folder / kind, size) for kind in list(KINDS)[:count]}
    defects = [
        f"{kind}: {found:.2f} times the size of the file"
        for kind, (found, too_much) in times.items()
        if too_much
    ]
    rounded = {kind: round(found, 2) for kind, (found, _) in times.items()}
    clean = len(times) - len(defects)
    return {"tried": len(times), "clean": clean, "defects": defects, "times": rounded}
