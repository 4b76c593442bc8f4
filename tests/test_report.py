"""The page: self-contained, accessible, and saying what the records say."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import browser
from onebasin.cli import main as cli
from onebasin.digests import sealed
from onebasin.experiments.record import read_record
from onebasin.figures.style import save_figure
from onebasin.report.page import VERDICTS, Source, find_records, overall, render

pytestmark = pytest.mark.fast
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Outline(HTMLParser):
    """Tags as they open and close, and every attribute."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack, self.attributes, self.tags = [], [], []
        self.feed(page)
        assert not self.stack, f"left open: {self.stack}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


def claim(text: str, verdict: str, **others) -> dict:
    plain = {"published": "zero", "source": "them", "criterion": "c", "conditions": "on digits"}
    return {"text": text, "verdict": verdict, "ours": "0.1 ± 0.2", "reason": "", **plain, **others}


@pytest.fixture
def record(tmp_path) -> dict:
    figure = Figure(figsize=(7, 2))
    for ax in figure.subplots(1, 2):
        ax.plot([0, 1], [1, 2])
        ax.set_xlabel("time & <space>")
    save_figure(figure, tmp_path / "one.svg")
    return {
        "record": 1,
        "experiment": "barriers",
        "title": "Barriers & <b>walls</b>",
        "question": "Is there one?",
        "source": "Rossi et al. 2023",
        "preset": "toy",
        "config": {"epochs": 3},
        "claims": [claim(f"claim {i}", verdict) for i, verdict in enumerate(VERDICTS)],
        "tables": [
            {"title": "Numbers", "columns": ["a", "b"], "rows": [["x", 1.5]], "note": "so few"}
        ],
        "figures": [
            {"file": "one.svg", "title": "A figure", "alt": "Two lines that rise"},
            {"file": "one.svg", "title": "Again", "alt": "The same"},
        ],
        "stages": {"all": [{"stage": "fit", "key": "fit-1", "seconds": 90.0}]},
        "data": {"cifar100": {"train": 20000, "test": 5000, "digest": "0a"}},
        "versions": {"onebasin": "0.1.0", "jax": "0.9"},
        "machines": [
            {
                "cores": 2,
                "processor": "x86_64",
                "memory_gib": 24.0,
                "system": "Linux",
                "backend": "cpu",
            }
        ],
    }


def test_page_says_what_the_record_says(record, tmp_path):
    page = render([Source(record, tmp_path)])
    outline = Outline(page)
    for text in ("claim 0", "0.1 ± 0.2", "zero", "on digits", "so few", "2 cores", "jax 0.9"):
        assert text in page
    for verdict, shown in VERDICTS.items():
        # In words, not only in colour.
        assert f'<span class="verdict {shown.kind}">{shown.sign} {verdict}</span>' in page
    assert (
        "Of 4 claims, 1 holds, 1 holds at smaller scale, 1 does not hold and 1 is not tested."
        in page
    )
    assert "1.5 minutes in 1 stages · cifar100: 20,000 training and 5,000 test examples" in page
    assert outline.tags.count("svg") == 2
    assert outline.tags.count("h1") == 1
    assert {"header", "main", "footer", "caption", "figcaption"} <= set(outline.tags)


def test_the_page_opens_with_a_row_per_published_figure(record, tmp_path):
    record["claims"] = [
        claim("first", "holds", figure="Them, figure 1", headline="short one"),
        claim("second", "does not hold", figure="Them, figure 1", headline="short two"),
        claim("third", "holds", figure="Them, figure 1"),
        claim("fourth", "holds at smaller scale", figure="Them, table 2", published="12 %"),
        claim("fifth", "does not hold", figure="ours", published="not in the paper"),
    ]
    page = render([Source(record, tmp_path)])
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    published, own, claims, numbers = tables
    rows = [
        re.sub(r"<[^>]*>", " ", row).split()
        for row in re.findall("<tr>.*?</tr>", published, re.DOTALL)
    ]
    assert [" ".join(row) for row in rows] == [
        "figure published ours verdict",
        "Them, figure 1 zero ✓ short one ✗ short two ◐ holds in part (1 of 2)",
        "Them, table 2 12 % ✓ 0.1 ± 0.2 ✓ holds at smaller scale",
    ]
    assert own.count('<th scope="row">') == 1
    assert [text in claims for text in ("first", "third", "fifth", "judged")].count(True) == 3
    assert "Numbers" in numbers
    # Figures come before tables of numbers, and each table is there once.
    assert page.index("<figure>") < page.index("Claims") < page.index(">Numbers<")
    assert page.count("<caption>Numbers</caption>") == 1
    # On a phone, cells are named by their columns.
    assert 'data-label="published"' in published
    assert 'data-label="ours"' in published
    assert (
        "Of 2 published figures and tables, 1 holds at smaller scale and 1 holds in part." in page
    )


def test_parts_that_were_not_run_are_named_apart(record, tmp_path):
    """They are no published figure, and there is nothing of ours to show."""
    missing = [
        claim(
            "a part",
            "not tested",
            published="–",
            ours="–",
            reason=f"part '{name}' has not been run",
        )
        for name in ("wide", "deep")
    ]
    record["claims"] = [claim("first", "holds", figure="Them, figure 1"), *missing]
    page = render([Source(record, tmp_path)])
    assert "Of 1 published figure or table, 1 holds." in page
    assert "Of 3 claims, 1 holds and 2 are not tested." in page
    unescaped = html.unescape(page)
    assert f"Not run: 2 parts of “{record['title']}”." in unescaped
    assert "Not tested: part 'wide' has not been run; part 'deep' has not been run." in unescaped
    assert "a part" not in page


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "holds at smaller scale", "not tested"], "holds at smaller scale"),
        (["does not hold", "does not hold"], "does not hold"),
        (["holds", "does not hold"], "holds in part (1 of 2)"),
        (["not tested"], "not tested"),
        (["not tested", "does not hold"], "does not hold"),
    ],
)
def test_verdict_on_several_claims(verdicts, words):
    assert overall(verdicts).words == words


def test_page_needs_nothing_from_outside_and_no_script(record, tmp_path):
    page = render([Source(record, tmp_path)])
    outline = Outline(page)
    assert "script" not in outline.tags
    assert "link" not in outline.tags
    assert not outline.values("src")
    assert all(h.startswith("#") for h in outline.values("href") + outline.values("xlink:href"))
    assert "url(" not in re.sub(r"url\(#[^)]*\)", "", page)
    assert "@import" not in page


def test_page_is_accessible(record, tmp_path):
    outline = Outline(render([Source(record, tmp_path)]))
    ids = outline.values("id")
    assert len(ids) == len(set(ids)), "two figures of the same ids on one page"
    for used in re.findall(r"url\(#([^)]*)\)", render([Source(record, tmp_path)])):
        assert used in ids
    labels = [v for tag, key, v in outline.attributes if tag == "svg" and key == "aria-label"]
    assert labels == ["Two lines that rise", "The same"]
    assert ("html", "lang", "en") in outline.attributes
    assert any("width=device-width" in (v or "") for v in outline.values("content"))


def test_text_is_escaped(record, tmp_path):
    record["claims"][0]["text"] = '<img src=x onerror="alert(1)">'
    page = render([Source(record, tmp_path)])
    assert "Barriers &amp; &lt;b&gt;walls&lt;/b&gt;" in page
    assert "<img" not in page


SCRIPT = f"</text></title></style><script>{browser.SCRIPT}</script>"
HANDLERS = f'<img src=x onerror="{browser.SCRIPT}"><svg onload="{browser.SCRIPT}">'
HOSTILE = f"{SCRIPT}\"'>{HANDLERS}{{{{191*7}}}}"


def injected(value: Any) -> Any:
    """Every text of a record made hostile, the names of its fields too where they are free."""
    if isinstance(value, dict):
        return {name: injected(item) for name, item in value.items()}
    if isinstance(value, list):
        return [injected(item) for item in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) else value


def hostile_source(record: dict[str, Any], folder: Path) -> Source:
    kept = [c["verdict"] for c in record["claims"]]
    bad = injected(record)
    for found, verdict in zip(bad["claims"], kept, strict=True):
        found["verdict"] = verdict
        found |= {"reason": HOSTILE, "figure": HOSTILE, "headline": HOSTILE}
    bad["data"] = {HOSTILE: {"train": 1, "test": 2}}
    bad["versions"] = {HOSTILE: HOSTILE}
    bad["config"] = {HOSTILE: [HOSTILE]}
    bad["concluded_with"] = HOSTILE
    name = "<img src=x onerror=run()>.svg"
    (folder / "one.svg").rename(folder / name)
    for figure in bad["figures"]:
        figure["file"] = name
    return Source(read_record(write(folder / "<b onload=run()>.json", sealed(bad))), folder)


def write(path: Path, record: Any) -> Path:
    path.write_text(json.dumps(record))
    return path


def test_no_field_and_no_file_name_injects_anything(record, tmp_path):
    safe = Outline(render([Source(record, tmp_path)]))
    page = render([hostile_source(record, tmp_path)], title=HOSTILE)
    outline = Outline(page)
    # The same elements and attributes as on the page of the harmless record, in the same places
    # as far as both have them: texts add none.
    assert set(outline.tags) == set(safe.tags)
    assert {(tag, key) for tag, key, _ in outline.attributes} == {
        (tag, key) for tag, key, _ in safe.attributes
    }
    assert not [key for _, key, _ in outline.attributes if key.startswith("on")]
    assert "1337" not in page, "nothing is evaluated"


@browser.needed
def test_no_field_runs_a_script_in_a_browser(record, tmp_path):
    page = render([hostile_source(record, tmp_path)], title=HOSTILE)
    path = tmp_path / "page.html"
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n')
    assert len(policy.findall(page)) == 1
    path.write_text(page)
    assert not browser.script_ran(path)
    # Escaping alone is enough, and so is the policy alone.
    path.write_text(policy.sub("", page))
    assert not browser.script_ran(path)
    script = f"<script>{browser.SCRIPT}</script>"
    path.write_text(page.replace("</body>", f"{script}</body>"))
    assert not browser.script_ran(path)
    path.write_text(policy.sub("", page).replace("</body>", f"{script}</body>"))
    assert browser.script_ran(path), "a script that is let through is noticed"


def test_a_policy_forbids_scripts(record, tmp_path):
    page = render([Source(record, tmp_path)])
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert policy in page
    assert page.index(policy) < page.index("<title>")


@browser.needed
@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_fits_its_window(record, tmp_path, width):
    """Nothing is wider than the window, so that a reader never scrolls sideways.

    The page is in a frame, since Chromium's windows are at least 500 pixels wide.
    """
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    probe = (
        "<script>onload = () => parent.postMessage("
        "[innerWidth, document.documentElement.scrollWidth], '*')</script>"
    )
    page = policy.sub("", render([Source(record, tmp_path)]))
    (tmp_path / "page.html").write_text(page.replace("</body>", f"{probe}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<script>onmessage = ({{data}}) => {{ if (data[0] == {width} && data[1] <= {width}) "
        f"{{{browser.SCRIPT}}} }}</script>"
        f'<iframe src="page.html" style="width: {width}px; height: 800px; border: 0"></iframe>'
    )
    assert browser.script_ran(frame, width)


def test_command(record, tmp_path, capsys):
    folder = tmp_path / "runs"
    folder.mkdir()
    (tmp_path / "one.svg").rename(folder / "one.svg")
    (folder / "barriers.json").write_text(json.dumps(record))
    (folder / "run.json").write_text("{}")
    page = tmp_path / "page.html"
    cli.main(["report", str(folder), "--out", str(page), "--title", "Mine"])
    assert capsys.readouterr().out.strip() == str(page)
    assert "<h1>Mine</h1>" in page.read_text()
    assert len(find_records([folder, folder / "barriers.json"])) == 1

    empty = tmp_path / "empty"
    empty.mkdir()
    strange = tmp_path / "strange.json"
    strange.write_text("{}")
    (tmp_path / "cut.json").write_text("{")
    (tmp_path / "alone.json").write_text(json.dumps(record))
    for arguments, message in (
        ([str(folder), "--out", str(page)], "--overwrite"),
        ([str(tmp_path / "nowhere")], "there is no"),
        ([str(empty)], "holds no records"),
        ([str(strange)], "not a record of an experiment"),
        ([str(tmp_path / "cut.json")], "is not JSON"),
        ([str(tmp_path / "alone.json")], "one.svg is missing"),
        ([str(folder), "--out", str(tmp_path / "no" / "page.html")], "make it first"),
    ):
        out = [] if "--out" in arguments else ["--out", str(tmp_path / "other.html")]
        with pytest.raises(SystemExit) as stop:
            cli.main(["report", *arguments, *out])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    cli.main(["report", str(folder), "--out", str(page), "--overwrite"])
