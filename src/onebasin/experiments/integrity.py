"""What a file of ours is, and whether it is whole."""

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onebasin.data.published import sources_of, verify_published
from onebasin.digests import DIGEST
from onebasin.experiments.facts import FACTS, read_facts
from onebasin.experiments.record import read_record
from onebasin.experiments.runner import DESCRIPTION, read_result
from onebasin.experiments.schema import read_object, read_sealed
from onebasin.experiments.stage import RESULT
from onebasin.experiments.stage_list import PLAN
from onebasin.experiments.store import RUN
from onebasin.experiments.sweep import GRID
from onebasin.inference.checkpoint import read_checkpoint
from onebasin.inference.history import read_history
from onebasin.posterior import read_header
from onebasin.posterior.sparse import load_sparse
from onebasin.regular_files import check_regular
from onebasin.symmetry import Symmetry
from onebasin.symmetry.written import FORMAT as SYMMETRY
from onebasin.symmetry.written import read as read_symmetry
from onebasin.tensor_files import NoChecksumsWarning, read_tensor_header, verify_tensors

UNCHECKED = "no checksum, so that damage cannot be noticed"
KINDS = {
    "onebasin-posterior": "posterior",
    "onebasin-sparse": "sparse network",
    "onebasin-checkpoint": "checkpoint",
}
NAMES = {
    RUN: "run folder",
    FACTS: "facts of a run",
    PLAN: "plan of a run",
    GRID: "grid of a sweep",
    DESCRIPTION: "stage",
    RESULT: "result of a stage",
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
            if path.suffix == ".jsonl":
                kind = "history of a fit"
                detail, checked = _read_history(path)
            elif path.suffix == ".json":
                kind = _kind_of_json(path)
                detail, checked = _read_json(path, kind)
            else:
                header = read_tensor_header(path)
                kind = KINDS.get(header.metadata.get("format", ""), "foreign safetensors file")
                detail, checked = _read(path, kind), header.checksums is not None
                verify_tensors(path)
    except (ValueError, OSError) as error:
        return Verification(str(path), kind, False, str(error))
    detail = "; ".join(filter(None, [detail, UNCHECKED * (not checked)]))
    return Verification(str(path), kind, True, detail)


def _kind_of_json(path: Path) -> str:
    """What a JSON file says that it is, whole or not, or what its name says."""
    if not check_regular(path).exists():
        raise FileNotFoundError(f"there is no file {path}; check the name")
    with path.open(encoding="utf-8", errors="replace") as file:
        if f'"{SYMMETRY}"' in file.read(1000):
            return "symmetry"
    if path.name == RESULT and not (path.parent / DESCRIPTION).exists():
        return "record"  # or nothing of ours
    return NAMES.get(path.name, "record")


def _read_json(path: Path, kind: str) -> tuple[str, bool]:
    """What the file holds, in a few words, and whether it carries a digest, which is right."""
    remedy = "write it again"
    if kind == "symmetry":
        symmetry = Symmetry.load(path)
        detail = f"{len(symmetry.groups)} groups, {len(symmetry.layouts)} leaves"
        return detail, DIGEST in read_symmetry(path)
    if kind == "record":
        detail = str(read_record(path)["experiment"])
    elif kind == NAMES[RESULT]:
        read_result(path.parent)
        return "", "result" in read_object(path.parent / DESCRIPTION, remedy)
    else:
        facts = read_facts(path.parent) if path.name == FACTS else read_sealed(path, remedy)
        detail = ", ".join(facts)
    return detail, DIGEST in read_object(path, remedy)


def _read_history(path: Path) -> tuple[str, bool]:
    """The same of a history."""
    if not check_regular(path).exists():
        raise FileNotFoundError(f"there is no file {path}; check the name")
    found = read_history(path)
    unfinished = "" if found.ended else ", of a fit that had not ended, or cut short"
    return f"{len(found.rows)} rows{unfinished}", found.checked


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
