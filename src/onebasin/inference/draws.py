"""Draws written to disk while chains run.

The number of draws is known in advance, so a posterior file of `Samples` is laid out at once, with
its header, and filled through a memory map. It is named `….part` until it is complete. Draw k of
chain c has the index c·K + k, whatever the order of writing, so writing draws again after a crash
does no harm. A file can be extended to more draws per chain.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.inference.checkpoint import Checkpoint, CheckpointError, settings_of
from onebasin.inference.files import Files
from onebasin.inference.program import Program
from onebasin.posterior import Samples
from onebasin.posterior.files import describe_samples, header_text
from onebasin.tensor_files import GrowingFile
from onebasin.trees import PyTree, leaves_by_path, with_leaves

# Bytes reserved in the header for the provenance, which is known only at the end.
PROVENANCE_ROOM = 65536


class DrawStore:
    """The draws of one run, in memory or in a file that becomes the posterior."""

    def __init__(self, shapes: PyTree, chains: int, per_chain: int, path: Path | None) -> None:
        self.shapes, self.chains, self.per_chain, self.path = shapes, chains, per_chain, path
        total = chains * per_chain
        layout = {"chain": ((total,), np.dtype(np.int32))}
        for name, leaf in leaves_by_path(shapes).items():
            layout[f"draws/{name}"] = ((total, *leaf.shape), np.dtype(leaf.dtype))
        self.file: GrowingFile | None = None
        if path is None:
            self.arrays = {n: np.zeros(shape, dtype) for n, (shape, dtype) in layout.items()}
        else:
            room = len(str(self._header(None, {}))) + PROVENANCE_ROOM
            self.file = GrowingFile(path, layout, room)
            if not self.file.is_there:
                self.file.lay_out()
                self.file.write_header(self._header(None, {}))
            self.arrays = self.file.maps()
        self.arrays["chain"][:] = np.repeat(np.arange(chains, dtype=np.int32), per_chain)

    def _header(self, network: dict[str, Any] | None, provenance: dict[str, Any]) -> dict[str, str]:
        return header_text(describe_samples(self.shapes), network, provenance)

    def put(self, chain: int, first: int, draws: PyTree) -> None:
        """Write draws `first`, `first` + 1, … of one chain; leaves are [count, ...]."""
        start = chain * self.per_chain + first
        for name, leaf in leaves_by_path(draws).items():
            self.arrays[f"draws/{name}"][start : start + len(leaf)] = leaf

    def flush(self) -> None:
        for array in self.arrays.values():
            if isinstance(array, np.memmap):
                array.flush()

    def samples(self) -> Samples:
        """The posterior, backed by the file if there is one."""
        named = {n: np.asarray(self.arrays[f"draws/{n}"]) for n in leaves_by_path(self.shapes)}
        return Samples(with_leaves(self.shapes, named), np.asarray(self.arrays["chain"]))

    def become(self, out: Path, network: dict[str, Any] | None, provenance: dict[str, Any]) -> None:
        """Write the final header and rename the complete file."""
        assert self.file is not None
        self.flush()
        self.file.write_header(self._header(network, provenance))
        os.replace(self.file.path, out)
        self.path = out

    def delete_file(self) -> None:
        """Remove the file; on POSIX systems the mapped draws stay readable."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def open_stores(
    files: Files, shapes: PyTree, program: Program, saved: Checkpoint | None
) -> list[DrawStore]:
    """One store per run, if there are draws; on resuming, with those up to the checkpoint."""
    if program.draws is None:
        return []
    stores, chains, per_chain = [], program.replicas, program.draws.per_replica
    for run in range(files.runs or 1):
        path = files.draws(run)
        if path is not None and saved is None:
            path.unlink(missing_ok=True)  # useless without a checkpoint
        elif path is not None and saved is not None:
            _recover(path, files, run, saved)
            before = saved.config["method"]["draws"]
            if before < per_chain:
                grow_file(path, shapes, chains, before, per_chain)
        stores.append(DrawStore(shapes, chains, per_chain, path))
    return stores


def _recover(path: Path, files: Files, run: int, saved: Checkpoint) -> None:
    """Make sure that `path` has the draws of a run.

    The process may have been killed when the files of some runs already had their final names.
    """
    if path.exists():
        return
    outs = files.outs()
    if outs and outs[run].exists() and settings_of(outs[run]) == saved.config:
        os.replace(outs[run], path)
        return
    raise CheckpointError(
        f"{path}, with the draws up to {files.checkpoint}, is missing; "
        "overwrite the checkpoint to start again"
    )


def grow_file(path: Path, shapes: PyTree, chains: int, before: int, after: int) -> None:
    """Extend a file of `before` draws per chain to `after`.

    The larger file replaces the smaller one atomically; nothing happens if it has done so already.
    """
    fresh = path.with_name(f".{path.stem}.grown.part")  # `Files.remove_partial_writes` knows it
    fresh.unlink(missing_ok=True)
    larger = DrawStore(shapes, chains, after, fresh)
    if path.stat().st_size == fresh.stat().st_size:
        larger.delete_file()
        return
    smaller = DrawStore(shapes, chains, before, path)
    for name, leaf in leaves_by_path(shapes).items():
        old, new = (store.arrays[f"draws/{name}"] for store in (smaller, larger))
        by_chain = old.reshape(chains, before, *leaf.shape)
        new.reshape(chains, after, *leaf.shape)[:, :before] = by_chain
    larger.flush()
    os.replace(fresh, path)
