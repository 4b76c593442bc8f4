"""`onebasin align` for plain state_dicts: files of PyTorch and of Hugging Face."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebasin.cli import shared

if TYPE_CHECKING:
    from onebasin.checkpoints import Entries
    from onebasin.cli.align import Align
    from onebasin.symmetry import Permutation, Symmetry

OBJECTIVES = ("l2", "w2")  # of points: both are the distance of the weights


def are_checkpoints(paths: tuple[Path, ...]) -> bool:
    """Whether the files are state_dicts; refused if only some of them are."""
    from onebasin.checkpoints import is_checkpoint

    plain = [path for path in paths if is_checkpoint(path)]
    others = [path for path in paths if path not in plain]
    if plain and others:
        raise ValueError(
            f"{plain[0]} is a plain state_dict and {others[0]} is not; align files of one kind"
        )
    return bool(plain)


def run(config: "Align", outs: Mapping[Path, Path], symmetry: "Symmetry") -> None:
    """Align the files, write them with the names, data types and metadata they had, and report."""
    from onebasin.checkpoints import Entries, read_checkpoint

    if config.objective not in OBJECTIVES:
        raise ValueError(
            f"--objective {config.objective} is for posteriors; state_dicts are points, so take "
            f"{' or '.join(OBJECTIVES)}"
        )
    paths = [*([config.to] if config.to else []), *config.files]
    if len(paths) < 2:
        raise ValueError(
            f"there is nothing to align {paths[0]} to; name a target with --to, or more files"
        )
    opened = {path: Entries(read_checkpoint(path), symmetry) for path in paths}
    with shared.writing(*outs.values()):
        whole, found = _jointly(config, opened) if config.to is None else _to_one(config, opened)
        reports = []
        for path, permutation, report in found:
            entries = opened[path]
            change = lambda name, e=entries, p=permutation: e.moved(name, p)
            entries.checkpoint.write(outs[path], change, overwrite=config.overwrite)
            kept = {"unchanged": entries.kept} if entries.kept else {}
            reports.append({"file": str(path), "out": str(outs[path]), **report, **kept})
    result = {"objective": config.objective, **whole, "files": reports}
    lines = [_line(report) for report in reports]
    shared.print_result(result, "\n".join(lines), as_json=config.json)


Found = list[tuple[Path, "Permutation", dict[str, Any]]]


def _to_one(config: "Align", opened: "Mapping[Path, Entries]") -> tuple[dict[str, Any], Found]:
    import jax

    from onebasin.alignment import FrankWolfe, align

    assert config.to is not None
    rows: Found = []
    for path in config.files:
        found = align(
            opened[path].params,
            to=opened[config.to].params,
            symmetry=opened[path].symmetry,
            objective="l2",
            starts=config.starts,
            search=FrankWolfe() if config.search else None,
            max_sweeps=config.max_sweeps,
            key=jax.random.key(config.seed),
        )
        report = {
            "distance_before": found.distance_before,
            "distance_after": found.distance_after,
            "transpositions": int(found.transpositions),
            "converged": found.converged,
            "seconds": found.seconds,
        }
        rows.append((path, found.permutation, report))
    return {"to": str(config.to)}, rows


def _jointly(config: "Align", opened: "Mapping[Path, Entries]") -> tuple[dict[str, Any], Found]:
    from onebasin.alignment import align_many
    from onebasin.symmetry import transpositions

    found = align_many(
        [opened[path].params for path in config.files],
        symmetry=opened[config.files[0]].symmetry,
        objective="l2",
        max_sweeps=config.max_sweeps,
    )
    whole = {"rounds": found.rounds, "converged": found.converged, "seconds": found.seconds}
    moves = zip(config.files, found.permutations, strict=True)
    return whole, [(path, p, {"transpositions": int(transpositions(p))}) for path, p in moves]


def _line(report: Mapping[str, Any]) -> str:
    words = [f"{report['file']} → {report['out']}"]
    if "distance_before" in report:
        words.append(f"l2 {report['distance_before']:.6g} → {report['distance_after']:.6g}")
    words.append(f"{report['transpositions']} transpositions")
    if report.get("converged") is False:
        words.append("not converged")
    if "unchanged" in report:
        words.append(f"{len(report['unchanged'])} other entries unchanged")
    return "  ".join(words)
