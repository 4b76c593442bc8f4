"""`onebasin reproduce`: run experiments of both papers."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onebasin.experiments import EXPERIMENTS

if TYPE_CHECKING:
    from onebasin.experiments.stage import Stage


@dataclass(frozen=True)
class Reproduce:
    """Run experiments of both papers and record what was found, with a verdict for each claim.

    Finished stages are kept in the folder and shared; the same command goes on after a stop.

    Example: onebasin reproduce barriers width --preset cpu --out runs/cpu
    """

    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")
    ] = ()
    """Experiments (see --list), or 'all'."""
    preset: Literal["toy", "cpu", "paper"] = "cpu"
    """Embedded digits in seconds; real data on two cores; the published sizes, for GPUs."""
    out: Path | None = None
    """Folder for records, figures and stages; by default runs/PRESET."""
    parts: tuple[str, ...] = ()
    """Only these parts of the experiment."""
    list: bool = False
    """Show the experiments."""
    dry_run: bool = False
    """Show the stages with estimated times, write plan.json, and run nothing."""
    adopt: tuple[Path, ...] = ()
    """Files of finished fits to take in place of fitting the same again."""
    quiet: bool = False
    """No progress."""


COMMAND = Reproduce


def run(config: Reproduce) -> None:
    if config.list:
        _show_list()
        return
    names = _names(config)
    out = config.out or Path("runs") / config.preset
    for path in config.adopt:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path} to adopt")

    from onebasin.experiments import get_experiment
    from onebasin.experiments.experiment import reproduce
    from onebasin.experiments.runner import Run, write_json

    work = Run(out, config.preset, config.quiet, config.adopt)
    chosen = {name: get_experiment(name) for name in names}
    stages = {
        name: {
            part: [s for stage in plan.values() for s in stage.lineage()]
            for part, plan in e.parts(config.preset, config.parts).items()
        }
        for name, e in chosen.items()
    }
    work.open()
    rows = _rows(work, stages)
    write_json(out / "plan.json", {"preset": config.preset, "stages": rows})
    _show_plan(rows, every=config.dry_run)
    if config.dry_run:
        return
    try:
        for experiment in chosen.values():
            path = reproduce(experiment, work, config.parts)
            _show_claims(path)
    except KeyboardInterrupt as stop:
        sys.stderr.write("onebasin: stopped; the same command goes on from here\n")
        sys.stderr.flush()
        sys.exit(getattr(stop, "exit_code", 130))
    sys.stdout.write(f"\nRecords and figures: {out}\nA page of them: onebasin report {out}\n")


def _names(config: Reproduce) -> list[str]:
    if not config.names:
        raise ValueError("name an experiment, or 'all'; `onebasin reproduce --list` shows them")
    names = [n for name in config.names for n in (EXPERIMENTS if name == "all" else [name])]
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(
                f"there is no experiment '{name}'; choose among {', '.join(EXPERIMENTS)}, or 'all'"
            )
    if config.parts and len(names) > 1:
        raise ValueError("--parts belong to one experiment; name only one")
    return list(dict.fromkeys(names))


def _show_list() -> None:
    for name, entry in EXPERIMENTS.items():
        sys.stdout.write(f"{name:<18} {entry.source:<18} {entry.summary}\n")


def _rows(work: Any, stages: "dict[str, dict[str, list[Stage]]]") -> list[dict[str, Any]]:
    """Every stage once, under the first experiment that needs it."""
    rows, seen = [], set()
    for name, parts in stages.items():
        for part, listed in parts.items():
            for stage in dict.fromkeys(listed):
                if stage in seen:
                    continue
                seen.add(stage)
                here = stage.data_is_here
                rows.append(
                    {
                        "experiment": name,
                        "part": part,
                        "stage": stage.title,
                        "key": stage.key if here else None,
                        "data": "here" if here else "not on this machine",
                        "done": work.is_done(stage),
                        "seconds": stage.seconds,
                    }
                )
    return rows


def _show_plan(rows: list[dict[str, Any]], *, every: bool) -> None:
    from onebasin.experiments.runner import clock

    if every:
        last = None
        for row in rows:
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
    import json

    record = json.loads(path.read_text())
    sys.stdout.write(f"\n{record['title']} ({record['source']}), preset {record['preset']}\n")
    for claim in record["claims"]:
        sys.stdout.write(f"  {claim['verdict'].upper():<24} {claim['text']}: {claim['ours']}")
        sys.stdout.write(f" [{claim['reason']}]\n" if claim["reason"] else "\n")
    sys.stdout.flush()
