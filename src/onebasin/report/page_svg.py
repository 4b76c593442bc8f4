"""SVG files made safe for inclusion in an HTML page.

Only the elements, attributes and properties listed here reach the page, each with a value of the
listed form; everything else is dropped. They are what Matplotlib writes. Several figures share one
page, so their ids are made distinct; black, white and the colours of our figures become variables
of the style sheet, so that figures follow the theme of the page.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from xml.parsers import expat

from onebasin.figures.style import COLOURS

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
DOCTYPE = ("svg", "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd", "-//W3C//DTD SVG 1.1//EN")
LARGEST_DEPTH = 60
LARGEST_COUNT = 200_000  # elements

# No form can match the same text in two ways, so that none takes long on a hostile value.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
_NUMBERS = rf"{_NUMBER}(?:[\s,]+{_NUMBER})*"
_ID = r"[A-Za-z_][\w.:-]*"


def _form(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


NUMBER, ID, LINK = _form(_NUMBER), _form(_ID), _form(f"#({_ID})")
CLIP = _form(rf"url\(#({_ID})\)")
PATH = _form(r"[MmLlHhVvCcSsQqTtAaZz0-9eE+\-.,\s]*")
BOX = _form(rf"{_NUMBER}(?:[\s,]+{_NUMBER}){{3}}")
TRANSFORM = _form(rf"(?:(?:matrix|translate|scale|rotate|skewX|skewY)\(\s*{_NUMBERS}\s*\)[\s,]*)*")
COLOUR = _form(r"none|#[0-9A-Fa-f]{3}|#[0-9A-Fa-f]{6}|[a-z]{3,20}")
LENGTH = _form(rf"{_NUMBER}(?:px|pt|em|%)?")
FONT = _form(r"[\w\s,.'%/-]+")

PLACE = {"x": NUMBER, "y": NUMBER}
COMMON = {"id": ID, "transform": TRANSFORM, "clip-path": CLIP}
ELEMENTS: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    "svg": {"viewBox": BOX},
    "g": COMMON,
    "defs": {},
    "path": {**COMMON, "d": PATH},
    "use": {**COMMON, **PLACE, "href": LINK},
    "clipPath": {"id": ID},
    "rect": {**COMMON, **PLACE, **dict.fromkeys(("width", "height", "rx", "ry"), NUMBER)},
    "text": {**COMMON, **dict.fromkeys(("x", "y", "dx", "dy"), _form(_NUMBERS))},
    "tspan": dict.fromkeys(("x", "y", "dx", "dy"), _form(_NUMBERS)),
}
"""Attributes by element, besides `style`. Names are compared exactly, as in XML."""
WITH_TEXT = ("text", "tspan")
PROPERTIES: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(("fill", "stroke"), COLOUR),
    **dict.fromkeys(("opacity", "fill-opacity", "stroke-opacity", "stroke-miterlimit"), NUMBER),
    **dict.fromkeys(("stroke-width", "stroke-dashoffset", "font-size"), LENGTH),
    "stroke-dasharray": _form(f"none|{_NUMBERS}"),
    "stroke-linecap": _form("butt|round|square"),
    "stroke-linejoin": _form("miter|round|bevel"),
    "fill-rule": _form("nonzero|evenodd"),
    "font": FONT,
    "font-family": FONT,
    "font-style": _form("normal|italic|oblique"),
    "font-weight": _form(r"normal|bold|\d{3}"),
    "text-anchor": _form("start|middle|end"),
}
"""Properties of `style`. No form admits url(, a backslash or a comment."""
NAMES = {"black": "#000000", "white": "#ffffff", "#000": "#000000", "#fff": "#ffffff"}
THEME = {
    "#000000": "currentColor",
    "#ffffff": "var(--plot)",
    "#dddddd": "var(--grid)",
    "#888888": "var(--grey)",
    **{colour.lower(): f"var(--c{i})" for i, colour in enumerate(COLOURS[:-1])},
}
"""Colours of our figures as values that follow the theme; their light values are the same."""


@dataclass
class _Element:
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: "list[_Element | str]" = field(default_factory=list)

    def walk(self) -> "Iterator[_Element]":
        yield self
        for child in self.children:
            if isinstance(child, _Element):
                yield from child.walk()


class _Refused(Exception):
    """What is wrong with a file as a whole."""


def inline_svg(text: str, *, prefix: str, label: str, file: str = "a figure") -> str:
    """The figure as an `<svg>` element named `label`, whose ids begin with `prefix`.

    A ValueError that names `file` says why a file is not an SVG figure.
    """
    try:
        root = _Reader().read(text)
    except (_Refused, expat.ExpatError) as error:
        raise ValueError(
            f"{file} is not an SVG figure ({error}); write it again with OneBasin"
        ) from None
    if "viewBox" not in root.attributes:
        raise ValueError(f"{file} is not an SVG figure (no viewBox); write it again with OneBasin")
    _resolve(root, prefix)
    width, height = (abs(float(n)) for n in re.findall(_NUMBER, root.attributes["viewBox"])[2:])
    root.attributes |= {
        "role": "img",
        "aria-label": label,
        "class": "wide" if width > 360 else "narrow",
        # The content of the style sheet that Matplotlib writes, and text in the theme's colour.
        "style": "stroke-linejoin:round;stroke-linecap:butt;fill:currentColor;"
        f"aspect-ratio:{max(width, 1):g}/{max(height, 1):g}",
    }
    return "".join(_written(root))


class _Reader:
    """Builds a tree of what is allowed while the file is parsed; the rest never enters it."""

    def __init__(self) -> None:
        self.stack: list[_Element | None] = []  # None: dropped, with all that is inside
        self.root: _Element | None = None
        self.count = 0

    def read(self, text: str) -> _Element:
        parser = expat.ParserCreate("utf-8", namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        parser.Parse(text.encode("utf-8", "surrogatepass"), True)
        if self.root is None:
            raise _Refused("its root is not an svg element")
        return self.root

    def _doctype(self, name: str, system: str | None, public: str | None, inside: int) -> None:
        if inside or (name, system, public) != DOCTYPE:
            raise _Refused("it declares a document type other than SVG 1.1")

    def _entity(self, *_: object) -> None:
        raise _Refused("it declares entities")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.stack) >= LARGEST_DEPTH or self.count > LARGEST_COUNT:
            raise _Refused("it is nested too deeply or has too many elements")
        space, _, name = tag.rpartition(" ")
        allowed = space == SVG and name in ELEMENTS
        if not self.stack:
            if not allowed or name != "svg":
                raise _Refused("its root is not an svg element")
            self.root = _Element(name, _attributes(name, attributes))
            self.stack.append(self.root)
            return
        parent = self.stack[-1]
        if parent is None or not allowed or name == "svg":
            self.stack.append(None)
            return
        element = _Element(name, _attributes(name, attributes))
        parent.children.append(element)
        self.stack.append(element)

    def _end(self, tag: str) -> None:
        del tag
        self.stack.pop()

    def _text(self, data: str) -> None:
        parent = self.stack[-1] if self.stack else None
        if parent is not None and parent.name in WITH_TEXT:
            parent.children.append(data)


def _attributes(name: str, given: Mapping[str, str]) -> dict[str, str]:
    forms, kept = ELEMENTS[name], {}
    for key, value in given.items():
        space, _, attribute = key.rpartition(" ")
        if space and (space, attribute) != (XLINK, "href"):
            continue
        if attribute == "style":
            kept["style"] = _style(value)
        elif attribute in forms and forms[attribute].fullmatch(value.strip()):
            kept[attribute] = value.strip()
    return {key: value for key, value in kept.items() if value}


def _style(text: str) -> str:
    """The declarations that are allowed, with the colours of the theme."""
    kept = {}
    for declaration in text.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        form = PROPERTIES.get(name)
        if form is None:
            continue
        if not form.fullmatch(value):
            if form is COLOUR:  # a pattern or a gradient: rather nothing than black
                kept[name] = "none"
            continue
        if form is COLOUR:
            value = NAMES.get(value.lower(), value.lower())
            value = THEME.get(value, value)
        kept[name] = value
    return ";".join(f"{name}:{value}" for name, value in kept.items())


def _resolve(root: _Element, prefix: str) -> None:
    """Make ids distinct, and drop references to anything but a shape of the same figure.

    Only paths may be used, so that no chain of uses can grow.
    """
    kinds = {e.attributes["id"]: e.name for e in root.walk() if "id" in e.attributes}
    for element in root.walk():
        own = element.attributes
        if "id" in own:
            own["id"] = prefix + own["id"]
        for key, form, kind in (("href", LINK, "path"), ("clip-path", CLIP, "clipPath")):
            found = form.fullmatch(own.get(key, ""))
            if found and kinds.get(found[1]) == kind:
                own[key] = own[key].replace("#", f"#{prefix}", 1)
            else:
                own.pop(key, None)


def _written(element: _Element) -> Iterator[str]:
    attributes = "".join(f' {k}="{escape(v)}"' for k, v in element.attributes.items())
    yield f"<{element.name}{attributes}>"
    for child in element.children:
        if isinstance(child, str):
            yield escape(child, quote=False)
        else:
            yield from _written(child)
    yield f"</{element.name}>"
