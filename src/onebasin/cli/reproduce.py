"""`onebasin reproduce`: run the experiments of both papers."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from onebasin.choices import PresetName
from onebasin.cli import shared
from onebasin.experiments import EXPERIMENTS


@dataclass(frozen=True)
class Reproduce:
    """Run the experiments of both papers and record a verdict for each claim.

    Finished stages are kept in the folder and shared between experiments. After an interruption,
    the same command continues.

    Example: onebasin reproduce barriers width --preset cpu --out runs/cpu
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Experiments (see --list), or 'all'."""
    preset: PresetName = "cpu"
    """Size: the embedded digits, in seconds; real data on two cores; or as published, on GPUs."""
    out: Path | None = None
    """Folder for records, figures and stages; by default runs/PRESET."""
    parts: tuple[str, ...] = ()
    """Run only these parts of the experiment."""
    list: bool = False
    """List the experiments."""
    dry_run: bool = False
    """List the stages with estimated times, write plan.json, and run nothing."""
    adopt: tuple[Path, ...] = ()
    """Posterior files of finished fits to use instead of fitting again."""
    cluster: str | None = None
    """Run the stages on a Dask cluster: local:N, the address of a scheduler, or a YAML file."""
    checkpoint_interval: float = 60.0
    """Seconds between the checkpoints of a fit."""
    store: str | None = None
    """Keep finished stages at this URL too, such as s3://bucket/run (fsspec)."""
    quiet: bool = False
    """Show no progress."""


COMMAND = Reproduce


def run(config: Reproduce) -> None:
    if config.list:
        for name, entry in EXPERIMENTS.items():
            sys.stdout.write(f"{name:<18} {entry.source:<18} {entry.summary}\n")
        return
    names = _names(config)
    if not config.checkpoint_interval >= 0:
        raise ValueError(
            f"--checkpoint-interval is {config.checkpoint_interval}; give seconds, 0 or more"
        )
    out = config.out or Path("runs") / config.preset
    if config.adopt:
        from onebasin.posterior import read_header

        for path in config.adopt:
            read_header(path)

    from onebasin.experiments import get_experiment
    from onebasin.experiments.experiment import reproduce
    from onebasin.experiments.runner import Run
    from onebasin.experiments.stage_list import list_stages, write_plan

    work = Run(
        *(out, config.preset, config.quiet, config.adopt),
        checkpoint_interval=config.checkpoint_interval,
        store=config.store,
    )
    chosen = {name: get_experiment(name) for name in names}
    rows = list_stages(work, chosen, config.parts)
    work.open()
    write_plan(work, rows)
    _show_plan(rows, in_full=config.dry_run)
    if config.dry_run:
        return
    try:
        if config.cluster:
            from onebasin.experiments.cluster import perform_all

            plans = [e.parts(work.preset, config.parts) for e in chosen.values()]
            stages = [s for parts in plans for plan in parts.values() for s in plan.values()]
            every = [s for last in stages for s in last.lineage()]
            with shared.cluster(config.cluster, every) as client:
                assert client is not None
                perform_all(client, work, stages)
        for experiment in chosen.values():
            _show_claims(reproduce(experiment, work, config.parts))
    except KeyboardInterrupt as stop:
        stop.args = ("stopped; run the same command again to continue",)
        raise
    sys.stdout.write(f"\nRecords and figures: {out}\nFor a page of them: onebasin report {out}\n")


def _names(config: Reproduce) -> list[str]:
    if not config.names:
        raise ValueError("name an experiment, or 'all'; `onebasin reproduce --list` lists them")
    names = [n for name in config.names for n in (EXPERIMENTS if name == "all" else [name])]
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(
                f"there is no experiment '{name}'; choose among {', '.join(EXPERIMENTS)}, or 'all'"
            )
    if config.parts and len(names) > 1:
        raise ValueError("--parts belong to one experiment; name only one")
    return [*dict.fromkeys(names)]


def _show_plan(rows: list[dict[str, Any]], *, in_full: bool) -> None:
    from onebasin.experiments.runner import clock

    last = None
    for row in rows if in_full else []:
        if (row["experiment"], row["part"]) != last:
            last = (row["experiment"], row["part"])
            sys.stdout.write(f"{' / '.join(last)}\n")
        state = "done" if row["done"] else clock(row["seconds"])
        sys.stdout.write(f"  {state:>8}  {row['stage']}\n")
    left = [row["seconds"] for row in rows if not row["done"]]
    missing = "" if all(r["data"] == "here" for r in rows) else "; data not on this machine yet"
    sys.stdout.write(
        f"{len(rows)} stages, {len(rows) - len(left)} done; "
        f"about {clock(sum(left))} left on this machine{missing}\n"
    )
    sys.stdout.flush()


def _show_claims(path: Path) -> None:
    record = json.loads(path.read_text())
    sys.stdout.write(f"\n{record['title']} ({record['source']}), preset {record['preset']}\n")
    for claim in record["claims"]:
        sys.stdout.write(f"  {claim['verdict'].upper():<24} {claim['text']}: {claim['ours']}")
        sys.stdout.write(f" [{claim['reason']}]\n" if claim["reason"] else "\n")
    sys.stdout.flush()
