"""Draws written to disk while chains run.

The number of draws is known in advance, so a posterior file of `Samples` is laid out at once, with
its header, and filled through a memory map. It is named `….part` until it is complete. Draw k of
chain c has the index c·K + k, whatever the order of writing, so writing draws again after a crash
does no harm. A file can be extended to more draws per chain.

The file also holds what chains record of every draw, such as its energy, as tensors
`statistics/<name>` [chains, draws]; `load` ignores them and `read_statistics` reads them.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onebasin.atomic import naming_failures, temporary_file
from onebasin.checksums import checksum
from onebasin.inference.checkpoint import Checkpoint, CheckpointError, settings_of
from onebasin.inference.files import Files
from onebasin.inference.program import Program
from onebasin.posterior import Samples
from onebasin.posterior.files import describe_samples, header_text
from onebasin.tensor_files import (
    GrowingFile,
    Pathlike,
    TensorFileError,
    map_tensors,
    read_tensor_header,
)
from onebasin.trees import PyTree, leaves_by_path, with_leaves

STATISTICS = "statistics/"
# Bytes reserved in the header for the provenance, which is known only at the end.
PROVENANCE_ROOM = 65536


class DrawStore:
    """The draws of one run, in memory or in a file that becomes the posterior.

    `statistics` are the names and types of what is recorded of every draw, `state` the shapes of
    the running statistics of one network, which are measured for every draw at the end. The header
    has room for `known`, which the provenance is going to contain, and `PROVENANCE_ROOM` more.
    """

    def __init__(
        self,
        shapes: PyTree,
        chains: int,
        per_chain: int,
        path: Path | None,
        statistics: Mapping[str, np.dtype] | None = None,
        known: object = None,
        state: PyTree | None = None,
    ) -> None:
        self.state_shapes = state
        self.shapes, self.chains, self.per_chain, self.path = shapes, chains, per_chain, path
        total = chains * per_chain
        layout: dict[str, tuple[tuple[int, ...], np.dtype]]
        layout = {"chain": ((total,), np.dtype(np.int32))}
        for name, leaf in leaves_by_path(shapes).items():
            layout[f"draws/{name}"] = ((total, *leaf.shape), np.dtype(leaf.dtype))
        for name, leaf in leaves_by_path(state).items():
            layout[f"state/{name}"] = ((total, *leaf.shape), np.dtype(leaf.dtype))
        for name, dtype in (statistics or {}).items():
            layout[STATISTICS + name] = ((chains, per_chain), dtype)
        self.file: GrowingFile | None = None
        if path is None:
            self.arrays = {n: np.zeros(shape, dtype) for n, (shape, dtype) in layout.items()}
        else:
            # JSON within JSON: every quotation mark takes two bytes.
            room = len(json.dumps(self._header(None, {}))) + 2 * len(json.dumps(known))
            self.file = GrowingFile(path, layout, room + PROVENANCE_ROOM)
            if not self.file.is_there:
                self._lay_out(self.file)
            self.arrays = self.file.maps()
        self.arrays["chain"][:] = np.repeat(np.arange(chains, dtype=np.int32), per_chain)

    def _lay_out(self, file: GrowingFile) -> None:
        try:
            with naming_failures(file.path, file.size):
                file.lay_out()
                file.write_header(self._header(None, {}))
        except BaseException:
            file.path.unlink(missing_ok=True)
            raise

    def _header(self, network: dict[str, Any] | None, provenance: dict[str, Any]) -> dict[str, str]:
        described = describe_samples(self.shapes, self.state_shapes)
        return header_text(described, network, provenance)

    def put(
        self, chain: int, first: int, draws: PyTree, records: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Write draws `first`, `first` + 1, … of one chain and their records, [count, ...] each."""
        start = chain * self.per_chain + first
        for name, leaf in leaves_by_path(draws).items():
            self.arrays[f"draws/{name}"][start : start + len(leaf)] = leaf
        for name, values in (records or {}).items():
            self.arrays[STATISTICS + name][chain, first : first + len(values)] = values

    def statistics(self) -> dict[str, np.ndarray]:
        """What was recorded of every draw, [chains, draws] each."""
        return _statistics(self.arrays)

    def flush(self) -> None:
        for array in self.arrays.values():
            if isinstance(array, np.memmap):
                array.flush()

    def samples(self) -> Samples:
        """The posterior, backed by the file if there is one."""
        named = {n: np.asarray(self.arrays[f"draws/{n}"]) for n in leaves_by_path(self.shapes)}
        states = {
            n: np.asarray(self.arrays[f"state/{n}"]) for n in leaves_by_path(self.state_shapes)
        }
        state = None if self.state_shapes is None else with_leaves(self.state_shapes, states)
        return Samples(with_leaves(self.shapes, named), np.asarray(self.arrays["chain"]), state)

    def put_state(self, state: PyTree) -> None:
        """Write the running statistics of all draws, [draws, ...] each."""
        for name, leaf in leaves_by_path(state).items():
            self.arrays[f"state/{name}"][:] = leaf

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


def read_statistics(path: Pathlike) -> dict[str, np.ndarray]:
    """What chains recorded of every draw, by name, [chains, draws] each; empty for other files.

    HMC and NUTS record energy, log_density, acceptance and divergent, NUTS also leapfrog_steps.
    """
    header = read_tensor_header(path)
    found = _statistics(map_tensors(header.path) if STATISTICS in "".join(header.shapes) else {})
    for name, values in found.items():
        known = (header.checksums or {}).get(STATISTICS + name)
        if known is not None and known != checksum(values):
            raise TensorFileError(f"{path} is damaged: its statistics '{name}' have changed")
    return found


def _statistics(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {name: array for name, array in arrays.items() if name.startswith(STATISTICS)}
    return {name.removeprefix(STATISTICS): np.array(array) for name, array in found.items()}


def record_types(program: Program, states: PyTree) -> dict[str, np.dtype]:
    """The names and types of what chains record of every draw."""
    if program.draws is None:
        return {}
    records = jax.eval_shape(program.draws.read, states)["records"]
    return {name: np.dtype(leaf.dtype) for name, leaf in records.items()}


def open_stores(
    files: Files,
    shapes: PyTree,
    program: Program,
    records: Mapping[str, np.dtype],
    known: object,
    saved: Checkpoint | None,
    state: PyTree | None = None,
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
                grow_file(path, shapes, chains, before, per_chain, records, known, state)
        stores.append(DrawStore(shapes, chains, per_chain, path, records, known, state))
    return stores


def attach_stores(
    files: Files,
    shapes: PyTree,
    program: Program,
    records: Mapping[str, np.dtype],
    known: object,
    state: PyTree | None = None,
) -> list[DrawStore]:
    """The stores that another process has opened with the same arguments."""
    if program.draws is None:
        return []
    chains, per_chain = program.replicas, program.draws.per_replica
    paths = [files.draws(run) for run in range(files.runs or 1)]
    return [DrawStore(shapes, chains, per_chain, p, records, known, state) for p in paths]


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


def grow_file(
    path: Path,
    shapes: PyTree,
    chains: int,
    before: int,
    after: int,
    statistics: Mapping[str, np.dtype] | None = None,
    known: object = None,
    state: PyTree | None = None,
) -> None:
    """Extend a file of `before` draws per chain to `after`.

    The larger file replaces the smaller one atomically; nothing happens if it has done so already.
    """
    with temporary_file(path) as fresh:
        larger = DrawStore(shapes, chains, after, fresh, statistics, known, state)
        if path.stat().st_size == fresh.stat().st_size:
            return
        smaller = DrawStore(shapes, chains, before, path, statistics, known, state)
        for name, old in smaller.arrays.items():
            if name != "chain":
                shape = old.shape[2:] if name.startswith(STATISTICS) else old.shape[1:]
                by_chain = larger.arrays[name].reshape(chains, after, *shape)
                by_chain[:, :before] = old.reshape(chains, before, *shape)
        larger.flush()
        os.replace(fresh, path)
