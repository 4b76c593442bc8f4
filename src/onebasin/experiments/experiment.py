"""What an experiment is, and how it is run and recorded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from onebasin.experiments import EXPERIMENTS, PRESETS, Entry
from onebasin.experiments.claims import Claim
from onebasin.experiments.facts import add_facts, read_facts
from onebasin.experiments.record import (
    RECORD_VERSION,
    Outcome,
    RecordedParts,
    lineage,
    versions,
)
from onebasin.experiments.runner import Run, write_json
from onebasin.experiments.setting import examples
from onebasin.experiments.stage import Stage, encode
from onebasin.figures.style import save_figure

Plan = Mapping[str, Stage]
"""The stages of one part of an experiment, by name."""
Outcomes = Mapping[str, Outcome]
"""What the stages of one part produced, by the same names."""
Config = TypeVar("Config")


@dataclass(frozen=True)
class Table:
    """Rows of text or numbers under named columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure with its text alternative."""

    name: str
    title: str
    alt: str
    figure: Figure | Path = field(repr=False)
    """The figure, or the SVG file that a stage wrote."""


@dataclass(frozen=True)
class Findings:
    """What an experiment found; the sum of two is what both found."""

    claims: Sequence[Claim] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(
            [*self.claims, *other.claims],
            [*self.tables, *other.tables],
            [*self.pictures, *other.pictures],
        )


@dataclass(frozen=True)
class Experiment(Generic[Config]):
    """Presets, the stages they need, and what follows from the outcomes.

    `plan(config)` gives the parts, each a set of stages. Parts run in turn, and after each one
    `conclude(config, outcomes)` is called with all finished parts; with fewer parts it concludes
    less. The parts in `optional` run only on request.
    """

    name: str
    presets: Mapping[str, Config]
    plan: Callable[[Config], Mapping[str, Plan]]
    conclude: Callable[[Config, Mapping[str, Outcomes]], Findings]
    optional: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def about(self) -> Entry:
        return EXPERIMENTS[self.name]

    def config(self, preset: str) -> Config:
        if preset not in self.presets:
            raise ValueError(f"there is no preset '{preset}'; choose one of {', '.join(PRESETS)}")
        return self.presets[preset]

    def parts(self, preset: str, chosen: Sequence[str] = ()) -> dict[str, Plan]:
        """The parts to run: the chosen ones, or all that are not optional."""
        known = self.plan(self.config(preset))
        for name in chosen:
            if name not in known:
                raise ValueError(
                    f"'{self.name}' has no part '{name}' at preset {preset}; "
                    f"it has {', '.join(known)}"
                )
        names = chosen or [n for n in known if n not in self.optional.get(preset, ())]
        return {name: plan for name, plan in known.items() if name in names}

    def findings(self, config: Config, outcomes: Mapping[str, Outcomes]) -> Findings:
        """What follows from the finished parts; the claims of the others are not tested."""
        found = self.conclude(config, outcomes) if outcomes else Findings()
        missing = [part for part in self.plan(config) if part not in outcomes]
        return found + Findings([self._untested(part) for part in missing])

    def _untested(self, part: str) -> Claim:
        text, reason = f"{self.about.title} (part '{part}')", f"part '{part}' has not been run"
        return Claim(
            text,
            "–",
            self.about.source,
            "–",
            "",
            "",
            "not tested",
            reason,
            figure=self.about.source,
        )


def reproduce(experiment: Experiment[Any], run: Run, parts: Sequence[str] = ()) -> Path:
    """Run an experiment and write its record and figures; returns the path of the record.

    The record is rewritten after every part. It holds all parts finished so far, including those
    of earlier runs.
    """
    wanted = experiment.parts(run.preset, parts)
    path = write_record(experiment, run)
    for name, plan in wanted.items():
        run.say(f"{experiment.name} / {name}")
        for stage in plan.values():
            run.perform(stage)
        path = write_record(experiment, run)
    return path


def write_record(experiment: Experiment[Any], run: Run) -> Path:
    """Write what follows from the finished parts.

    A part of the previous record is kept if it consists of the same stages, even if their
    folders are gone: hours of work may have been deleted, or done on another machine.
    """
    config = experiment.config(run.preset)
    plans = experiment.plan(config)
    path = run.out / f"{experiment.name}.json"
    before = RecordedParts(path)
    outcomes: dict[str, Outcomes] = {}
    for part, plan in plans.items():
        if all(run.is_done(stage) for stage in plan.values()):
            outcomes[part] = {name: run.outcome(stage) for name, stage in plan.items()}
        elif before.has(part, plan):
            outcomes[part] = before.outcomes(part, plan)
    data = {name for part in outcomes for stage in plans[part].values() for name in stage.data}
    record = {
        "record": RECORD_VERSION,
        "experiment": experiment.name,
        "title": experiment.about.title,
        "question": experiment.about.question,
        "source": experiment.about.source,
        "preset": run.preset,
        "config": encode(config),
        "parts": {part: part in outcomes for part in plans},
        **write_findings(experiment.findings(config, outcomes), run.out, experiment.name),
        "numbers": {
            part: {name: o.result for name, o in done.items()} for part, done in outcomes.items()
        },
        "stages": {
            part: [{"stage": stage.title, "key": stage.key} for stage in lineage(plans[part])]
            for part in outcomes
        },
        "data": {name: examples(name) for name in sorted(data)},
        "versions": versions(),
    }
    write_json(path, record)
    _write_facts(record, before, run.out)
    return path


def _write_facts(record: Mapping[str, Any], before: RecordedParts, folder: Path) -> None:
    """Keep the times that an older record held, and collect the machines of this one."""
    keys = list(dict.fromkeys(row["key"] for part in record["stages"].values() for row in part))
    known = read_facts(folder).get("stages") or {}
    inherited = {k: before.facts[k] for k in keys if k in before.facts and k not in known}
    if inherited:
        add_facts(folder, "stages", inherited)
    machines: list[dict[str, Any]] = []
    for facts in (inherited.get(key) or known.get(key) for key in keys):
        if facts and facts["machine"] and facts["machine"] not in machines:
            machines.append(facts["machine"])
    add_facts(folder, "records", {record["experiment"]: machines})


def write_findings(found: Findings, folder: Path, name: str) -> dict[str, Any]:
    """Write the figures as `name`-….svg; returns claims, tables and figures for a record."""
    figures = []
    for picture in found.pictures:
        target = folder / f"{name}-{picture.name}.svg"
        if not isinstance(picture.figure, Path):
            save_figure(picture.figure, target)
        elif picture.figure.exists():
            target.write_bytes(picture.figure.read_bytes())
        elif not target.exists():  # the folder of its stage is gone, and no copy was kept
            continue
        figures.append({"file": target.name, "title": picture.title, "alt": picture.alt})
    return {
        "claims": [asdict(claim) for claim in found.claims],
        "tables": [asdict(table) for table in found.tables],
        "figures": figures,
    }
