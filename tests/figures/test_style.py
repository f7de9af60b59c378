import re
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.figures import css_variables, head_map, to_svg
from interp.figures.colour import DARK, LEVELS, LIGHT, _from_oklab, _to_oklab, choose_heat, ramp
from interp.figures.style import spread

PAPER = {"light": "#ffffff", "dark": "#12161c"}
THEMES = {"light": LIGHT, "dark": DARK}

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def to_linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(to_linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_marks_stand_out_from_the_page(theme):
    for name in ("ink", "muted", "accent", "second", "third"):
        assert contrast(THEMES[theme][name], PAPER[theme]) >= 4.5, name
    for name in ("control", "outline"):
        assert contrast(THEMES[theme][name], PAPER[theme]) >= 3, name


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_series_stay_apart_for_a_colour_blind_reader(theme, blindness):
    seen = {}
    for name in ("accent", "second", "third"):
        linear = (np.array(BLINDNESS[blindness]) @ to_linear(THEMES[theme][name])).clip(0, 1)
        channels = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
        seen[name] = _to_oklab("#" + "".join(f"{round(channel * 255):02x}" for channel in channels.clip(0, 1)))
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 0.12, (one, other)


@pytest.mark.parametrize(("theme", "sign"), [("light", -1), ("dark", 1)])
def test_ramp_leaves_the_page_in_even_steps_of_lightness(theme, sign):
    lightness = np.array([_to_oklab(colour)[0] for colour in ramp(theme)])
    steps = sign * np.diff(lightness)
    assert steps.min() > 0
    assert steps.max() < 1.2 * steps.min()
    assert len(set(ramp(theme))) == LEVELS
    assert contrast(ramp(theme)[0], PAPER[theme]) < 1.3
    assert contrast(ramp(theme)[-1], PAPER[theme]) > 9


def test_no_ramp_colour_is_also_a_named_colour():
    assert not set(ramp("light")) & set(LIGHT.values())
    assert len(set(LIGHT.values())) == len(LIGHT) == len(DARK)


def test_oklab_agrees_with_published_values_and_its_inverse():
    np.testing.assert_allclose(_to_oklab("#ffffff"), [1, 0, 0], atol=1e-4)
    np.testing.assert_allclose(_to_oklab("#ff0000"), [0.6280, 0.2249, 0.1258], atol=1e-4)
    for colour in ("#000000", "#1f66ad", "#c4500f", "#ffffff"):
        assert _from_oklab(_to_oklab(colour)) == colour


def test_heat_is_the_nearest_level_and_stops_at_the_ends():
    colours = ramp()
    values = np.array([-5.0, 0.0, 0.5, 1.0, 7.0])
    assert choose_heat(values, 0.0, 1.0) == [colours[0], colours[0], colours[16], colours[32], colours[32]]


def test_css_gives_a_value_to_every_variable_of_a_figure():
    svg = to_svg(head_map(np.linspace(0, 1, 80).reshape(8, 10), label="score", top=[(1, 1)]))
    used = set(re.findall(r"var\((--(?:figure|heat)-[\w-]+)", svg)) - {"--figure-font"}
    assert len(used) > LEVELS
    for theme in ("light", "dark"):
        assert used <= set(re.findall(r"(--[\w-]+):", css_variables(theme)))


def test_the_callers_matplotlib_is_neither_changed_nor_used():
    import matplotlib.pyplot as plt

    def draw() -> str:
        return to_svg(head_map(np.eye(3), label="score", top=[(0, 0)], title="T"))

    before = dict(matplotlib.rcParams)
    plain = draw()
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
    with matplotlib.rc_context({"axes.grid": True, "font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        assert draw() == plain
    with plt.style.context("dark_background"):
        assert draw() == plain


places = st.lists(st.floats(0, 100), min_size=1, max_size=8)


@given(places, st.floats(0.1, 12))
def test_spread_places_are_apart_in_order_and_within_bounds(positions, gap):
    placed = spread(positions, gap, low=0.0, high=100.0)
    order = np.argsort(positions, kind="stable")
    for one, other in pairwise(np.array(placed)[order]):
        assert other - one >= gap - 1e-9
    if gap * (len(positions) - 1) <= 100:
        assert min(placed) >= -1e-9
        assert max(placed) <= 100 + 1e-9


def test_spread_leaves_places_that_are_apart_alone():
    assert spread([5.0, 1.0, 9.0], 4.0) == [5.0, 1.0, 9.0]
