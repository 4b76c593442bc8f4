"""SVG files prepared for inclusion in an HTML page.

Several figures share one page, so their ids are made distinct. Scripts, style sheets, event
handlers and external references, which our figures do not have, are removed from any file.
"""

import re
from xml.etree import ElementTree

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
LEFT_OUT = {"script", "style", "metadata", "foreignObject", "title", "desc", "image"}


def inline_svg(text: str, *, prefix: str, label: str) -> str:
    """The figure as an `<svg>` element named `label`, whose ids begin with `prefix`."""
    if "<!ENTITY" in text:
        raise ValueError("an SVG figure declares entities; write it again with OneBasin")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"a figure is not an SVG file ({error}); write it again") from None
    if root.tag != f"{{{SVG}}}svg":
        raise ValueError("a figure is not an SVG file; write it again")
    _clean(root, prefix)
    box = root.get("viewBox", "0 0 400 300").split()
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    # The content of the style sheet that matplotlib writes.
    root.set("style", "stroke-linejoin:round;stroke-linecap:butt")
    root.set("class", "wide" if float(box[2]) > 360 else "narrow")
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, prefix: str) -> None:
    for child in list(element):
        name = child.tag.split("}")[-1] if isinstance(child.tag, str) else "comment"
        if name in LEFT_OUT or name == "comment":
            element.remove(child)
        else:
            _clean(child, prefix)
    for key, value in list(element.attrib.items()):
        name = key.split("}")[-1]
        if name.startswith("on"):
            del element.attrib[key]
        elif name == "id":
            element.set(key, prefix + value)
        elif name == "href":
            if value.startswith("#"):
                element.set(key, f"#{prefix}{value[1:]}")
            else:
                del element.attrib[key]
        elif "url(" in value:
            element.set(key, re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}\1)", value))
