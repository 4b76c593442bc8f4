"""The stages of a run as rows of a table, before anything is run."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebasin.experiments.experiment import Experiment
from onebasin.experiments.facts import add_facts
from onebasin.experiments.runner import Run, write_json
from onebasin.experiments.stage import Stage

PLAN = "plan.json"


def list_stages(
    run: Run, experiments: Mapping[str, Experiment], parts: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Every stage once, under the first experiment that needs it, as JSON-able rows."""
    rows: list[dict[str, Any]] = []
    seen: set[Stage] = set()
    for name, experiment in experiments.items():
        for part, plan in experiment.parts(run.preset, parts).items():
            for stage in (needed for last in plan.values() for needed in last.lineage()):
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
                        "done": run.is_done(stage),
                        "seconds": stage.seconds,
                    }
                )
    return rows


def write_plan(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write plan.json; what this machine adds to the plan is a fact of the run."""
    asked = [{name: row[name] for name in ("experiment", "part", "stage", "key")} for row in rows]
    write_json(run.out / PLAN, {"preset": run.preset, "stages": asked})
    found = {
        row["key"] or row["stage"]: {name: row[name] for name in ("data", "done", "seconds")}
        for row in rows
    }
    add_facts(run.out, "plan", found)
