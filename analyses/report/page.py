"""One offline HTML page: a plain-words verdict above each figure, its control beside it, its numbers below.

Everything is inside the file: style, script, figures. Its own security policy forbids any request. All text is
escaped; `like this` becomes code and an https address becomes a link.

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
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analyses.report.table import format_table
from interp.figures import css_variables
from interp.records import write_file

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A picture with its caption."""

    svg: str
    """Inline SVG from `interp.figures.to_svg`, put into the page as it is."""
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
    """What was asked, in plain words."""
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


def _name_parts(page: Page) -> Iterator[dict]:
    """Each model with anchors and figures whose ids are unique on the page, also where two models are the same."""
    n_figures = 0
    for number, part in enumerate(page.parts, start=1):
        anchor = f"model-{number}"
        sections = []
        for section in part.sections:
            figures = []
            for figure in section.figures:
                n_figures += 1
                width = re.search(r'<svg[^>]* width="([\d.]+)"', figure.svg)
                figures.append(
                    {
                        "number": n_figures,
                        "svg": _rename(figure.svg, f"figure-{n_figures}"),
                        "width": width[1] if width else "640",
                        "text": figure,
                    }
                )
            sections.append({"anchor": f"{anchor}-{section.anchor}", "text": section, "figures": figures})
        yield {"anchor": anchor, "text": part, "sections": sections}


def _rename(svg: str, name: str) -> Markup:
    own = re.search(r'\bid="(figure-[0-9a-f]{12})"', svg)
    return Markup(svg.replace(own[1], name) if own else svg)


def _mark_up(text: str) -> Markup:
    escaped = str(escape(text))
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return Markup(
        re.sub(
            r"https://[^\s<>()\"]+[\w/]", lambda url: f'<a href="{url[0]}" rel="noreferrer">{url[0][8:]}</a>', escaped
        )
    )
