"""The stages of a run as rows of a table, before anything is run."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebasin.experiments.experiment import Experiment
from onebasin.experiments.runner import Run
from onebasin.experiments.stage import Stage


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
