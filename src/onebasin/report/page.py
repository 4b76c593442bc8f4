"""One self-contained HTML page of the records of experiments, without scripts or network access.

It opens with a row per published figure: what was published, what was found here, the verdict. Then
every experiment follows with its figures, its claims with their criteria, and its tables. Jinja2
escapes every text of a record; figures pass through an allowlist (`page_svg`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from onebasin import __version__
from onebasin.experiments import EXPERIMENTS
from onebasin.experiments.facts import FACTS, with_facts
from onebasin.experiments.record import read_record
from onebasin.experiments.schema import Damaged, read_text
from onebasin.report.page_svg import inline_svg

OURS = "ours"
NOTHING = "–"  # what a claim of a part that has not been run says of ours
NOT_RECORDS = {"run.json", "plan.json", FACTS}
LARGEST_FIGURE = 2**25  # bytes


@dataclass(frozen=True)
class Shown:
    """A verdict with its CSS class and sign: it is never shown by colour alone."""

    words: str
    kind: str
    sign: str


VERDICTS = {
    "holds": Shown("holds", "holds", "✓"),
    "holds at smaller scale": Shown("holds at smaller scale", "smaller", "✓"),
    "does not hold": Shown("does not hold", "fails", "✗"),
    "not tested": Shown("not tested", "untested", "–"),
}


@dataclass(frozen=True)
class Source:
    """A record and the folder its figures are in."""

    record: dict[str, Any]
    folder: Path


def find_records(paths: Sequence[Path]) -> list[Source]:
    """The records in run folders or given as files, each once, in the order of the experiments."""
    found: dict[Path, Source] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}; give a run folder or a record file")
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        skipped = NOT_RECORDS if path.is_dir() else set()
        before = len(found)
        for file in files:
            if file.name not in skipped:
                record = with_facts(read_record(file), file.parent)
                found[file.resolve()] = Source(record, file.parent)
        if path.is_dir() and len(found) == before:
            raise ValueError(
                f"{path} holds no records; run `onebasin reproduce --out` into it first"
            )
    order = {name: place for place, name in enumerate(EXPERIMENTS)}
    return sorted(
        found.values(), key=lambda source: order.get(source.record["experiment"], len(order))
    )


def render(sources: Sequence[Source], title: str = "What was reproduced") -> str:
    """The page."""
    if not sources:
        raise ValueError("there is no record to show; give at least one")
    rows = [row for number, s in enumerate(sources) for row in _rows(s.record, number)]
    return _template().render(
        title=title,
        lead=_lead(sources, rows),
        published_rows=[row for row in rows if row["figure"] != OURS],
        own_rows=[row for row in rows if row["figure"] == OURS],
        not_run=[said for source in sources if (said := _not_run(source.record))],
        sections=[_section(source, number) for number, source in enumerate(sources)],
        facts=_facts([source.record for source in sources]),
    )


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("onebasin.report"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html.jinja")


def overall(verdicts: Iterable[str]) -> Shown:
    """The verdict on several claims.

    >>> overall(["holds", "does not hold", "not tested"]).words
    'holds in part (1 of 2)'
    """
    tested = [verdict for verdict in verdicts if verdict != "not tested"]
    held = [verdict for verdict in tested if verdict != "does not hold"]
    if not tested:
        return VERDICTS["not tested"]
    if held and len(held) < len(tested):
        return Shown(f"holds in part ({len(held)} of {len(tested)})", "partly", "◐")
    if not held:
        return VERDICTS["does not hold"]
    return VERDICTS["holds" if set(held) == {"holds"} else "holds at smaller scale"]


def _figure_of(claim: Mapping[str, Any]) -> str:
    """The published figure that a claim belongs to; older records name only the source."""
    return claim.get("figure") or claim["source"]


def _by_figure(claims: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Claims by figure: published ones in their order, ours last."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for claim in sorted(claims, key=lambda claim: _figure_of(claim) == OURS):
        found.setdefault(_figure_of(claim), []).append(claim)
    return found


def _rows(record: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """The rows of a record in the summary, one per figure of which anything was run."""
    rows = []
    for figure, claims in _by_figure([c for c in record["claims"] if _was_run(c)]).items():
        shown = [claim for claim in claims if claim.get("headline")] or claims
        rows.append(
            {
                "figure": figure,
                "name": record["title"] if figure == OURS else figure,
                "section": number,
                "published": list(dict.fromkeys(claim["published"] for claim in shown)),
                "lines": [
                    {
                        "verdict": VERDICTS[claim["verdict"]],
                        "text": claim.get("headline") or claim["ours"],
                    }
                    for claim in shown
                ],
                "verdict": overall(claim["verdict"] for claim in shown),
            }
        )
    return rows


def _was_run(claim: Mapping[str, Any]) -> bool:
    return claim["ours"] != NOTHING


def _not_run(record: Mapping[str, Any]) -> str:
    """How many parts of an experiment have no results yet, or ""."""
    count = sum(not _was_run(claim) for claim in record["claims"])
    return f"{count} part{'s' * (count != 1)} of “{record['title']}”" if count else ""


def _lead(sources: Sequence[Source], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was found as a whole: by published figure, and by claim."""
    claims = [claim["verdict"] for source in sources for claim in source.record["claims"]]
    figures = [row["verdict"].kind for row in rows if row["figure"] != OURS]
    kinds = [VERDICTS[verdict].kind for verdict in claims]
    named = (("published figure or table", figures), ("claim", kinds))
    return [_count(what, found) for what, found in named if found] or ["No claim was judged."]


def _count(what: str, kinds: Sequence[str]) -> str:
    """How many hold and how many do not.

    >>> _count("claim", ["holds", "fails", "fails"])
    'Of 3 claims, 1 holds and 2 do not hold.'
    """
    counts = Counter(kinds)
    said = [f"{counts[kind]} {_VERBS[kind][counts[kind] != 1]}" for kind in _VERBS if counts[kind]]
    many = what.replace("figure or table", "figures and tables").removesuffix("s") + "s"
    listed = " and ".join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else said[0]
    return f"Of {len(kinds)} {what if len(kinds) == 1 else many}, {listed}."


_VERBS = {
    "holds": ("holds", "hold"),
    "smaller": ("holds at smaller scale", "hold at smaller scale"),
    "partly": ("holds in part", "hold in part"),
    "fails": ("does not hold", "do not hold"),
    "untested": ("is not tested", "are not tested"),
}


def _facts(records: Sequence[Mapping[str, Any]]) -> list[str]:
    machines = {_machine(m) for r in records for m in r.get("machines") or ()}
    packages = {", ".join(f"{k} {v}" for k, v in r["versions"].items()) for r in records}
    again = {r["concluded_with"] for r in records if r.get("concluded_with")}
    return [
        f"{len(records)} experiment{'s' * (len(records) != 1)}, preset "
        f"{', '.join(sorted({r['preset'] for r in records}))}.",
        *([f"Measured on {'; '.join(sorted(machines))}."] if machines else []),
        f"Measured with {'; '.join(sorted(packages))}.",
        *(f"Verdicts recomputed from the recorded numbers by OneBasin {v}." for v in sorted(again)),
        f"Page written by OneBasin {__version__}.",
    ]


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']:g} GiB, "
        f"{machine['system']}, JAX on {machine['backend']}"
    )


def _section(source: Source, number: int) -> dict[str, Any]:
    record = source.record
    about = [record["source"], record["experiment"], f"preset {record['preset']}", *_time(record)]
    data = record.get("data") or {}
    about += [
        f"{n}: {d['train']:,} training and {d['test']:,} test examples" for n, d in data.items()
    ]
    return {
        "title": record["title"],
        "about": " · ".join(about),
        "question": record["question"],
        "figures": [_figure(source, f, f"e{number}f{i}-") for i, f in enumerate(record["figures"])],
        "groups": _groups([claim for claim in record["claims"] if _was_run(claim)]),
        "not_run": [claim["reason"] for claim in record["claims"] if not _was_run(claim)],
        "tables": record["tables"],
        "config": json.dumps(record["config"], indent=1, ensure_ascii=False),
    }


def _time(record: Mapping[str, Any]) -> list[str]:
    rows = {row["key"]: row.get("seconds") for part in record["stages"].values() for row in part}
    seconds = [value for value in rows.values() if value is not None]
    return [f"{sum(seconds) / 60:.1f} minutes in {len(seconds)} stages"] if seconds else []


def _groups(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Claims by figure, and those of a figure by the conditions under which they were measured."""
    return [
        {
            "figure": "Ours" if figure == OURS else figure,
            "conditions": conditions,
            "claims": [{**claim, "verdict": VERDICTS[claim["verdict"]]} for claim in group],
        }
        for figure, own in _by_figure(claims).items()
        for conditions, group in groupby(own, key=lambda claim: claim["conditions"])
    ]


def _figure(source: Source, found: Mapping[str, str], prefix: str) -> dict[str, Any]:
    path = source.folder / Path(found["file"]).name
    try:
        text = read_text(path, LARGEST_FIGURE)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing; keep the figures of a record beside it, or run it again"
        ) from None
    except Damaged as error:
        raise ValueError(f"{path} {error}; run the experiment again") from None
    drawing = inline_svg(text, prefix=prefix, label=found["alt"], file=str(path))
    return {"title": found["title"], "drawing": drawing}
