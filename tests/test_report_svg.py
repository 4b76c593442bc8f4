"""Figures enter the page by an allowlist: nothing that could run or load anything passes."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import browser
from onebasin.figures.style import save_figure
from onebasin.report import page_svg
from onebasin.report.page_svg import ELEMENTS, inline_svg

pytestmark = pytest.mark.fast
RUN = browser.SCRIPT
OPEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'viewBox="0 0 9 9">'
)
HTML = 'xmlns:h="http://www.w3.org/1999/xhtml"'
# The body of a figure, unless it is a whole file.
VECTORS = {
    "script": f"<script>{RUN}</script>",
    "capital script": f"<SCRIPT>{RUN}</SCRIPT>",
    "mixed case": f"<ScRiPt>{RUN}</ScRiPt>",
    "script with source": '<script href="https://example.org/x.js"/>',
    "script by data": f'<script xlink:href="data:text/javascript,{RUN}"/>',
    "html script": f"<h:script {HTML}>{RUN}</h:script>",
    "html image": f'<h:img {HTML} src="x" onerror="{RUN}"/>',
    "unknown namespace": f'<x:script xmlns:x="urn:x">{RUN}</x:script>',
    "svg prefix": f'<s:script xmlns:s="http://www.w3.org/2000/svg">{RUN}</s:script>',
    "script in text": f"<text><script>{RUN}</script></text>",
    "script in CDATA": f"<text><![CDATA[</text></svg><script>{RUN}</script>]]></text>",
    "escaped script": f"<text>&lt;/text&gt;&lt;script&gt;{RUN}&lt;/script&gt;</text>",
    "numeric entities": f"<text>&#60;script&#62;{RUN}&#60;/script&#62;</text>",
    "comment": f"<!--><script>{RUN}</script>--><text>x</text>",
    "processing instruction": f"<?x ><script>{RUN}</script>?><text>x</text>",
    "style sheet instruction": '<?xml-stylesheet href="https://example.org/x.css"?>',
    "event handler": f'<path d="M 0 0" onclick="{RUN}" onload="{RUN}"/>',
    "event in capitals": f'<g ONLOAD="{RUN}"><path d="M 0 0"/></g>',
    "event of focus": f'<text tabindex="0" autofocus="1" onfocus="{RUN}">x</text>',
    "nested svg": f'<svg onload="{RUN}"><path d="M 0 0"/></svg>',
    "mixed case svg": f'<sVg onload="{RUN}"/>',
    "foreign object": f'<foreignObject><h:iframe {HTML} srcdoc="x"/></foreignObject>',
    "foreign object script": f"<foreignObject><script>{RUN}</script></foreignObject>",
    "title": f'<title><h:img {HTML} src="x" onerror="{RUN}"/></title>',
    "description": f"<desc><script>{RUN}</script></desc>",
    "metadata": f"<metadata><script>{RUN}</script></metadata>",
    "link": f'<a href="javascript:{RUN}"><text>x</text></a>',
    "xlink": f'<a xlink:href="javascript:{RUN}"><text>x</text></a>',
    "link in capitals": f'<a xlink:href=" JaVaScRiPt:{RUN}"><text>x</text></a>',
    "animated link": f'<a><animate attributeName="href" values="javascript:{RUN}"/></a>',
    "set": f'<path d="M 0 0"><set attributeName="onclick" to="{RUN}"/></path>',
    "animated motion": f'<animateMotion onbegin="{RUN}" dur="1s"/>',
    "external use": '<use href="https://example.org/x.svg#y"/>',
    "use of data": f'<use xlink:href="data:image/svg+xml,&lt;svg onload=&quot;{RUN}&quot;/>#x"/>',
    "external image": '<image href="https://example.org/x.png"/>',
    "html as image": f'<image xlink:href="data:text/html,&lt;script>{RUN}&lt;/script>"/>',
    "style element": "<style>* { background: url(https://example.org/x) }</style>",
    "imported style": "<style>@import 'https://example.org/x.css';</style>",
    "style by url": '<path d="M 0 0" style="fill: url(https://example.org/x#y)"/>',
    "style by expression": f'<path d="M 0 0" style="width: expression({RUN})"/>',
    "style by escapes": r'<path d="M 0 0" style="fill: u\72l(https://example.org/x)"/>',
    "style by comment": '<path d="M 0 0" style="fill: u/**/rl(https://example.org/x)"/>',
    "style of behaviour": '<path d="M 0 0" style="behavior: url(x.htc); -moz-binding: url(x)"/>',
    "style of image": '<rect style="background-image: url(https://example.org/x)"/>',
    "style that covers": '<rect style="position: fixed; inset: 0; z-index: 9"/>',
    "broken out style": f'<path d="M 0 0" style="fill: red&quot; onload=&quot;{RUN}"/>',
    "external clip": '<path d="M 0 0" clip-path="url(https://example.org/x#y)"/>',
    "filter": '<filter id="f"><feImage href="https://example.org/x"/></filter>',
    "handler element": f'<handler type="text/javascript">{RUN}</handler>',
    "broken out id": f'<path id="x&quot; onload=&quot;{RUN}" d="M 0 0"/>',
    "base": '<text xml:base="https://example.org/">x</text>',
    "form": f'<h:form {HTML} action="https://example.org"><h:input name="x"/></h:form>',
    "template": f"<h:template {HTML}><script>{RUN}</script></h:template>",
}
REFUSED = {
    "no XML": "not xml",
    "nothing": "",
    "another root": "<html/>",
    "no namespace": '<svg viewBox="0 0 9 9"><script/></svg>',
    "capital root": '<SVG xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"/>',
    "entity": f'<!DOCTYPE svg [<!ENTITY b "c">]>{OPEN}<text>&b;</text></svg>',
    "outer entity": f'<!DOCTYPE svg [<!ENTITY b SYSTEM "file:///etc/passwd">]>{OPEN}</svg>',
    "parameter entity": f'<!DOCTYPE svg [<!ENTITY % b "c"> %b;]>{OPEN}</svg>',
    "other document type": f"<!DOCTYPE html>{OPEN}</svg>",
    "outer document type": f'<!DOCTYPE svg SYSTEM "https://example.org/x.dtd">{OPEN}</svg>',
    "unknown entity": f"{OPEN}<text>&nbsp;</text></svg>",
    "cut off": f"{OPEN}<g><path",
    "two roots": f"{OPEN}</svg>{OPEN}</svg>",
    "deep": OPEN + "<g>" * 100 + "</g>" * 100 + "</svg>",
    "no view box": '<svg xmlns="http://www.w3.org/2000/svg"/>',
    "odd view box": '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 a b"/>',
    "attribute twice": f'{OPEN}<g id="a" id="b"/></svg>',
}


class Elements(HTMLParser):
    """Every element with its attributes, as a browser's parser sees the text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def check_harmless(text: str) -> None:
    """Only what is listed is there, and no value names anything outside the figure."""
    lower = {name.lower(): {a.lower() for a in allowed} for name, allowed in ELEMENTS.items()}
    own = {"role", "aria-label", "class", "style"}
    for tag, attributes in Elements(text).found:
        assert tag in lower
        assert attributes.keys() <= lower[tag] | own
        assert re.fullmatch(r"|#k-\w+", attributes.get("href") or "")
        style = attributes.get("style") or ""
        assert not re.search(r"[\\<>{}@]|/\*|url|expression|script", style)
        assert {part.partition(":")[0] for part in style.split(";") if part} <= {
            *page_svg.PROPERTIES,
            "aspect-ratio",
        }


@pytest.mark.parametrize("name", list(VECTORS))
def test_nothing_harmful_passes(name):
    text = inline_svg(f"{OPEN}{VECTORS[name]}</svg>", prefix="k-", label="x")
    check_harmless(text)
    assert "example.org" not in text
    assert browser.MARK not in re.sub(r"<text>[^<]*</text>", "", text), "only as text"


@browser.needed
def test_nothing_runs_in_a_browser(tmp_path):
    """Without a content-security policy, so that the allowlist alone is tested."""
    page = tmp_path / "page.html"
    figures = [inline_svg(f"{OPEN}{v}</svg>", prefix="k-", label="x") for v in VECTORS.values()]
    page.write_text(f"<!DOCTYPE html><title>x</title>{''.join(figures)}")
    assert not browser.script_ran(page)
    page.write_text(f"<!DOCTYPE html><title>x</title>{OPEN}{VECTORS['script']}</svg>")
    assert browser.script_ran(page), "a script that is let through is noticed"


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_no_figure_is_refused_by_name(name):
    with pytest.raises(
        ValueError, match=r"^one\.svg is not an SVG figure \(.+\); write it"
    ) as error:
        inline_svg(REFUSED[name], prefix="", label="", file="one.svg")
    assert "\n" not in str(error.value)


def test_references_stay_inside_a_figure_and_cannot_multiply():
    text = inline_svg(
        f'{OPEN}<defs><path id="p" d="M 0 0"/><clipPath id="c"><rect x="0" y="0"/></clipPath>'
        '<g id="many"><use href="#p"/><use href="#p"/></g></defs>'
        '<g id="more"><use href="#many"/><use href="#more"/><use href="#nothing"/></g>'
        '<path d="M 0 0" clip-path="url(#c)"/><path d="M 0 0" clip-path="url(#p)"/></svg>',
        prefix="k-",
        label="x",
    )
    # A group cannot be used: uses of uses would grow without bound.
    assert re.findall('href="([^"]*)"', text) == ["#k-p", "#k-p"]
    assert re.findall('clip-path="([^"]*)"', text) == ["url(#k-c)"]
    assert re.findall(' id="([^"]*)"', text) == ["k-p", "k-c", "k-many", "k-more"]


def test_a_hostile_value_takes_no_time():
    for value in ("1" * 200_000 + "x", " " * 200_000, "rotate(1) " * 20_000 + "x"):
        inline_svg(f'{OPEN}<path transform="{value}" d="{value}"/></svg>', prefix="", label="")


def test_the_label_is_escaped():
    text = inline_svg(f"{OPEN}</svg>", prefix="", label=f'"><script>{RUN}</script>')
    (element,) = Elements(text).found
    assert element[1]["aria-label"] == f'"><script>{RUN}</script>'


def a_figure(path: Path) -> str:
    """Curves, bands, markers, mathematics, a clipped line, text in an odd place, a legend."""
    figure = Figure(figsize=(7, 3))
    left, middle, right = figure.subplots(1, 3)
    x = np.linspace(0, 1, 20)
    left.plot(x, x**2, "o--", label=r"$\sigma_0$", color="#0072B2")
    left.fill_between(x, x**2 - 0.1, x**2 + 0.1, color="#D55E00", alpha=0.2)
    left.legend()
    left.set(xlim=(0, 0.5), title="this & <b>that</b>", xlabel="$\\hat{R}$ of a weight")
    middle.contourf(np.outer(x, x), cmap="cividis")
    middle.annotate("here", (5, 5), rotation=30, bbox={"facecolor": "white"})
    right.scatter(x, np.cos(9 * x), facecolors="none", edgecolors="#009E73")
    right.errorbar(x, x, yerr=0.1, color="black", marker="s", markerfacecolor="white")
    return save_figure(figure, path).read_text()


def test_a_figure_of_matplotlib_keeps_its_elements(tmp_path):
    text = a_figure(tmp_path / "figure.svg")
    cleaned = inline_svg(text, prefix="k-", label="x")
    dropped = {"style", "metadata", "type", "title", "format", "creator", "agent", "work", "rdf"}
    before = [tag for tag, _ in Elements(text).found if tag.split(":")[-1] not in dropped]
    after = [tag for tag, _ in Elements(cleaned).found]
    assert after == before
    for attribute in ("d", "transform", "x", "y", "clip-path"):
        found = [a.get(attribute) for _, a in Elements(cleaned).found]
        assert len([v for v in found if v]) == text.count(f' {attribute}="')
    assert "σ" in cleaned
    assert "this &amp; &lt;b&gt;that&lt;/b&gt;" in cleaned
    check_harmless(cleaned)


@browser.needed
def test_a_figure_looks_the_same(tmp_path):
    text = a_figure(tmp_path / "figure.svg")
    css = (Path(page_svg.__file__).parent / "templates" / "page.css").read_text()
    cleaned = inline_svg(text, prefix="k-", label="x")
    original = text[text.index("<svg") :]
    pictures = []
    for name, svg in (("cleaned", cleaned), ("original", original)):
        page = tmp_path / f"{name}.html"
        page.write_text(
            f"<!DOCTYPE html><style>{css} .plot svg {{ width: 800px !important }} "
            f':root {{ color-scheme: light }}</style><div class="plot">{svg}</div>'
        )
        pictures.append(browser.picture(page))
    assert pictures[0].std() > 0.1
    np.testing.assert_array_equal(*pictures)
