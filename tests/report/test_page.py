import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from analyses.report import Figure, Link, ModelPart, Page, Section, render_page, write_page
from interp.errors import InputError
from tests.report.example import HOSTILE, make_folded, make_page


class Reader(HTMLParser):
    """Every element with its attributes, and the text that a reader sees."""

    VOID = ("meta", "link", "img", "br", "hr", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def html() -> str:
    return render_page(make_page())


@pytest.fixture(scope="module")
def reader(html: str) -> Reader:
    return Reader(html)


def test_every_element_is_closed_in_order(reader: Reader):
    assert reader.open == []


def test_a_hostile_name_is_shown_as_text_everywhere(reader: Reader):
    assert "x" not in reader.attributes("id")
    assert {tag for tag, _ in reader.elements} & {"img", "b"} <= {"b"}
    assert all("onerror" not in attributes for _, attributes in reader.elements)
    text = "".join(reader.text)
    assert text.count(HOSTILE) > 15


def test_nothing_can_be_loaded_and_only_our_script_can_run(html: str, reader: Reader):
    loading = [
        (tag, attributes)
        for tag, attributes in reader.elements
        if "src" in attributes or (tag == "link" and attributes["href"] != "data:,")
    ]
    assert loading == []
    assert all(href.startswith(("#", "https://", "data:")) for href in reader.attributes("href"))
    links = [attributes for tag, attributes in reader.elements if tag == "a" and attributes["href"].startswith("https")]
    assert links
    assert {link["rel"] for link in links} == {"noreferrer"}
    (policy,) = [value for value in reader.attributes("content") if "default-src" in value]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert not re.search(r"url\(\s*['\"]?(https?|//)|@import", html)
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]


def test_ids_are_unique_and_links_lead_somewhere_even_for_twin_models(reader: Reader):
    ids = reader.attributes("id")
    assert len(ids) == len(set(ids))
    targets = {href[1:] for href in reader.attributes("href") if href.startswith("#")}
    assert targets <= set(ids)
    assert {"model-1-heads", "model-2-heads", "figure-1", "figure-10"} <= set(ids)
    for name in ("aria-labelledby",):
        assert set(reader.attributes(name)) <= set(ids)


def test_headings_go_down_one_level_at_a_time(reader: Reader):
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_the_verdict_and_its_control_come_before_the_figures(html: str):
    body = html[html.index("<body>") :]
    places = [body.index(mark) for mark in ('class="asked"', 'class="verdict"', 'class="control"', "<figure", "<table")]
    assert places == sorted(places)


def test_sort_buttons_are_buttons_in_headings_that_say_how_they_are_sorted(html: str):
    headings = re.findall(
        r'<th scope="col" aria-sort="none"(?: class="number")?><button type="button">(.*?)</button>', html
    )
    assert headings == ["head", "induction", "95% interval", "n"] * 2


def test_the_same_page_gives_the_same_bytes(html: str):
    assert render_page(make_page()) == html


def test_what_a_section_leaves_out_leaves_nothing_behind():
    bare = Section(anchor="a", title="T", question="Q?", verdict="V.")
    page = Page(
        title="R",
        summary=("S.",),
        parts=(ModelPart(name="m", sections=(bare,)),),
        command="interp",
        versions=(),
        created="2026",
    )
    body = render_page(page)
    body = body[body.index("<body>") :]
    for absent in ("<figure", "<table", "<details", 'class="control"', 'class="notes"', 'class="line"'):
        assert absent not in body


def test_marked_up_text_is_escaped_first():
    page = make_page("plain")
    section = Section(anchor="a", title="T", question="Q", verdict="Use `a<b>` and https://example.org/a?x=1&y=<2>.")
    page = Page(
        title="R", summary=(), parts=(ModelPart(name="m", sections=(section,)),), command="", versions=(), created=""
    )
    html = render_page(page)
    assert "<code>a&lt;b&gt;</code>" in html
    assert (
        '<a href="https://example.org/a?x=1&amp;y=" rel' in html or '<a href="https://example.org/a?x=1&amp;y' in html
    )
    assert "<2>" not in html


def test_a_figure_that_is_not_ours_is_kept_as_it_is():
    svg = '<svg width="10" height="10"><title>t</title></svg>'
    section = Section(anchor="a", title="T", question="Q", verdict="V", figures=(Figure(svg=svg, caption="c"),))
    page = Page(
        title="R", summary=(), parts=(ModelPart(name="m", sections=(section,)),), command="", versions=(), created=""
    )
    html = render_page(page)
    assert svg in html
    assert "--width: 10px" in html


def test_writing_replaces_the_file_in_one_step(tmp_path: Path, html: str):
    path = tmp_path / "runs" / "report.html"
    write_page(make_page(), path)
    assert path.read_text(encoding="utf-8") == html
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match="Cannot write to"):
        write_page(make_page("plain"), path / "below.html")


def test_links_of_figures_and_tables_lead_to_sections_of_the_same_model_and_nothing_else_changes_place():
    html = render_page(make_folded())
    reader = Reader(html)
    assert reader.open == []
    ids = reader.attributes("id")
    assert len(ids) == len(set(ids))
    targets = [href[1:] for href in reader.attributes("href") if href.startswith("#")]
    assert set(targets) <= set(ids)
    assert targets.count("model-2-seed-1") == 2  # from the figure and the table
    assert not reader.attributes("target")
    folds = [attributes["id"] for tag, attributes in reader.elements if tag == "details"]
    assert folds == ["model-1-seed-0", "model-1-seed-1", "model-2-seed-0", "model-2-seed-1"]
    roles = [attributes["role"] for tag, attributes in reader.elements if tag == "svg"]
    assert roles == ["group", "img", "img"] * 2
    assert "section:" not in html


def test_headings_of_inner_sections_go_down_one_level_at_a_time():
    levels = [int(tag[1]) for tag, _ in Reader(render_page(make_folded())).elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels == [1, 2, 2, 3, 4, 5, 5, 2, 3, 4, 5, 5, 2]


def test_an_inner_section_is_not_in_the_contents_and_has_no_question_where_the_heading_says_it():
    html = render_page(make_folded())
    contents = html[html.index("<nav") : html.index("</nav>")]
    assert "All seeds" in contents
    assert "Seed 0" not in contents
    assert html.count('class="asked"') == 2


def test_a_figure_with_many_marks_is_written_shorter_and_stays_the_same_picture():
    style = "fill: var(--figure-ink, #1b2330); stroke: #000000; stroke-opacity: 0"
    mark = f'<use href="#figure-0123456789ab-0" x="{{}}" y="2.25" style="{style}" />'
    text = '<g><text style="font-size: 11px; text-anchor: start; fill: red" x="1" y="2">a &lt; b</text></g>'
    svg = (
        '<svg id="figure-0123456789ab" role="img" aria-label="alt" width="9" height="9"><title>alt</title><g />'
        + "".join(mark.format(x) for x in ("1.11", "2.22", "3"))
        + f'{text}<use href="#figure-0123456789ab-0" x="4" y="5" style="fill: red" /></svg>'
    )
    section = Section(anchor="a", title="T", question="Q", verdict="V", figures=(Figure(svg=svg, caption="c"),))
    html = render_page(make_folded(section))
    uses = '<use href="#f1-0" x="1.1" y="2.2"/><use href="#f1-0" x="2.2" y="2.2"/><use href="#f1-0" x="3" y="2.2"/>'
    assert (
        '<svg id="figure-1" role="img" aria-label="alt" width="9" height="9">'
        f'<g style="fill: var(--figure-ink); stroke: none">{uses}</g>'
        '<text style="font-size: 11px; fill: red" x="1" y="2">a &lt; b</text>'
        '<use href="#f1-0" x="4" y="5" style="fill: red"/></svg>' in html
    )


def test_a_link_of_a_table_is_escaped():
    import pandas as pd

    table = pd.DataFrame({"model": [Link(text=HOSTILE, anchor="a")]})
    html = render_page(make_folded(Section(anchor="a", title="T", question="Q", verdict="V", table=table)))
    assert "<b id=x>" not in html
    assert '<a href="#model-1-a">&lt;/script&gt;' in html
