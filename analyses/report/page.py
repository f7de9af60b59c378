"""One offline HTML page: a plain-words verdict above each figure, its control beside it, its numbers below.

Everything is inside the file: style, script, figures. Its own security policy forbids any request. All text is
escaped; `like this` becomes code and an https address becomes a link. A figure whose links go to `section:NAME` (the name
of a section of the same model), or a `Link` in a table, leads there, and unfolds it where it is folded.

>>> section = Section(anchor="heads", title="Which heads copy?", question="Which heads attend by induction?",
...                   verdict="Head 18.6 does: it scores 0.93.", control="In an untrained model it scores 0.02.")
>>> part = ModelPart(name="smollm2", facts=(("class", "HookedTransformer"),), sections=(section,))
>>> html = render_page(Page(title="Report", summary=("Head 18.6 copies.",), parts=(part,), command="interp report",
...                         versions=(("interp-toolkit", "0.1.0"),), created="2026-01-01"))
>>> html.startswith("<!doctype html>"), "http" in html.replace("http-equiv", "").replace("http://www.w3.org", "")
(True, False)
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analyses.report.table import format_table
from interp.figures import css_variables
from interp.records import write_file

_FOLDER = Path(__file__).parent

_SHORTER_TAGS = (
    (r'^(<use .*x="-?\d+(?:\.\d)?)\d*(" y="-?\d+(?:\.\d)?)\d*', r"\1\2"),  # a tenth of a pixel
    (r"var\((--(?:figure|heat)-\w+), #\w+\)", r"var(\1)"),  # the page itself has every colour
    (r"stroke: #000000; stroke-opacity: 0(?![.\d])(; stroke-linejoin: \w+)?", "stroke: none"),
    (r"text-anchor: start; ", ""),
    (r" />$", "/>"),
)
_SHORTER = (
    (r"^(<svg [^<>]*aria-label=[^<>]*>)<title>[^<>]*</title>", r"\1"),  # which says the same
    (r"<g ?/>", ""),
    (r"<g>(<text [^<>]*>[^<>]*</text>)</g>", r"\1"),
    (r'<use [^<>]*? style="([^"]*)"/>(?:<use [^<>]*? style="\1"/>)+', lambda run: _share_style(run[0], run[1])),
    (r'<g (clip-path="[^"]*")><g (style="[^"]*")>((?:<use [^<>]*>)*)</g></g>', r"<g \1 \2>\3</g>"),
)
"""Ways to write the same in fewer characters: a page of a hundred models has thousands of marks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A picture with its caption."""

    svg: str
    """Inline SVG from `interp.figures.to_svg`; its links to `section:NAME` are led there, and it's written shorter."""
    caption: str
    """How to read it."""
    verdict: str = ""
    """What it shows, where the section's verdict does not already say it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """How a number is defined."""

    name: str
    """The number's name as the page uses it."""
    formula: str
    """The formula, in plain characters."""
    source: str
    """The paper it is from."""
    docs: str = ""
    """The page under docs/ that explains it, without its ending."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One question about one model, with its answer."""

    anchor: str
    """Its name in links, unique within the model."""
    title: str
    """Heading."""
    question: str
    """What was asked, in plain words; empty where the heading says it."""
    verdict: str
    """The answer, in plain words, with its number."""
    control: str = ""
    """What the same number is for the control; empty where the verdict says it."""
    figures: tuple[Figure, ...] = ()
    """Its pictures; those that fit stand side by side."""
    table: pd.DataFrame | None = None
    """Its numbers; a reader can sort them."""
    table_caption: str = ""
    """What a row is."""
    definitions: tuple[Definition, ...] = ()
    """How each of its numbers is defined."""
    notes: tuple[str, ...] = ()
    """What a reader must know before relying on it."""
    within: tuple["Section", ...] = ()
    """Sections one level down, below all else."""
    folded: tuple["Section", ...] = ()
    """More of them, of which only the title is seen until a reader opens one or follows a link to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart:
    """All about one model."""

    name: str
    """The model's name."""
    sections: tuple[Section, ...]
    """The questions, in order."""
    line: str = ""
    """One line under the name, such as "30 layers of 9 heads · 134.5 M parameters"."""
    facts: tuple[tuple[str, str], ...] = ()
    """Where it came from: weights hash, class and reason, dtype and so on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The whole report."""

    title: str
    """Heading of the page."""
    summary: tuple[str, ...]
    """The headline findings, each with its control."""
    parts: tuple[ModelPart, ...]
    """The models, in order."""
    command: str
    """The exact command that makes this page again."""
    versions: tuple[tuple[str, str], ...]
    """What it was made with: packages, Python, platform."""
    created: str
    """When it was made."""


def render_page(page: Page) -> str:
    """The whole page as one string; the same page gives the same string."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(prose=_mark_up, table=format_table)
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        style = style.replace(f"/* figure colours: {theme} */", css_variables(theme).replace("\n", " "))
    return environment.get_template("page.html.jinja").render(
        page=page,
        parts=list(_name_parts(page)),
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def write_page(page: Page, path: Path) -> None:
    """Writes the page in one step, so that a reader never opens half of it."""
    write_file(path, render_page(page).encode())


def _name_parts(page: Page) -> Iterator[dict[str, Any]]:
    """Each model with anchors and figures whose ids are unique on the page, also where two models are the same."""
    numbers = count(1)
    for number, part in enumerate(page.parts, start=1):
        anchor = f"model-{number}"
        sections = [_name_section(section, anchor, numbers) for section in part.sections]
        yield {"anchor": anchor, "text": part, "sections": sections}


def _name_section(section: Section, part: str, numbers: Iterator[int]) -> dict[str, Any]:
    figures = []
    for figure in section.figures:
        number = next(numbers)
        width = re.search(r'<svg[^>]* width="([\d.]+)"', figure.svg)
        svg = _lead(_shorten(_rename(figure.svg, number)), part)
        figures.append({"number": number, "svg": svg, "width": width[1] if width else "640", "text": figure})
    inner = {
        name: [_name_section(each, part, numbers) for each in sections]
        for name, sections in (("within", section.within), ("folded", section.folded))
    }
    return {"anchor": f"{part}-{section.anchor}", "text": section, "figures": figures, **inner}


def _rename(svg: str, number: int) -> Markup:
    own = re.search(r'\bid="(figure-[0-9a-f]{12})"', svg)
    if not own:
        return Markup(svg)
    return Markup(svg.replace(f"{own[1]}-", f"f{number}-").replace(own[1], f"figure-{number}"))


def _shorten(svg: Markup) -> Markup:
    """The same picture in fewer characters: the style of neighbouring marks is written once, and no default is."""

    def shorten_tag(tag: re.Match[str]) -> str:
        text = tag[0]
        for long, short in _SHORTER_TAGS:
            text = re.sub(long, short, text)
        return text

    shorter = re.sub(r"<[^<>]+>", shorten_tag, str(svg))
    for long, short in _SHORTER:
        shorter = re.sub(long, short, shorter)
    return Markup(shorter)


def _share_style(marks: str, style: str) -> str:
    bare = marks.replace(f' style="{style}"', "")
    return f'<g style="{style}">{bare}</g>'


def _lead(svg: Markup, part: str) -> Markup:
    """The same with links to the sections of this part; a picture with links is no single image to a screen reader."""
    if 'href="section:' not in svg:
        return svg
    led = re.sub(r'href="section:([^"]*)" target="_blank"', rf'href="#{part}-\1"', str(svg))
    return Markup(led.replace('role="img"', 'role="group"', 1))


def _mark_up(text: str) -> Markup:
    escaped = str(escape(text))
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return Markup(
        re.sub(
            r"https://[^\s<>()\"]+[\w/]", lambda url: f'<a href="{url[0]}" rel="noreferrer">{url[0][8:]}</a>', escaped
        )
    )
