"""The page: self-contained, accessible, and saying what the records say."""

import json
import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from onebasin.cli import main as cli
from onebasin.figures.style import save_figure
from onebasin.report.page import VERDICTS, Source, find_records, render
from onebasin.report.page_svg import inline_svg

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
    for verdict, (kind, sign) in VERDICTS.items():
        # In the table of all claims and in the claim's own card: in words, not only in colour.
        assert page.count(f'<span class="verdict {kind}">{sign} {verdict}</span>') == 2
    assert "1 holds, 1 holds at smaller scale, 1 does not hold, 1 not tested" in page
    assert "1.5 minutes in 1 stages · cifar100: 20,000 training and 5,000 test examples" in page
    assert outline.tags.count("svg") == 2
    assert outline.tags.count("h1") == 1
    assert {"header", "main", "footer", "caption", "figcaption"} <= set(outline.tags)


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


def test_foreign_figures_are_made_harmless():
    bad = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        'viewBox="0 0 9 9" onload="alert(1)"><script>alert(1)</script><style>*{color:red}</style>'
        '<image xlink:href="http://example.org/x.png"/><a xlink:href="http://example.org">'
        '<path id="p" clip-path="url(#c)" onclick="alert(1)"/></a><use xlink:href="#p"/></svg>'
    )
    found = inline_svg(bad, prefix="k-", label="x")
    assert not re.search(r"script|alert|style>|image|example", found)
    assert 'id="k-p"' in found
    assert 'href="#k-p"' in found
    assert "url(#k-c)" in found
    for text in ("not xml", "<html/>", '<!DOCTYPE a [<!ENTITY b "c">]><svg/>'):
        with pytest.raises(ValueError, match="SVG"):
            inline_svg(text, prefix="", label="")


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
