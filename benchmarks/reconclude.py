"""Recompute the claims, tables and figures of committed records from their recorded numbers.

    python benchmarks/reconclude.py          # or: make records
    python benchmarks/reconclude.py --check  # write nothing; fail if a record is out of date

Nothing is measured again: settings, numbers, seconds, machines and versions stay as recorded. A
part must consist of the stages that it has in the present code, by their names and titles.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onebasin import __version__
from onebasin.digests import sealed
from onebasin.experiments import get_experiment
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, write_findings
from onebasin.experiments.record import (
    RECORD_VERSION,
    Outcome,
    lineage,
    read_record,
)
from onebasin.experiments.runner import write_json
from onebasin.experiments.setting import sizes_of_record

RECORDS = Path(__file__).resolve().parent.parent / "results" / "reproduction"


def recorded_outcomes(
    path: Path, record: Mapping[str, Any], experiment: Experiment[Any]
) -> dict[str, Outcomes]:
    """What the stages of a record produced, if they are the stages of the present code."""
    plans = experiment.plan(experiment.config(record["preset"]))
    outcomes: dict[str, Outcomes] = {}
    for part, numbers in record["numbers"].items():
        plan = plans.get(part, {})
        stages = {stage.title for stage in lineage(plan)}
        if numbers.keys() != plan.keys() or stages != {
            row["stage"] for row in record["stages"][part]
        }:
            raise ValueError(f"{path}: part '{part}' has other stages now; run reproduce again")
        outcomes[part] = {name: Outcome(result, path.parent) for name, result in numbers.items()}
    return outcomes


def findings(path: Path, record: Mapping[str, Any]) -> Findings:
    """What follows from the numbers of a record by the present code."""
    experiment = get_experiment(record["experiment"])
    outcomes = recorded_outcomes(path, record, experiment)
    with sizes_of_record(record):
        return experiment.findings(experiment.config(record["preset"]), outcomes)


def reconcluded(path: Path) -> dict[str, Any]:
    """The record with its conclusions drawn again; writes its figures beside it."""
    record = read_record(path)
    experiment = get_experiment(record["experiment"])
    about = experiment.about
    return sealed(
        {
            **record,
            "record": RECORD_VERSION,
            "title": about.title,
            "question": about.question,
            "source": about.source,
            "concluded_with": __version__,
            **write_findings(findings(path, record), path.parent, experiment.name),
        }
    )


def is_current(path: Path) -> bool:
    """Whether the claims and tables of a record are those of the present code."""
    record = read_record(path)
    found = findings(path, record)
    now = sealed(
        {"claims": [asdict(c) for c in found.claims], "tables": [asdict(t) for t in found.tables]}
    )
    return all(record[name] == now[name] for name in ("claims", "tables"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    parser.add_argument("records", nargs="*", type=Path, help="all committed ones by default")
    chosen = parser.parse_args()
    outdated = False
    for path in chosen.records or sorted(RECORDS.glob("*.json")):
        if chosen.check:
            if not is_current(path):
                outdated = True
                sys.stdout.write(f"{path.name}: out of date\n")
        else:
            write_json(path, reconcluded(path))
            sys.stdout.write(f"{path.name}: written\n")
    sys.exit(1 if outdated else 0)


if __name__ == "__main__":
    main()
