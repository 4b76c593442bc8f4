"""What a file of ours is, and whether it is whole."""

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onebasin.data.published import sources_of, verify_published
from onebasin.experiments.record import read_record
from onebasin.inference.checkpoint import read_checkpoint
from onebasin.posterior import read_header
from onebasin.posterior.sparse import load_sparse
from onebasin.regular_files import check_regular
from onebasin.symmetry import Symmetry
from onebasin.symmetry.written import FORMAT as SYMMETRY
from onebasin.tensor_files import NoChecksumsWarning, read_tensor_header, verify_tensors

KINDS = {
    "onebasin-posterior": "posterior",
    "onebasin-sparse": "sparse network",
    "onebasin-checkpoint": "checkpoint",
}


@dataclass(frozen=True)
class Verification:
    """What a file is, and what is wrong with it, if anything."""

    path: str
    kind: str
    whole: bool
    detail: str

    def summary(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        verdict = "whole" if self.whole else "DAMAGED"
        return f"{self.path}: {self.kind}, {verdict}{f' ({self.detail})' if self.detail else ''}"


def verify_file(path: Path) -> Verification:
    """Read a file as what it says it is, every number included."""
    kind = "unknown"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoChecksumsWarning)
            if sources_of(path):
                kind = "data file"
                return Verification(str(path), kind, True, verify_published(path))
            if path.suffix == ".json" and _is_symmetry(path):
                kind = "symmetry"
                symmetry = Symmetry.load(path)
                detail = f"{len(symmetry.groups)} groups, {len(symmetry.layouts)} leaves"
                return Verification(str(path), kind, True, detail)
            if path.suffix == ".json":
                kind = "record"
                record = read_record(path)
                return Verification(str(path), kind, True, f"{record['experiment']}")
            header = read_tensor_header(path)
            kind = KINDS.get(header.metadata.get("format", ""), "foreign safetensors file")
            detail = _read(path, kind)
            verify_tensors(path)
    except (ValueError, OSError) as error:
        return Verification(str(path), kind, False, str(error))
    if header.checksums is None:
        detail = f"{detail}; without checksums, so that damage cannot be noticed".lstrip("; ")
    return Verification(str(path), kind, True, detail)


def _is_symmetry(path: Path) -> bool:
    """Whether a JSON file says that it is a symmetry, whole or not."""
    if not check_regular(path).exists():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return f'"{SYMMETRY}"' in file.read(1000)


def _read(path: Path, kind: str) -> str:
    """What the file holds, in a few words; an error if its parts do not fit together."""
    if kind == "posterior":
        header = read_header(path)
        return f"{header.kind} with {len(header.params_shapes())} leaves"
    if kind == "sparse network":
        return repr(load_sparse(path).pruned)
    if kind == "checkpoint":
        return f"step {read_checkpoint(path).step}"
    return ""
