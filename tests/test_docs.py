"""The pages: every example runs, every measurement says the same six things, every page that is referred to exists."""

import doctest
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
MEASUREMENTS = ("heads", "confirm", "copying", "patching", "solutions", "composition", "bridge", "rule_tasks")
MEASUREMENTS += ("copying_dynamics", "information_flow", "structural_grokking", "trees")
HEADINGS = ("The question", "Formula and paper", "Cost", "Example", "Control", "What can mislead")


def find_examples(page: str) -> str:
    """The interactive examples of a page, one after the other."""
    return "\n".join(re.findall(r"```pycon\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))


@pytest.mark.parametrize("page", [page for page in PAGES if find_examples(page)])
def test_the_examples_of_a_page_give_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest(find_examples(page), {}, page, str(DOCS / page), 0)
    said: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=said.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(said)


@pytest.mark.parametrize("page", MEASUREMENTS)
def test_a_measurement_page_says_everything(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == HEADINGS


def test_every_page_that_a_report_refers_to_exists() -> None:
    sources = Path(__file__).parents[1].glob("analyses/**/*.py")
    named = {name for source in sources for name in re.findall(r'\bdocs="([^"]+)"', source.read_text())}
    assert named == set(MEASUREMENTS)


def test_every_page_is_in_the_contents() -> None:
    contents = set(re.findall(r"^([\w/]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    assert {page.removesuffix(".md") for page in PAGES} - {"index"} <= contents


def test_the_colours_of_the_pictures_are_those_of_the_figures() -> None:
    from interp.figures import css_variables

    css = (DOCS / "_static" / "pictures.css").read_text()
    for theme in ("light", "dark"):
        assert css_variables(theme).replace("\n", " ") in css, "run: python docs/pictures/draw.py colours"


@pytest.mark.parametrize("notebook", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_committed_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
