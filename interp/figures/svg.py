"""A matplotlib figure as SVG that lives inside a page.

Text stays text; every colour of the light theme becomes a CSS variable with that colour as its fallback, so that a page
restyles it (`colour.css_variables`) and a lone file still reads well. Ids belong to this figure only, nothing is loaded
from elsewhere, no style reaches outside, and the same figure gives the same bytes.

>>> from interp.figures.style import Picture
>>> svg = to_svg(Picture(200, 60, alt="An empty picture"))
>>> svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" id="figure-'), 'aria-label="An empty picture"' in svg
(True, True)
"""

import hashlib
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from matplotlib.figure import Figure

from interp.figures.colour import LIGHT, ramp
from interp.figures.style import style_context

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_VARIABLES = {colour: f"var(--figure-{name}, {colour})" for name, colour in LIGHT.items()} | {
    colour: f"var(--heat-{level}, {colour})" for level, colour in enumerate(ramp("light"))
}


def to_svg(figure: Figure) -> str:
    """Inline SVG: text as text, colours as CSS variables, ids of its own, nothing loaded, the same bytes every time."""
    buffer = io.BytesIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with style_context():
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing, dpi=72)
    root = ElementTree.fromstring(buffer.getvalue())
    _strip(root)
    _add_tooltips(root, getattr(figure, "tooltips", {}))
    alt = getattr(figure, "alt", "") or figure.get_suptitle() or "Figure"
    digest = hashlib.sha256(buffer.getvalue() + alt.encode()).hexdigest()[:12]
    _rename_ids(root, f"figure-{digest}")
    _restyle(root)

    title = ElementTree.Element("title")
    title.text = alt
    root.insert(0, title)
    width, height = (round(float(number), 1) for number in root.attrib["viewBox"].split()[2:])
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "id": f"figure-{digest}",
        "role": "img",
        "aria-label": alt,
        "width": f"{width:g}",
        "height": f"{height:g}",
        "viewBox": f"0 0 {width:g} {height:g}",
        "style": f"font-family: var(--figure-font, {FONT}); stroke-linejoin: round; stroke-linecap: butt",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _strip(root: Element) -> None:
    """Drops what must not reach the page (a style for every element, metadata) and what it does not need."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith("}metadata") or child.find("{*}style") is not None:
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        if element.tag != "text":
            element.text = None
        element.tail = None
        for name in ("d", "x", "y", "transform"):
            if name in element.attrib:
                short = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", element.attrib[name])
                element.attrib[name] = " ".join(short.split())
        if re.fullmatch(r"rotate\(-?0 .*\)", element.attrib.get("transform", "")):
            del element.attrib["transform"]


def _add_tooltips(root: Element, tooltips: Mapping[str, Sequence[str]]) -> None:
    for group in root.iter("g"):
        texts = tooltips.get(group.attrib.get("id", ""), ())
        marks = [mark for child in group for mark in (child if child.tag == "g" else (child,)) if mark.tag != "defs"]
        for mark, text in zip(marks, texts, strict=False):
            ElementTree.SubElement(mark, "title").text = text


def _rename_ids(root: Element, prefix: str) -> None:
    """Keeps only the ids that are referred to, under names that no other figure has."""
    text = " ".join(value for element in root.iter() for value in element.attrib.values())
    used = dict.fromkeys(re.findall(r"#([A-Za-z][\w.-]*)", text))
    names = {old: f"{prefix}-{number}" for number, old in enumerate(used)}
    for element in root.iter():
        if "id" in element.attrib and names.get(element.attrib["id"]) is None:
            del element.attrib["id"]
        for name, value in element.attrib.items():
            if name == "id":
                element.attrib[name] = names[value]
            elif "#" in value and name in ("href", "clip-path", "style"):
                element.attrib[name] = re.sub(
                    r"(^|url\()#([\w.-]+)", lambda match: f"{match[1]}#{names.get(match[2], match[2])}", value
                )


def _restyle(root: Element) -> None:
    for element in root.iter():
        if "style" in element.attrib:
            style = re.sub(r"#[0-9a-f]{6}\b", lambda match: _VARIABLES.get(match[0], match[0]), element.attrib["style"])
            style = re.sub(r"\s*font-family:[^;]*;?", "", style)
            style = re.sub(r"(font:[^;']*px)[^;]*", rf"\1 var(--figure-font, {FONT})", style)
            element.attrib["style"] = style.strip().rstrip(";")
