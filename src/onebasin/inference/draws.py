"""Draws on their way to disk.

The number of draws is known from the start, so a posterior file of `Samples` can be laid out at
once, with its header, and filled draw by draw through a memory map. It is called `….part` until
it is whole. Chain c's k-th draw has its place c·K + k whatever the order they come in, so
filling a stretch again after a crash does no harm. A file of fewer draws per chain can grow.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.inference.artefacts import Files
from onebasin.inference.checkpoint import Checkpoint, CheckpointError, settings_of
from onebasin.inference.program import DrawPlan
from onebasin.posterior import Samples
from onebasin.posterior.files import describe_samples, header_text
from onebasin.tensor_files import GrowingFile
from onebasin.trees import PyTree, leaves_by_path, with_leaves

# Room in the header for what is only known at the end.
PROVENANCE_ROOM = 65536


class DrawStore:
    """Places for the draws of one run: in memory, or in a file that grows into a posterior."""

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

    def _header(self, network: Any, provenance: dict[str, Any]) -> dict[str, str]:
        return header_text(describe_samples(self.shapes), network, provenance)

    def put(self, chain: int, first: int, draws: PyTree) -> None:
        """Fill the places of one chain's draws number `first` and on; leaves [count, ...]."""
        for name, leaf in leaves_by_path(draws).items():
            place = chain * self.per_chain + first
            self.arrays[f"draws/{name}"][place : place + len(leaf)] = leaf

    def flush(self) -> None:
        for array in self.arrays.values():
            if isinstance(array, np.memmap):
                array.flush()

    def samples(self) -> Samples:
        """The posterior, backed by the file if there is one."""
        named = {n: np.asarray(self.arrays[f"draws/{n}"]) for n in leaves_by_path(self.shapes)}
        return Samples(with_leaves(self.shapes, named), np.asarray(self.arrays["chain"]))

    def become(self, out: Path, network: Any, provenance: dict[str, Any]) -> None:
        """The draws are complete: write the final header and take the final name."""
        assert self.file is not None
        self.flush()
        self.file.write_header(self._header(network, provenance))
        os.replace(self.file.path, out)
        self.path = out

    def forget(self) -> None:
        """Drop the file; on POSIX systems what is mapped stays readable."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def open_stores(
    files: Files, shapes: PyTree, chains: int, plan: DrawPlan, saved: Checkpoint | None
) -> list[DrawStore]:
    """A store for each run; on resuming, with the draws that the checkpoint speaks of."""
    stores = []
    for run in range(files.runs or 1):
        path = files.draws(run)
        if path is not None and saved is None:
            path.unlink(missing_ok=True)  # worth nothing without a checkpoint
        elif path is not None and saved is not None:
            _find(path, files, run, saved)
            before = saved.config["method"]["draws"]
            if before < plan.per_lane:
                grow_file(path, shapes, chains, before, plan.per_lane)
        stores.append(DrawStore(shapes, chains, plan.per_lane, path))
    return stores


def _find(path: Path, files: Files, run: int, saved: Checkpoint) -> None:
    """The draws of a run, gathering still or under their final name: a fit of several runs may have
    been killed when some of their files were whole."""
    if path.exists():
        return
    outs = files.outs()
    if outs and outs[run].exists() and settings_of(outs[run]) == saved.config:
        os.replace(outs[run], path)
        return
    raise CheckpointError(
        f"the draws that {files.checkpoint} goes on from are gone ({path}); "
        "overwrite it to start again"
    )


def grow_file(path: Path, shapes: PyTree, chains: int, before: int, after: int) -> None:
    """Lay out anew, for more draws per chain, a file that was gathering `before` of each.

    The larger file appears by one rename; where that has happened already, nothing is left to do.
    """
    fresh = path.with_name(f".{path.stem}.grown.part")  # a name that `Files.sweep` knows
    fresh.unlink(missing_ok=True)
    larger = DrawStore(shapes, chains, after, fresh)
    if path.stat().st_size == fresh.stat().st_size:
        larger.forget()
        return
    smaller = DrawStore(shapes, chains, before, path)
    for name, leaf in leaves_by_path(shapes).items():
        old, new = (store.arrays[f"draws/{name}"] for store in (smaller, larger))
        by_chain = old.reshape(chains, before, *leaf.shape)
        new.reshape(chains, after, *leaf.shape)[:, :before] = by_chain
    larger.flush()
    os.replace(fresh, path)
