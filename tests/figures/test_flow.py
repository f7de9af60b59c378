import re
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from interp.errors import InputError
from interp.figures import css_variables, to_svg
from interp.figures.colour import DARK, LIGHT
from interp.figures.flow import flow_picture

ROLES = ["rest", "key", "anchor", "last"]
LINE = re.compile(r'<path d="M ([\d.]+) ([\d.]+)[^"]* ([\d.]+) ([\d.]+)" style="([^"]*)"><title>([^<]*)</title>')


def draw(weights, *, beyond=0.0, roles=ROLES, **options):
    return flow_picture(roles, weights, label="KL (nats)", solid=np.nan_to_num(weights) > beyond, n_draws=20, **options)


@pytest.fixture
def weights():
    values = np.full((2, 4, 4), np.nan)
    values[0, 2, 1], values[0, 3, 0], values[0, 0, 0], values[1, 3, 2] = 3.0, 0.5, 0.001, 6.0
    return values


def test_a_line_for_every_edge_from_the_role_that_is_read_below_to_the_reader_above(weights):
    found = LINE.findall(to_svg(draw(weights, beyond=1.0)))
    lines = {tip: (*map(float, place), style) for *place, style, tip in found}
    assert set(lines) == {
        "layer 0, anchor ← key: 3",
        "layer 0, last ← rest: 0.5, no more than random edges of the same mass",
        "layer 1, last ← anchor: 6",
    }
    x0, y0, x1, y1, style = lines["layer 1, last ← anchor: 6"]
    below = lines["layer 0, anchor ← key: 3"]
    assert x0 < x1
    assert y0 > y1
    assert (x0, y0) == below[2:4]  # it goes on where the line of the layer below arrives
    widths = [float(re.search(r"stroke-width: ([\d.]+)", line[4])[1]) for line in lines.values()]
    assert sorted(widths) == pytest.approx([1.2, 4.5, 9.0])
    assert "--figure-accent" in below[4]
    assert "stroke-dasharray" not in style
    assert "stroke-dasharray" in lines["layer 0, last ← rest: 0.5, no more than random edges of the same mass"][4]


def test_numbers_stand_beside_the_strongest_lines_that_are_beyond_chance(weights):
    svg = to_svg(draw(weights, beyond=1.0))
    assert set(re.findall(r">(\d\.\d\d)<", svg)) == {"3.00", "6.00"}
    assert "KL (nats): widest 6.00" in svg
    assert "when cut, no more than the strongest of 20 random sets of edges of the same mass" in svg


def test_it_says_what_it_shows(weights):
    assert draw(weights, beyond=1.0, layers=[3, 7]).alt == (
        "Flow of information between rest, key, anchor, last by KL (nats). Layer 3: anchor from key 3.00, "
        "last from rest 0.50 (dashed). Layer 7: last from anchor 6.00."
    )
    assert draw(np.zeros((1, 4, 4))).alt.endswith("Nothing flows.")
    assert "nowhere above 0" in to_svg(draw(np.zeros((1, 4, 4))))


@pytest.mark.parametrize(("n_layers", "n_roles"), [(1, 1), (2, 4), (30, 3), (6, 8)])
def test_labels_do_not_overlap(n_layers, n_roles):
    roles = [f"a_longer_role_{i}\ntoken {i}" for i in range(n_roles)]
    weights = np.random.default_rng(0).random((n_layers, n_roles, n_roles)) ** 4
    picture = draw(weights, roles=roles, title="A title")
    canvas = FigureCanvasAgg(picture).get_renderer()
    boxes = [text.get_window_extent(canvas) for text in [*picture.texts, *picture.axes[0].texts] if text.get_text()]
    assert len(boxes) > n_layers + 2 * n_roles
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert picture.bbox.contains(box.x0, box.y0)
        assert picture.bbox.contains(box.x1, box.y1)


def test_every_role_has_a_colour_of_its_own_and_the_background_is_grey():
    roles = ["rest", *"abcdef", "noise"]
    svg = to_svg(draw(np.zeros((1, 8, 8)), roles=roles))
    names = {role: re.search(rf'<text style="([^"]*)"[^>]*>{role}</text>', svg)[1] for role in roles}
    shades = {role: re.search(r"--figure-(\w+),", style)[1] for role, style in names.items()}
    assert shades["rest"] == shades["noise"] == "control"
    assert len(set(shades.values())) == 7


def test_the_colours_follow_the_theme(weights):
    used = set(re.findall(r"var\((--(?:figure|heat)-[\w-]+)", to_svg(draw(weights)))) - {"--figure-font"}
    for theme in ("light", "dark"):
        assert used <= set(re.findall(r"(--[\w-]+):", css_variables(theme)))
    assert {"fourth", "fifth", "sixth"} <= set(LIGHT) & set(DARK)


def test_it_says_what_it_cannot_draw():
    with pytest.raises(InputError, match=r"given 4 roles, weights of shape \(2, 3, 3\)"):
        draw(np.zeros((2, 3, 3)))
