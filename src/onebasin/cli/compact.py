"""`onebasin compact`: files of draws, or of posteriors, into one Gaussian in a file.

Nothing heavy is imported until `run` is called, so help and errors in flags are instant.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import DataName, FitTarget, RebaseName


@dataclass(frozen=True)
class CompactOptions:
    """Boil draws (HMC chains, ensembles) or several posteriors down to one Gaussian.

    The draws of all files are moved into one basin by permuting their hidden units, then one
    Gaussian, diagonal or with a low-rank part, is fitted to them.

    Example: onebasin compact hmc.safetensors --rank 60 --balance --out q.safetensors
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files of draws, or of other posteriors, of one network."""
    out: Path
    """File to write."""
    rank: int = 0
    """Rank of the covariance beside its diagonal."""
    rebase: RebaseName = "likelihood"
    """Where draws are moved to."""
    fit: FitTarget = "weights"
    """What the Gaussian is made to match: weights, or how outputs vary."""
    anchor: int = 0
    """Draw that all go to, with --rebase anchor."""
    balance: bool = False
    """Balance the scale of ReLU units first."""
    data: DataName | None = None
    """Data set whose training inputs --rebase, --fit and --calibrate look at."""
    root: Path | None = None
    """Folder with the data sets."""
    inputs: int = 1000
    """Training inputs to look at; no labels are used."""
    calibrate: bool = False
    """Scale the noise so that the Gaussian predicts as the draws do."""
    seed: int = 0
    """Of the noise that --calibrate draws."""
    chains: tuple[int, ...] = ()
    """Chains to use; all unless given."""
    floor: float = 1e-3
    """Least variance of a weight, as a share of its array's mean variance."""
    max_rounds: int = 20
    """Rounds of moving and fitting before giving up."""
    overwrite: bool = False
    """Replace the file if it exists."""
    json: bool = False
    """Print the result as one JSON object on standard output."""


COMMAND = CompactOptions


def run(config: CompactOptions) -> None:
    """Check the files by their headers, compact, write the Gaussian, and report."""
    headers = _checked_headers(config)
    import jax
    import numpy as np

    from onebasin.cli.shared import open_data
    from onebasin.cli.symmetry import file_network, network_symmetry
    from onebasin.compaction import Rebase, calibrate, compact
    from onebasin.posterior import load, save
    from onebasin.symmetry import transpositions

    network, input_shape = file_network(config.files[0])
    symmetry = network_symmetry(network, input_shape)
    posteriors = [load(path, mapped=True) for path in config.files]
    if config.chains:
        posteriors = [part for q in posteriors for part in q.of_chains(config.chains)]
        if not posteriors:
            raise ValueError(f"none of the files holds a chain {config.chains[0]}")
    x = np.random.default_rng(0).standard_normal((4, *input_shape)).astype(np.float32)
    if config.data is not None:
        data = open_data(config.data, config.root, input_shape, str(config.files[0]))
        x = np.asarray(data.train.x[: config.inputs])

    def apply(params: Any, x: Any) -> Any:
        return network.apply({"params": params}, x)

    found = compact(
        posteriors,
        symmetry=symmetry,
        rank=config.rank,
        rebase=Rebase(config.rebase, anchor=config.anchor, max_rounds=config.max_rounds),
        fit=config.fit,
        balance=config.balance,
        network=apply,
        x=x,
        floor=config.floor,
    )
    swaps = np.asarray(transpositions(found.permutations).total)
    left_out = dict(found.scale_symmetry.left_out) if found.scale_symmetry else {}
    report: dict[str, Any] = {
        "files": [str(path) for path in config.files],
        "out": str(config.out),
        "chains": list(config.chains) or "all",
        "members": len(found.members),
        "rank": config.rank,
        "rebase": config.rebase,
        "fit": config.fit,
        "start": found.start,
        "balanced": sorted(found.scales) if found.scales else [],
        "not_balanced": left_out,
        "log_likelihood": found.log_likelihood,
        "trace": list(found.trace),
        "rounds": found.rounds,
        "moves": list(found.moves),
        "converged": found.converged,
        "mean_transpositions": float(swaps.mean()),
        "seconds": found.seconds,
    }
    posterior = found.posterior
    if config.calibrate:
        scaled = calibrate(
            posterior, to=found.samples, network=apply, x=x, key=jax.random.key(config.seed)
        )
        posterior = scaled.posterior
        report["calibration"] = {
            "diagonal": scaled.diagonal,
            "factors": scaled.factors,
            "divergence_before": scaled.tried[1.0, 1.0],
            "divergence": scaled.divergence,
            "inputs": len(x),
        }
    provenance = {**headers[0].provenance, "compaction": report}
    config.out.parent.mkdir(parents=True, exist_ok=True)
    save(
        config.out,
        posterior,
        network=headers[0].network,
        overwrite=config.overwrite,
        **provenance,
    )
    sys.stdout.write(json.dumps(report) + "\n" if config.json else _sentence(report))


def _checked_headers(config: CompactOptions) -> list[Any]:
    """The headers of all files, refused if they are not of one network and kind."""
    from onebasin.cli.align import check_same_network
    from onebasin.posterior import read_header

    if not config.files:
        raise ValueError("name at least one file of draws to compact")
    if config.out.exists() and not config.overwrite:
        raise ValueError(f"{config.out} exists; give --overwrite to replace it, or another --out")
    if config.rank < 0:
        raise ValueError(f"rank is {config.rank}; give 0 for a diagonal Gaussian, or more")
    looks = config.calibrate or config.rebase == "contributions" or config.fit == "outputs"
    if looks and config.data is None:
        raise ValueError(
            "--calibrate, --rebase contributions and --fit outputs look at inputs; name --data"
        )
    headers = {path: read_header(path) for path in config.files}
    check_same_network(headers)
    kinds = {header.kind == "Samples" for header in headers.values()}
    if len(kinds) > 1:
        raise ValueError("compact takes files of draws or of other posteriors, not both at once")
    if kinds == {False} and len(headers) == 1:
        raise ValueError(f"{config.files[0]} is a Gaussian already; name draws, or more files")
    if kinds == {False} and config.calibrate:
        raise ValueError("--calibrate needs draws to predict like; these files hold none")
    if kinds == {False} and config.chains:
        raise ValueError("--chains chooses among the chains of draws; these files hold none")
    return list(headers.values())


def _sentence(report: dict[str, Any]) -> str:
    words = [
        f"{', '.join(report['files'])} → {report['out']}",
        f"{report['members']} members, rank {report['rank']}",
        f"{report['mean_transpositions']:.1f} NoT each",
        f"log-likelihood {report['trace'][0]:.6g} → {report['log_likelihood']:.6g}",
        f"{report['rounds']} rounds, {report['seconds']:.1f} s",
        *([] if report["converged"] else ["not converged"]),
        *([_noise_words(report["calibration"])] if "calibration" in report else []),
        *([f"balanced {', '.join(report['balanced'])}"] if report["balanced"] else []),
    ]
    return "  ".join(words) + "\n"


def _noise_words(found: dict[str, Any]) -> str:
    return (
        f"noise: diagonal ×{found['diagonal']:g}, factors ×{found['factors']:g}, divergence "
        f"{found['divergence_before']:.3g} → {found['divergence']:.3g}"
    )
