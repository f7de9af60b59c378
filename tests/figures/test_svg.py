import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from interp.figures import Curve, Effect, Picture, ablation, head_map, head_ranking, learning_curves, to_svg
from interp.figures.style import style_context

INJECTION = '</svg><script>alert("&")</script> $x_1$'


def make_figures() -> dict[str, Picture]:
    values = np.linspace(0, 1, 12).reshape(4, 3)
    steps = np.array([0, 10, 100])
    curve = Curve(label=INJECTION, steps=steps, values=np.array([1.0, 0.5, 0.1]))
    control = Curve(label="b", steps=steps, values=np.array([1.0, 1.0, 0.9]), series=1, control=True)
    effect = Effect(
        name=INJECTION,
        untouched=0.1,
        removed=5.0,
        removed_interval=(4.0, 6.0),
        random=np.array([0.1, 0.2]),
        random_interval=(0.1, 0.2),
    )
    return {
        "map": head_map(values, label=INJECTION, top=[(3, 2)], title=INJECTION),
        "ranking": head_ranking([(3, 2), (3, 1)], values[3, :2], label=INJECTION, control=values[0, :2]),
        "ablation": ablation([effect], title=INJECTION),
        "curves": learning_curves([curve, control], attention=[curve], marked_steps=(10, 100)),
    }


@pytest.fixture(scope="module")
def svgs() -> dict[str, str]:
    return {name: to_svg(figure) for name, figure in make_figures().items()}


def test_the_same_figure_gives_the_same_bytes(svgs: dict[str, str]):
    assert {name: to_svg(figure) for name, figure in make_figures().items()} == svgs


def test_nothing_is_loaded_and_no_style_or_date_reaches_the_page(svgs: dict[str, str]):
    for svg in svgs.values():
        elements = list(ElementTree.fromstring(svg).iter())
        tags = {element.tag.rpartition("}")[2] for element in elements}
        assert tags <= {"svg", "title", "g", "path", "defs", "use", "clipPath", "rect", "text", "tspan"}
        for element in elements:
            for name, value in element.attrib.items():
                assert "http" not in value
                if name == "href":
                    assert value.startswith("#")
        assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
        assert "matplotlib" not in svg
        assert not re.search(r"20\d\d-\d\d-\d\d", svg)


def test_ids_belong_to_one_figure_and_every_reference_is_met(svgs: dict[str, str]):
    seen: set[str] = set()
    for svg in svgs.values():
        ids = re.findall(r'\bid="([^"]*)"', svg)
        assert len(ids) == len(set(ids))
        assert all(name.startswith(ids[0]) for name in ids)
        assert not seen & set(ids)
        seen.update(ids)
        references = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', svg)
        assert {one or other for one, other in references} <= set(ids)


def test_text_stays_text_escaped_and_every_figure_says_what_it_shows(svgs: dict[str, str]):
    for name, svg in svgs.items():
        root = ElementTree.fromstring(svg)
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any(INJECTION in (text or "") for text in texts), name
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"] == root[0].text
        assert root[0].tag.endswith("title")
        assert len(root.attrib["aria-label"]) > 20


def test_every_colour_follows_the_theme(svgs: dict[str, str]):
    for svg in svgs.values():
        outside = re.sub(r"var\(--[\w-]+, [^)]*\)", "", svg)
        assert not re.findall(r"#[0-9a-f]{6}\b|rgb\(", outside)
        fonts = re.findall(r"font-family:[^;\"]*|font: ?[^;\"]*", svg)
        assert fonts
        assert all("var(--figure-font" in font for font in fonts)


def test_a_foreign_matplotlib_figure_keeps_its_own_colours_and_gets_a_name():
    with style_context():
        from matplotlib.figure import Figure

        figure = Figure()
        figure.suptitle("Mine")
        figure.subplots().plot([0, 1], color="#123456")
    svg = to_svg(figure)
    assert 'aria-label="Mine"' in svg
    assert "#123456" in svg


def test_a_notebook_shows_the_figure_itself():
    html = head_map(np.eye(2), label="score")._repr_html_()
    assert html.startswith("<div")
    assert "<svg" in html
