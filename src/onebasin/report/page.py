"""One self-contained HTML page of the records of experiments, without scripts or network access.

Every claim is shown with the published value, ours, the conditions under which ours was measured,
and the verdict that was computed from the numbers.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from onebasin import __version__
from onebasin.experiments import EXPERIMENTS
from onebasin.experiments.facts import FACTS, with_facts
from onebasin.experiments.record import read_record
from onebasin.report.page_style import CSS
from onebasin.report.page_svg import inline_svg

# The CSS class and the sign of each verdict, which is never shown by colour alone.
VERDICTS = {
    "holds": ("holds", "✓"),
    "holds at smaller scale": ("smaller", "✓"),
    "does not hold": ("fails", "✗"),
    "not tested": ("untested", "–"),
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
        skipped = {"run.json", "plan.json", FACTS} if path.is_dir() else set()
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
    body = [
        f"<header><h1>{escape(title)}</h1>{_overview(sources)}</header>",
        f"<main>{_summary(sources)}",
        *(_experiment(source, number) for number, source in enumerate(sources)),
        "</main>",
        f'<footer><p class="soft small">Written by OneBasin {escape(__version__)}.</p></footer>',
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>OneBasin: {escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _overview(sources: Sequence[Source]) -> str:
    records = [source.record for source in sources]
    counts = Counter(claim["verdict"] for r in records for claim in r["claims"])
    said = ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])
    machines = {_machine(m) for r in records for m in r["machines"]}
    packages = {", ".join(f"{k} {v}" for k, v in r["versions"].items()) for r in records}
    presets = sorted({r["preset"] for r in records})
    facts = [
        f"{len(records)} experiment{'s' * (len(records) != 1)}, preset {', '.join(presets)}",
        f"claims: {said}" if said else "no claims",
        f"on {'; '.join(sorted(machines)) or 'no machine yet'}",
        f"with {'; '.join(sorted(packages))}",
    ]
    return '<ul class="facts soft">' + "".join(f"<li>{escape(f)}</li>" for f in facts) + "</ul>"


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']:g} GiB, "
        f"{machine['system']}, JAX on {machine['backend']}"
    )


def _summary(sources: Sequence[Source]) -> str:
    """All claims in one table, grouped by experiment."""
    groups = []
    for number, source in enumerate(sources):
        title = escape(source.record["title"])
        rows = [f'<tr><th scope="rowgroup" colspan="4"><a href="#e{number}">{title}</a></th></tr>']
        for claim in source.record["claims"]:
            words = [escape(claim[name]) for name in ("text", "published", "ours")]
            cells = [_verdict(claim["verdict"]), *words]
            rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
        groups.append("".join(rows))
    heads = ("verdict", "claim", "published", "ours")
    return _table_html("Every claim, published beside ours", heads, groups, kind="claims")


def _table_html(
    caption: str, heads: Sequence[str], bodies: Sequence[str], note: str = "", kind: str = "numbers"
) -> str:
    """A table of one or more bodies, in a region that scrolls if it is wide."""
    head = "".join(f'<th scope="col">{escape(str(h))}</th>' for h in heads)
    below = f'<p class="soft small">{escape(note)}</p>' if note else ""
    # A scrollable region must be named and reachable by keyboard.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="{kind}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>"
        f"{''.join(f'<tbody>{body}</tbody>' for body in bodies)}</table></div>{below}"
    )


def _verdict(verdict: str) -> str:
    kind, sign = VERDICTS[verdict]
    return f'<span class="verdict {kind}">{sign} {escape(verdict)}</span>'


def _experiment(source: Source, number: int) -> str:
    record = source.record
    claims = record["claims"]
    parts = [
        f'<section id="e{number}" aria-labelledby="t{number}">',
        f'<h2 id="t{number}">{escape(record["title"])}</h2>',
        f'<p class="soft">{escape(record["source"])} · {escape(record["experiment"])} · '
        f"preset {escape(record['preset'])}{_time(record)}{escape(_data(record))}</p>",
        f"<p>{escape(record['question'])}</p>",
        *(_figure(source, number, i) for i in range(len(record["figures"]))),
        *(_claim(claim, before) for claim, before in zip(claims, [None, *claims], strict=False)),
        *(_table(table) for table in record["tables"]),
        f"<details><summary>Everything that was set</summary><pre>"
        f"{escape(json.dumps(record['config'], indent=1, ensure_ascii=False))}</pre></details>",
        "</section>",
    ]
    return "\n".join(parts)


def _data(record: dict[str, Any]) -> str:
    """The data sets with the numbers of examples that were read."""
    return "".join(
        f" · {name}: {found['train']:,} training and {found['test']:,} test examples"
        for name, found in record.get("data", {}).items()
    )


def _time(record: dict[str, Any]) -> str:
    stages = {s["key"]: s.get("seconds") for part in record["stages"].values() for s in part}
    seconds = sum(known for known in stages.values() if known is not None)
    if not stages:
        return ""
    return f" · {f'{seconds / 60:.1f} minutes in ' if seconds else ''}{len(stages)} stages"


def _claim(claim: dict[str, Any], before: dict[str, Any] | None) -> str:
    kind, _ = VERDICTS[claim["verdict"]]
    same = before is not None and before["conditions"] == claim["conditions"]
    facts = {
        "published": f"{claim['published']} ({claim['source']})",
        "ours": claim["ours"],
        "judged by": claim["criterion"],
        "measured on": "as above" if same else claim["conditions"],
        "because": claim["reason"],
    }
    listed = "".join(
        f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text
    )
    return (
        f'<article class="claim {kind}"><p>{_verdict(claim["verdict"])}</p>'
        f"<p>{escape(claim['text'])}</p><dl>{listed}</dl></article>"
    )


def _figure(source: Source, number: int, index: int) -> str:
    found = source.record["figures"][index]
    path = source.folder / Path(found["file"]).name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; keep the figures of a record beside it, or run it again"
        )
    drawing = inline_svg(path.read_text(), prefix=f"e{number}f{index}-", label=found["alt"])
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(found["title"])}">{drawing}</div>'
        f"<figcaption>{escape(found['title'])}</figcaption></figure>"
    )


def _table(table: dict[str, Any]) -> str:
    rows = [
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(str(cell))}</th>'
            if i == 0
            else f"<td>{escape(str(cell))}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in table["rows"]
    ]
    return _table_html(table["title"], table["columns"], ["".join(rows)], table["note"])
