"""What an experiment is, and how one is run and recorded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onebasin.experiments import EXPERIMENTS, PRESETS
from onebasin.experiments.claims import Claim
from onebasin.experiments.record import RECORD_VERSION
from onebasin.experiments.recorded import RecordedParts, lineage
from onebasin.experiments.runner import Outcome, Run, versions, write_json
from onebasin.experiments.setting import examples
from onebasin.experiments.stage import Stage, encode
from onebasin.figures.style import save_figure

Plan = Mapping[str, Stage]
"""The stages of one part of an experiment, by name."""
Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class Table:
    """Rows of text or numbers under named columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure with what a reader who cannot see it is told."""

    name: str
    title: str
    alt: str
    figure: Any = field(repr=False)
    """A matplotlib figure, or the path of an SVG file that a stage made."""


@dataclass(frozen=True)
class Findings:
    """What an experiment found."""

    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Experiment:
    """Presets, the stages they ask for, and what is concluded from their outcomes.

    `plan(config)` gives parts, each a set of stages; parts run one after another and each
    finished one is concluded from at once. Parts named in `optional` run only when asked for.
    """

    name: str
    title: str
    question: str
    presets: Mapping[str, Any]
    plan: Callable[[Any], Mapping[str, Plan]]
    conclude: Callable[[Any, Mapping[str, Outcomes]], Findings]
    optional: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return EXPERIMENTS[self.name].source

    def config(self, preset: str) -> Any:
        if preset not in self.presets:
            raise ValueError(f"there is no preset '{preset}'; choose among {', '.join(PRESETS)}")
        return self.presets[preset]

    def parts(self, preset: str, chosen: Sequence[str] = ()) -> dict[str, Plan]:
        """The parts to run: those chosen, or all but the optional ones."""
        known = self.plan(self.config(preset))
        for name in chosen:
            if name not in known:
                raise ValueError(
                    f"'{self.name}' has no part '{name}' at preset {preset}; "
                    f"it has {', '.join(known)}"
                )
        skipped = set(self.optional.get(preset, ()))
        return {
            name: plan
            for name, plan in known.items()
            if (name in chosen if chosen else name not in skipped)
        }


def reproduce(experiment: Experiment, run: Run, parts: Sequence[str] = ()) -> Path:
    """Run an experiment and write its record and figures; the path of the record.

    The record is written anew after every part, with all parts that are done by then, those
    of earlier runs among them.
    """
    wanted = experiment.parts(run.preset, parts)
    path = write_record(experiment, run)
    for name, plan in wanted.items():
        run.say(f"{experiment.name} / {name}")
        for stage in plan.values():
            run.perform(stage)
        path = write_record(experiment, run)
    return path


def write_record(experiment: Experiment, run: Run) -> Path:
    """Conclude from the parts that are done, and write what was found.

    A part that the record had before stays in it when it is made of the same stages, even if
    their folders are gone: hours of work need not be kept, or may have been done elsewhere.
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
    found = experiment.conclude(config, outcomes)
    record = {
        "record": RECORD_VERSION,
        "experiment": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "source": experiment.source,
        "preset": run.preset,
        "config": encode(config),
        "parts": {part: part in outcomes for part in plans},
        **write_findings(found, run.out, experiment.name),
        "numbers": {
            part: {name: o.result for name, o in done.items()} for part, done in outcomes.items()
        },
        "stages": {
            part: [
                _row(s, run.outcome(s) if run.is_done(s) else before.outcome(s, {}))
                for s in lineage(plans[part])
            ]
            for part in outcomes
        },
        "data": {
            name: examples(name)
            for name in sorted(
                {name for part in outcomes for s in plans[part].values() for name in s.data}
            )
        },
        "versions": versions(),
        "machines": _machines(outcomes),
    }
    write_json(path, record)
    return path


def _row(stage: Stage, outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": stage.title,
        "key": stage.key,
        "seconds": outcome.seconds,
        "machine": outcome.machine,
    }


def write_findings(found: Findings, folder: Path, name: str) -> dict[str, Any]:
    """Write the figures as `name`-….svg; claims, tables and figures as a record keeps them."""
    figures = []
    for picture in found.pictures:
        target = folder / f"{name}-{picture.name}.svg"
        if isinstance(picture.figure, Path):
            if picture.figure.exists():  # or it stays as it is, if its stage's folder is gone
                target.write_bytes(picture.figure.read_bytes())
            elif not target.exists():
                continue
        else:
            save_figure(picture.figure, target)
        figures.append({"file": target.name, "title": picture.title, "alt": picture.alt})
    return {
        "claims": [asdict(claim) for claim in found.claims],
        "tables": [asdict(table) for table in found.tables],
        "figures": figures,
    }


def _machines(outcomes: Mapping[str, Outcomes]) -> list[dict[str, Any]]:
    """The machines the stages ran on, each once."""
    found: list[dict[str, Any]] = []
    for outcome in (o for done in outcomes.values() for o in done.values()):
        if outcome.machine not in found:
            found.append(outcome.machine)
    return found
