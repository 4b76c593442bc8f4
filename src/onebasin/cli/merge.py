"""`onebasin merge`: average checkpoints after moving them into one basin."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onebasin.cli import plain_checkpoints, shared

if TYPE_CHECKING:
    from onebasin.data import Dataset
    from onebasin.merging import Scores


@dataclass(frozen=True)
class Merge(shared.DataOptions, shared.NetworkOptions, shared.OverwriteOption):
    """Align plain state_dicts to one another and write their average, in the form of the first.

    Files are .safetensors or .pt, or folders of them or of Hugging Face; their tensors are averaged
    one at a time. With --network and --data, scores of the files, the plain and the aligned average
    and the ensemble of all are printed.

    Example: onebasin merge a.safetensors b.safetensors --symmetry net.json --out merged.safetensors

    Example: onebasin merge runs/ --network ./net.py:make_network --data digits --reset --out m.pt
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """State_dicts to merge; the first keeps its labelling of units."""
    out: Path
    """File to write, or a folder if the first is one."""
    data: str | None = None
    """Data set or data file to score on."""
    weights: tuple[float, ...] = ()
    """Share of each file; equal by default."""
    t: float | None = None
    """With two files, the point of the geodesic from the first (0) to the second (1)."""
    reset: bool = False
    """Measure running statistics anew on training data."""
    repair: bool = False
    """With two files, give every hidden unit the mean and standard deviation that they have."""
    max_sweeps: int = 100
    """Maximum number of sweeps over the groups."""
    format: plain_checkpoints.Format | None = None
    """Format to write; by default that of --out."""


COMMAND = Merge


def run(config: Merge) -> None:
    files = plain_checkpoints.expanded(config.files)
    weights = _weights(config, files)
    _refuse_posteriors(files)
    _check_options(config, files)
    shared.check_new(config.out, overwrite=config.overwrite)
    plain_checkpoints.check_format(config.out, config.format)
    data = _data(config)  # before the network, which takes longer
    from onebasin.merging import merge
    from onebasin.symmetry import transpositions

    shape = () if data is None else data.train.x.shape[1:]
    symmetry, network = plain_checkpoints.symmetry_of(config, files[0], shape)
    if config.reset and (network is None or network.running is None):
        raise ValueError(
            "--reset measures running statistics anew, and this network has none; take --repair"
        )
    scored: dict[str, Any] = {}
    if data is not None:
        scored = {"network": network, "data": data, "likelihood": _likelihood(config, data)}
    with shared.writing(config.out):
        found = merge(
            files,
            symmetry=symmetry,
            weights=weights,
            correct="reset" if config.reset else "repair" if config.repair else None,
            max_sweeps=config.max_sweeps,
            **scored,
        )
        found.write(config.out, overwrite=config.overwrite)
    moved = [int(transpositions(p)) for p in found.permutations]
    members = [
        {"file": str(path), "weight": weight, "transpositions": swaps}
        for path, weight, swaps in zip(files, found.weights, moved, strict=True)
    ]
    lines = [
        f"{m['file']}  weight {m['weight']:.3g}  {m['transpositions']} transpositions"
        for m in members
    ]
    result: dict[str, Any] = {"out": str(config.out), "members": members}
    if found.scores is not None:
        result["scores"] = _summary(found.scores)
        lines += _table(found.scores, files, "reset" if config.reset else "repaired")
    text = "\n".join([*lines, f"→ {config.out}"])
    shared.print_result(result, text, as_json=config.json)


def _refuse_posteriors(files: tuple[Path, ...]) -> None:
    from onebasin.posterior import read_header

    for path in files:
        try:
            kind = read_header(path).kind
        except (ValueError, OSError):
            continue  # a state_dict, or what is refused where it is read
        raise ValueError(
            f"{path} is a posterior ({kind}), and merge averages plain state_dicts; "
            "`onebasin compact` fits one Gaussian to several posteriors"
        )


def _weights(config: Merge, files: tuple[Path, ...]) -> tuple[float, ...] | None:
    if len(files) < 2:
        raise ValueError("name at least two files to merge")
    if config.t is None:
        return config.weights or None
    if config.weights:
        raise ValueError("--t and --weights both say how much of each file; give one of them")
    if len(files) != 2:
        raise ValueError(f"--t is for two files, got {len(files)}; give --weights")
    if not 0 <= config.t <= 1:
        raise ValueError(f"--t is {config.t:g}; give a number from 0 to 1")
    return 1 - config.t, config.t


def _check_options(config: Merge, files: tuple[Path, ...]) -> None:
    if config.repair and len(files) != 2:
        raise ValueError(f"--repair is for two files, got {len(files)}; --reset takes any number")
    if config.reset and config.repair:
        raise ValueError("--reset and --repair exclude each other; give one of them")
    for flag in ("data", "reset", "repair"):
        if getattr(config, flag) and config.network is None:
            raise ValueError(f"--{flag} runs the network; name it with --network")
    if (config.reset or config.repair) and config.data is None:
        raise ValueError(
            f"--{'reset' if config.reset else 'repair'} measures units on data; name a data set "
            "with --data"
        )


def _data(config: Merge) -> "Dataset | None":
    if config.data is None:
        if config.root is not None:
            raise ValueError("--root is the folder of data sets; name one with --data")
        return None
    return shared.read_data(config, config.data, config.root)


def _likelihood(config: Merge, data: "Dataset") -> Any:
    from onebasin.cli.opening import likelihood_for
    from onebasin.likelihoods import LearnedNoise

    found = likelihood_for(config, data)
    if isinstance(found, LearnedNoise):
        raise ValueError(
            "state_dicts do not hold the standard deviation of the noise; give --likelihood "
            "gaussian and --noise-std"
        )
    return found


def _summary(scores: "Scores") -> dict[str, Any]:
    summary: dict[str, Any] = {"members": [one.summary() for one in scores.members]}
    for name in ("plain", "merged", "corrected", "ensemble"):
        one = getattr(scores, name)
        if one is not None:
            summary[name] = one.summary()
    return summary


def _table(scores: "Scores", files: tuple[Path, ...], corrected: str) -> list[str]:
    """Scores line by line, on the test examples."""
    rows = [(str(path), one) for path, one in zip(files, scores.members, strict=True)]
    rows += [("plain average", scores.plain), ("aligned average", scores.merged)]
    if scores.corrected is not None:
        rows.append((f"aligned and {corrected}", scores.corrected))
    rows.append(("ensemble", scores.ensemble))
    name = rows[0][1].score_name
    wide = max(len(label) for label, _ in rows)
    shown = (lambda v: f"{v:.2%}") if name == "accuracy" else (lambda v: f"{v:.4g}")
    lines = [f"{'on test data':{wide}}  {'nll':>8}  {name:>8}"]
    return lines + [f"{label:{wide}}  {o.nll:8.4f}  {shown(o.score):>8}" for label, o in rows]
