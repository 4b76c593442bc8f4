"""`onebasin align`: files to one target, or all into one basin, from their own headers.

Nothing heavy is imported until `run` is called, so help and errors in flags are instant.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import tyro

from onebasin.choices import DataName, ObjectiveName, StartName, WeightObjective


@dataclass(frozen=True)
class Align:
    """Move posterior files into the basin of another (--to), or all into one basin.

    With --to, every file is aligned to that one. Without it, two or more files, or the draws of
    one file of samples, are aligned jointly, with no reference.

    Example: onebasin align q1.safetensors --to q0.safetensors --out moved.safetensors
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Posterior files to move."""
    out: Path
    """File to write, or a folder if there are several."""
    to: Path | None = None
    """Posterior file to move them to."""
    objective: ObjectiveName = "w2"
    """What is made as close as possible. Activations and correlations of units are taken on data
    (--data); between residual networks they left the lower barriers on repaired paths."""
    data: DataName | None = None
    """Data set on whose training examples units are compared."""
    root: Path | None = None
    """Folder with its published files; by default that in ONEBASIN_DATA, then the cache."""
    examples: int = 1000
    """So many training examples."""
    starts: tuple[StartName, ...] = ("auto",)
    """Where to begin; the best end is kept. Several "random" are several starts; "shaken" begins
    at the best end so far with some units shuffled."""
    search: bool = False
    """Search further by Frank and Wolfe's method (slow for wide networks)."""
    max_sweeps: int = 100
    """Sweeps over the groups before giving up."""
    seed: int = 0
    """Of random and shaken starts."""
    overwrite: bool = False
    """Replace files that exist."""
    json: bool = False
    """Print the result as one JSON object on standard output."""


COMMAND = Align


def run(config: Align) -> None:
    """Check the files by their headers, align, write the moved posteriors, and report."""
    if not config.files:
        raise ValueError("name at least one posterior file to align")
    if config.to is None and (config.search or config.starts != ("auto",)):
        raise ValueError("--starts and --search are for one target; name it with --to")
    _check_data_options(config)
    outs = _outputs(config)
    headers = _checked_headers(config)
    from onebasin.cli.symmetry import file_network, network_symmetry
    from onebasin.posterior import load

    network, input_shape = file_network(config.files[0])
    objective = _objective(config, network, input_shape)
    symmetry = network_symmetry(network, input_shape)
    loaded = {path: load(path) for path in headers}
    if config.to is not None:
        reports = _to_one(config, objective, symmetry, loaded, headers, outs)
    else:
        reports = _jointly(config, symmetry, loaded, headers, outs)
    if config.json:
        sys.stdout.write(json.dumps(reports) + "\n")
        return
    for line in reports["files"]:
        sys.stdout.write(_sentence(line, reports["objective"]))


def _check_data_options(config: Align) -> None:
    """Refuse an objective without its data, or data without such an objective."""
    from onebasin.alignment.activations import BY_DATA

    if config.objective not in BY_DATA:
        if config.data is not None or config.root is not None:
            raise ValueError(
                f"--objective {config.objective} uses no data; drop --data and --root, or take "
                "correlations"
            )
        return
    if config.to is None:
        raise ValueError(f"--objective {config.objective} is for one target; name it with --to")
    if config.data is None:
        raise ValueError(
            f"--objective {config.objective} compares units on data; name them with --data"
        )
    if config.examples < 2:
        raise ValueError(f"--examples is {config.examples}; compare units on at least two")


def _objective(config: Align, network: Any, input_shape: tuple[int, ...]) -> Any:
    if config.data is None:
        return config.objective
    from onebasin.alignment.activations import objective_on
    from onebasin.cli.shared import open_data

    data = open_data(config.data, config.root, input_shape, str(config.files[0]))
    images = data.train.x[: config.examples]
    return objective_on(config.objective, lambda p, x: network.apply({"params": p}, x), images)


def _outputs(config: Align) -> dict[Path, Path]:
    """Where each file goes: checked before any work."""
    if len(config.files) == 1:
        outs = {config.files[0]: config.out}
    else:
        names = [file.name for file in config.files]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two files are called {twice}; rename one, or align them one by one")
        outs = {file: config.out / file.name for file in config.files}
    if len(config.files) > 1 and config.out.exists() and not config.out.is_dir():
        raise ValueError(f"{config.out} is a file; with several posteriors --out is a folder")
    if len(config.files) == 1 and config.out.is_dir():
        raise ValueError(f"{config.out} is a folder; with one posterior --out is a file")
    for path in outs.values():
        if path.exists() and not config.overwrite:
            raise ValueError(f"{path} exists; give --overwrite to replace it, or another --out")
    return outs


def _checked_headers(config: Align) -> dict[Path, Any]:
    """The headers of all files, refused if they are not of one network and kind."""
    from onebasin.posterior import read_header

    paths = [*([config.to] if config.to else []), *config.files]
    headers = {path: read_header(path) for path in paths}
    check_same_network(headers)
    (first, reference), *others = headers.items()
    from onebasin.alignment.activations import BY_DATA

    for path, header in others:
        if header.kind != reference.kind and config.objective not in ("log-density", *BY_DATA):
            raise ValueError(
                f"{path} is a {header.kind} and {first} a {reference.kind}; align posteriors of "
                "one kind (compact makes a MeanField of Samples)"
            )
    if config.to is None and len(paths) == 1 and reference.kind != "Samples":
        raise ValueError(
            f"there is nothing to align {first} to; name a target with --to, or more files"
        )
    return headers


def check_same_network(headers: Mapping[Path, Any]) -> None:
    """Refuse files whose headers name different networks, or params of different shapes."""
    (first, reference), *others = headers.items()
    for path, header in others:
        _check_shapes(reference.params_shapes(), header.params_shapes(), first, path)
        if header.network != reference.network:
            field = _first_field(reference.network or {}, header.network or {})
            raise ValueError(f"{path} and {first} are of different networks: '{field}' differs")


def _check_shapes(
    expected: Mapping[str, tuple[int, ...]],
    given: Mapping[str, tuple[int, ...]],
    first: Path,
    path: Path,
) -> None:
    for leaf in sorted(expected.keys() | given.keys()):
        if expected.get(leaf) != given.get(leaf):
            shapes = [str(s.get(leaf, "nothing of that name")) for s in (given, expected)]
            raise ValueError(
                f"{path} and {first} are of different networks: leaf '{leaf}' is {shapes[0]} "
                f"in one and {shapes[1]} in the other"
            )


def _first_field(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    return next((k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)), "network")


def _to_one(
    config: Align,
    objective: Any,
    symmetry: Any,
    loaded: Mapping[Path, Any],
    headers: Mapping[Path, Any],
    outs: Mapping[Path, Path],
) -> dict[str, Any]:
    import jax

    from onebasin.alignment import FrankWolfe, align

    assert config.to is not None
    files = []
    for path in config.files:
        found = align(
            loaded[path],
            to=loaded[config.to],
            symmetry=symmetry,
            objective=objective,
            starts=config.starts,
            search=FrankWolfe() if config.search else None,
            max_sweeps=config.max_sweeps,
            key=jax.random.key(config.seed),
        )
        report = {
            "file": str(path),
            "out": str(outs[path]),
            "distance_before": found.distance_before,
            "distance_after": found.distance_after,
            "transpositions": int(found.transpositions),
            "sweeps": found.sweeps,
            "converged": found.converged,
            "seconds": found.seconds,
            "starts": [{"name": s.name, "score": s.score} for s in found.starts],
        }
        permutation = {name: found.permutation[name].tolist() for name in found.permutation}
        _write(
            config,
            outs[path],
            found.posterior,
            headers[path],
            {"aligned_to": str(config.to), **report, "permutation": permutation},
        )
        files.append(report)
    return {"objective": config.objective, "to": str(config.to), "files": files}


def _jointly(
    config: Align,
    symmetry: Any,
    loaded: Mapping[Path, Any],
    headers: Mapping[Path, Any],
    outs: Mapping[Path, Path],
) -> dict[str, Any]:
    from onebasin.alignment import align_many
    from onebasin.symmetry import transpositions

    members: Any = [loaded[path] for path in config.files]
    if len(members) == 1:
        members = members[0]
    objective = cast(WeightObjective, config.objective)  # one on data was refused before
    found = align_many(
        members, symmetry=symmetry, objective=objective, max_sweeps=config.max_sweeps
    )
    whole = {
        "objective": config.objective,
        "trace": list(found.trace),
        "rounds": found.rounds,
        "converged": found.converged,
        "seconds": found.seconds,
    }
    if len(config.files) == 1:
        (path,) = config.files
        counts = transpositions(found.stacked).total
        report = {"file": str(path), "out": str(outs[path]), "draws": len(found.permutations)}
        report["mean_transpositions"] = float(sum(counts) / len(found.permutations))  # pyright: ignore
        _write(config, outs[path], found.posteriors, headers[path], {**report, **whole})
        return {**whole, "files": [report]}
    files = []
    for path, q, p in zip(config.files, found.posteriors, found.permutations, strict=True):
        report = {
            "file": str(path),
            "out": str(outs[path]),
            "transpositions": int(transpositions(p)),
        }
        _write(config, outs[path], q, headers[path], {**report, **whole})
        files.append(report)
    return {**whole, "files": files}


def _write(
    config: Align, path: Path, posterior: Any, header: Any, notes: Mapping[str, Any]
) -> None:
    from onebasin.posterior import save

    path.parent.mkdir(parents=True, exist_ok=True)
    provenance = {**header.provenance, "alignment": {"objective": config.objective, **notes}}
    save(path, posterior, network=header.network, overwrite=config.overwrite, **provenance)


def _sentence(report: Mapping[str, Any], objective: str) -> str:
    words: Sequence[str] = [f"{report['file']} → {report['out']}"]
    if "distance_before" in report:
        words = [
            *words,
            f"{objective} {report['distance_before']:.6g} → {report['distance_after']:.6g}",
            f"{report['transpositions']} transpositions",
            f"{report['sweeps']} sweeps, {report['seconds']:.2f} s",
            *([] if report["converged"] else ["not converged"]),
        ]
    elif "draws" in report:
        words = [
            *words,
            f"{report['draws']} draws",
            f"{report['mean_transpositions']:.1f} NoT each",
        ]
    else:
        words = [*words, f"{report['transpositions']} transpositions"]
    return "  ".join(words) + "\n"
