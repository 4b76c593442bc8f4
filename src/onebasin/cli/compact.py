"""`onebasin compact`: one Gaussian for files of draws or of posteriors."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onebasin.choices import FitTarget, RebaseName
from onebasin.cli import shared
from onebasin.cli.opening import Opened, open_posteriors

if TYPE_CHECKING:
    from onebasin.compaction import Effect


@dataclass(frozen=True)
class CompactOptions(shared.SeededOptions, shared.NetworkOptions, shared.OverwriteOption):
    """Replace draws (HMC chains, ensembles) or several posteriors by one Gaussian.

    The draws of all files are aligned by permuting hidden units. Then one Gaussian, diagonal or
    with a low-rank part, is fitted to them.

    Example: onebasin compact hmc.safetensors --rank 60 --balance --out q.safetensors
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files of draws, or of other posteriors, of one network."""
    out: Path
    """File to write."""
    rank: int = 0
    """Rank of the covariance beyond its diagonal."""
    rebase: RebaseName = "likelihood"
    """How the draws are aligned."""
    fit: FitTarget = "weights"
    """What the Gaussian matches: the weights, or the variation of the outputs."""
    anchor: int = 0
    """Index of the draw that --rebase anchor aligns all others to."""
    balance: bool = False
    """First balance the scales of ReLU units."""
    data: str | None = None
    """Data with the inputs for --rebase contributions, --fit outputs and --calibrate; prediction
    before and after is then compared on the test examples."""
    inputs: int = 1000
    """Number of training inputs to use; no labels are used."""
    calibrate: bool = False
    """Scale the noise so that the Gaussian predicts like the draws."""
    chains: tuple[int, ...] = ()
    """Chains to use; by default all."""
    floor: float = 1e-3
    """Smallest variance of a weight, relative to the mean variance of its array."""
    max_rounds: int = 20
    """Maximum number of rounds of aligning and fitting."""
    cluster: str | None = None
    """Match draws on a Dask cluster: local:N, the address of a scheduler, or a YAML file."""


COMMAND = CompactOptions
TESTED = 2000  # test examples on which prediction is compared, at most


def run(config: CompactOptions) -> None:
    """Check the files by their headers, compact, write the Gaussian, and report."""
    opened = _opened(config)
    with shared.writing(config.out):
        _compact(config, opened)


def _compact(config: CompactOptions, opened: Opened) -> None:
    import jax
    import numpy as np

    from onebasin.compaction import Rebase, calibrate, compact
    from onebasin.symmetry import transpositions

    symmetry, network, x = opened.symmetry, None, None
    if opened.knows_network:
        network = opened.network
        draw = np.random.default_rng(0).standard_normal
        x = draw((4, *network.input_shape)).astype(np.float32)
    if config.data is not None:
        network = opened.problem
        x = np.asarray(opened.data.train.x[: config.inputs])
    posteriors: list[Any] = list(opened.posteriors)
    if config.chains:
        posteriors = [part for q in posteriors for part in q.of_chains(config.chains)]
        if not posteriors:
            raise ValueError(f"none of the files holds a chain {config.chains[0]}")
    with shared.cluster(config.cluster) as client:
        found = compact(
            posteriors,
            symmetry=symmetry,
            rank=config.rank,
            rebase=Rebase(config.rebase, anchor=config.anchor, max_rounds=config.max_rounds),
            fit=config.fit,
            balance=config.balance,
            network=network,
            x=x,
            floor=config.floor,
            client=client,
        )
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
        "not_balanced": dict(found.scale_symmetry.left_out) if found.scale_symmetry else {},
        "log_likelihood": found.log_likelihood,
        "trace": list(found.trace),
        "rounds": found.rounds,
        "moves": list(found.moves),
        "converged": found.converged,
        "mean_transpositions": float(np.mean(transpositions(found.permutations).total)),
        "seconds": found.seconds,
    }
    posterior = found.posterior
    if config.calibrate:
        assert network is not None  # there is no data without a network
        assert x is not None
        key = jax.random.key(config.seed)
        scaled = calibrate(posterior, to=found.samples, network=network, x=x, key=key)
        posterior = scaled.posterior
        report["calibration"] = {
            "diagonal": scaled.diagonal,
            "factors": scaled.factors,
            "divergence_before": scaled.tried[1.0, 1.0],
            "divergence": scaled.divergence,
            "inputs": len(x),
        }
    change = None
    if config.data is not None:
        change = found.effect(
            opened.problem,
            opened.data.test.first(TESTED),
            key=jax.random.key(config.seed),
            posterior=posterior,
        )
        report["prediction"] = change.summary()
    shared.print_result(report, _text(report, change), as_json=config.json)
    shared.write_posterior(
        config.out, posterior, opened.header, overwrite=config.overwrite, compaction=report
    )


def _opened(config: CompactOptions) -> Opened:
    """All files, refused by their headers if they are not of one network and kind."""
    if not config.files:
        raise ValueError("name at least one file of draws to compact")
    shared.check_new(config.out, overwrite=config.overwrite)
    if config.rank < 0:
        raise ValueError(f"--rank is {config.rank}; give 0 for a diagonal Gaussian, or more")
    if config.inputs < 1:
        raise ValueError(f"--inputs is {config.inputs}; use at least one input")
    needs_data = config.calibrate or config.rebase == "contributions" or config.fit == "outputs"
    if needs_data and config.data is None:
        raise ValueError(
            "--calibrate, --rebase contributions and --fit outputs need inputs; name a data set "
            "with --data"
        )
    opened = open_posteriors(config, *config.files, same_network=True)
    headers = opened.headers
    kinds = {header.kind == "Samples" for header in headers}
    if len(kinds) > 1:
        raise ValueError("compact takes files of draws or of other posteriors, not both at once")
    if kinds == {False} and len(headers) == 1:
        raise ValueError(f"{config.files[0]} is a Gaussian already; name draws, or more files")
    for flag, given in (("--calibrate", config.calibrate), ("--chains", config.chains)):
        if kinds == {False} and given:
            raise ValueError(f"{flag} needs files of draws; these files hold none")
    return opened


def _text(report: dict[str, Any], change: "Effect | None") -> str:
    """One line, and with data what happened to prediction."""
    lines = ["  ".join(_words(report))]
    if change is not None:
        lines.append(f"on {change.num_examples:,} test examples: {change}")
        if change.suffers:
            lines.append(
                f"warning: prediction suffers, the NLL rises by {change.nll_rise:.3g} nats; try a "
                "higher --rank, --fit outputs or --calibrate"
            )
    return "\n".join(lines)


def _words(report: dict[str, Any]) -> list[str]:
    words = [
        f"{', '.join(report['files'])} → {report['out']}",
        f"{report['members']} members, rank {report['rank']}",
        f"{report['mean_transpositions']:.1f} transpositions each",
        f"log likelihood {report['trace'][0]:.6g} → {report['log_likelihood']:.6g}",
        f"{report['rounds']} rounds, {report['seconds']:.1f} s",
    ]
    if not report["converged"]:
        words.append("not converged")
    if found := report.get("calibration"):
        words.append(
            f"noise: diagonal ×{found['diagonal']:g}, factors ×{found['factors']:g}, divergence "
            f"{found['divergence_before']:.3g} → {found['divergence']:.3g}"
        )
    if report["balanced"]:
        words.append(f"balanced {', '.join(report['balanced'])}")
    return words
