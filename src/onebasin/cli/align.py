"""`onebasin align`: align files to one target, or jointly."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import tyro

from onebasin.choices import (
    DataObjective,
    KindsName,
    LearnedObjective,
    ObjectiveName,
    StartName,
    WeightObjective,
)
from onebasin.cli import align_checkpoints, plain_checkpoints, shared
from onebasin.cli.opening import MATCHED, Opened, open_posteriors

if TYPE_CHECKING:
    from onebasin.alignment import PathLoss
    from onebasin.alignment.objective import ObjectiveLike
    from onebasin.posterior import Posterior
    from onebasin.symmetry import Symmetry


@dataclass(frozen=True)
class Align(shared.SeededOptions, shared.NetworkOptions, shared.OverwriteOption):
    """Move posterior files into the basin of another (--to), or all into one basin.

    With --to, every file is aligned to that one. Without it, two or more files, or the draws of
    one file of samples, are aligned jointly, without a reference.

    Plain state_dicts (.safetensors, .pt, folders of either or of Hugging Face) need --network or
    --symmetry, and are written with the names, data types and metadata that they have.

    Example: onebasin align q1.safetensors --to q0.safetensors --out moved.safetensors
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Posterior files to move."""
    out: Path
    """File to write, or a folder if there are several files."""
    to: Path | None = None
    """Posterior file to align them to."""
    objective: ObjectiveName | LearnedObjective = "w2"
    """Objective to minimise. Activations and correlations compare units on data (--data). path-loss
    learns on the loss of the path: slower, and the lowest barriers between residual
    networks."""
    data: str | None = None
    """Data set or data file on whose training examples units are compared or permutations are
    learned."""
    examples: int | None = None
    """Number of these training examples; by default 1,000, and all of them for path-loss."""
    steps: int = 600
    """Gradient steps of path-loss; with --kinds all, as many more on scales and matrices alone."""
    keep_norms: bool = False
    """With path-loss, learn on the path on which units before a normalisation keep the norm of
    their mean (see barrier --path norm-keeping)."""
    time_limit: float | None = None
    """Seconds after which path-loss stops with the best permutation so far."""
    starts: tuple[StartName, ...] = ("auto",)
    """Starting points; the best result is kept. Repeat "random" for several; "shaken" perturbs
    the best result so far."""
    search: bool = False
    """Search further with the Frank–Wolfe algorithm (slow for wide networks)."""
    max_sweeps: int = 100
    """Maximum number of sweeps over the groups."""
    kinds: KindsName = "permutation"
    """Align by permutations only, or by all: signs, scales, rotations and invertible maps too
    (--to, with --objective w2, l2 or path-loss)."""
    cluster: str | None = None
    """Match draws to each other on a Dask cluster: local:N, the address of a scheduler, or a YAML
    file."""
    format: plain_checkpoints.Format | None = None
    """Format of state_dicts written; by default that of --out or of each file."""


COMMAND = Align
ON_DATA = (*get_args(DataObjective), *get_args(LearnedObjective))
JUDGED = 500  # training examples on which learned permutations are judged, or half of them


def run(config: Align) -> None:
    """Check the files by their headers, align, write the moved posteriors, and report."""
    _check_options(config)
    config = replace(config, files=plain_checkpoints.expanded(config.files))
    outs = _outputs(config)
    if align_checkpoints.are_checkpoints((*config.files, *([config.to] if config.to else []))):
        if config.kinds != "permutation":
            raise ValueError("plain state_dicts are moved by permutations only; drop --kinds")
        symmetry, _ = plain_checkpoints.symmetry_of(config, config.files[0])
        align_checkpoints.run(config, outs, symmetry)
        return
    if config.format is not None:
        raise ValueError("--format is for plain state_dicts; posteriors are safetensors files")
    opened = _opened(config)
    with shared.writing(*outs.values()):
        _align(config, outs, opened)


def _align(config: Align, outs: dict[Path, Path], opened: Opened) -> None:
    objective, symmetry = _objective(config, opened), opened.symmetry
    loaded = dict(zip(opened.paths, opened.posteriors, strict=True))
    if config.to is None:
        whole, moved = _jointly(config, objective, symmetry, loaded)
    else:
        whole, moved = {"to": str(config.to)}, list(_to_one(config, objective, symmetry, loaded))
    reports = [
        {"file": str(path), "out": str(outs[path]), **report} for path, _, report, _ in moved
    ]
    result = {"objective": config.objective, **whole, "files": reports}
    lines = [_line(report, config.objective) for report in reports]
    shared.print_result(result, "\n".join(lines), as_json=config.json)
    headers = dict(zip(opened.paths, opened.headers, strict=True))
    for (path, posterior, _, record), report in zip(moved, reports, strict=True):
        record = {"objective": config.objective, **report, **record}
        shared.write_posterior(
            outs[path], posterior, headers[path], overwrite=config.overwrite, alignment=record
        )


def _check_options(config: Align) -> None:
    """Refuse combinations of options that make no sense."""
    name = f"--objective {config.objective}"
    if not config.files:
        raise ValueError("name at least one posterior file to align")
    if config.examples is not None and config.examples < 2:
        raise ValueError(f"--examples is {config.examples}; compare units on at least two")
    if config.steps < 0:
        raise ValueError(f"--steps is {config.steps}; give a number of steps, 0 or more")
    rich = config.objective in ("w2", "l2", "path-loss")
    if config.kinds == "all" and (config.to is None or not rich):
        raise ValueError("--kinds all is for one target (--to) and --objective w2, l2 or path-loss")
    if config.to is None and (config.search or config.starts != ("auto",)):
        raise ValueError("--starts and --search are for one target; name it with --to")
    if config.cluster and (config.to is not None or config.objective == "path-loss"):
        raise ValueError("--cluster is for joint alignment by weights; drop it or --to")
    if config.objective not in ON_DATA:
        if config.data is not None or config.root is not None:
            raise ValueError(
                f"{name} uses no data; drop --data and --root, or take --objective correlations"
            )
    elif config.to is None and config.objective != "path-loss":
        raise ValueError(f"{name} is for one target; name it with --to")
    elif config.data is None:
        does = "learns" if config.objective == "path-loss" else "compares units"
        raise ValueError(f"{name} {does} on data; name a data set with --data")
    if config.objective != "path-loss" and (config.time_limit is not None or config.keep_norms):
        option = "--keep-norms" if config.keep_norms else "--time-limit"
        raise ValueError(f"{option} is for --objective path-loss; drop it for {name}")


def _objective(config: Align, opened: Opened) -> "ObjectiveLike | PathLoss":
    if config.objective not in ON_DATA:
        return cast(WeightObjective, config.objective)
    data = opened.data
    if config.objective == "path-loss":
        from onebasin.alignment import PathLoss

        train = data.train.first(config.examples)
        judged = min(JUDGED, len(train.x) // 2)
        return PathLoss(
            opened.problem,
            train,
            judged=judged,
            steps=config.steps,
            turns=config.steps,
            keep_norms=config.keep_norms,
            time_limit=config.time_limit,
        )
    from onebasin.alignment.activations import objective_on

    x = data.train.x[: config.examples or MATCHED]
    return objective_on(config.objective, opened.network, x)


def _outputs(config: Align) -> dict[Path, Path]:
    """The file to write for each file read; refused before any work if it exists."""
    if len(config.files) == 1:
        # A folder in the form of Hugging Face gives a folder.
        if config.out.is_dir() and not config.files[0].is_dir():
            raise ValueError(f"{config.out} is a folder; with one posterior --out is a file")
        plain_checkpoints.check_format(config.out, config.format)
        outs = {config.files[0]: config.out}
    else:
        if config.out.exists() and not config.out.is_dir():
            raise ValueError(f"{config.out} is a file; with several posteriors --out is a folder")
        form = config.format
        names = [f.with_suffix(f".{form}").name if form else f.name for f in config.files]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two files are called {name}; rename one, or align it alone")
        outs = {f: config.out / name for f, name in zip(config.files, names, strict=True)}
    for path in outs.values():
        shared.check_new(path, overwrite=config.overwrite)
    return outs


def _opened(config: Align) -> Opened:
    """All files, refused by their headers if they are not of one network and kind."""
    first = [config.to] if config.to else []
    # A file given twice is one file.
    paths = dict.fromkeys([*first, *config.files])
    opened = open_posteriors(config, *paths, same_network=True)
    (first, reference), *others = zip(opened.paths, opened.headers, strict=True)
    for path, header in others:
        mixes_kinds = config.objective in ("log-density", *ON_DATA)
        if header.kind != reference.kind and not mixes_kinds:
            raise ValueError(
                f"{path} is a {header.kind} and {first} a {reference.kind}; align posteriors of "
                "one kind (compact makes a MeanField of Samples)"
            )
    if config.to is None and len(opened.paths) == 1 and reference.kind != "Samples":
        raise ValueError(
            f"there is nothing to align {first} to; name a target with --to, or more files"
        )
    return opened


# A file, the posterior moved, what is reported of it, and what only the file written records.
Moved = tuple[Path, "Posterior", dict[str, Any], dict[str, Any]]


def _to_one(
    config: Align,
    objective: "ObjectiveLike | PathLoss",
    symmetry: "Symmetry",
    loaded: "Mapping[Path, Posterior]",
) -> Iterator[Moved]:
    import jax

    from onebasin.alignment import FrankWolfe, align

    assert config.to is not None
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
            "distance_before": found.distance_before,
            "distance_after": found.distance_after,
            "transpositions": int(found.transpositions),
            "sweeps": found.sweeps,
            "converged": found.converged,
            "seconds": found.seconds,
            "starts": [{"name": s.name, "score": s.score} for s in found.starts],
        }
        permutation = {name: found.permutation[name].tolist() for name in found.permutation}
        record = {"aligned_to": str(config.to), "permutation": permutation}
        if config.kinds == "all":
            report["exact"] = found.exact
        yield path, found.posterior, report, record


def _jointly(
    config: Align,
    objective: "ObjectiveLike | PathLoss",
    symmetry: "Symmetry",
    loaded: "Mapping[Path, Posterior]",
) -> tuple[dict[str, Any], list[Moved]]:
    import jax

    from onebasin.alignment import align_many
    from onebasin.posterior import Samples
    from onebasin.symmetry import transpositions

    members = [loaded[path] for path in config.files]
    with shared.cluster(config.cluster) as client:
        found = align_many(
            members[0] if isinstance(members[0], Samples) and len(members) == 1 else members,
            symmetry=symmetry,
            objective=objective,
            max_sweeps=config.max_sweeps,
            key=jax.random.key(config.seed),
            client=client,
        )
    whole = {
        "trace": list(found.trace),
        "rounds": found.rounds,
        "converged": found.converged,
        "seconds": found.seconds,
    }
    counts = [int(transpositions(p)) for p in found.permutations]
    if len(members) == 1:
        report = {"draws": len(counts), "mean_transpositions": sum(counts) / len(counts)}
        return whole, [(config.files[0], found.posteriors, report, whole)]
    moved = zip(config.files, found.posteriors, counts, strict=True)
    return whole, [(path, q, {"transpositions": count}, whole) for path, q, count in moved]


def _line(report: Mapping[str, Any], objective: str) -> str:
    words = [f"{report['file']} → {report['out']}"]
    if "draws" in report:
        swaps = f"{report['mean_transpositions']:.1f} transpositions each"
        words += [f"{report['draws']} draws", swaps]
    elif "distance_before" in report:
        words += [
            f"{objective} {report['distance_before']:.6g} → {report['distance_after']:.6g}",
            f"{report['transpositions']} transpositions",
            f"{report['sweeps']} sweeps, {report['seconds']:.2f} s",
            *([] if report["converged"] else ["not converged"]),
        ]
    else:
        words.append(f"{report['transpositions']} transpositions")
    return "  ".join(words)
