import re

import numpy as np
import pytest

from interp.errors import InputError
from interp.figures import Curve, Effect, ablation, head_map, head_ranking, learning_curves, to_svg
from interp.figures.colour import LIGHT, ramp
from tests.untyped import as_without_type_checks


@pytest.mark.parametrize("shape", [(30, 9), (12, 12), (2, 1), (1, 1), (1, 16), (48, 25)])
def test_map_has_a_cell_for_every_head_that_names_itself(shape: tuple[int, int]):
    values = np.random.default_rng(0).random(shape)
    strongest = np.unravel_index(values.argmax(), shape)
    top = [(int(strongest[0]), int(strongest[1]))]
    picture = head_map(values, label="induction score", top=top, title="A title")
    svg = to_svg(picture)
    tips = re.findall(r"<title>(\d+)\.(\d+): ([\d.]+)</title>", svg)
    assert len(tips) == values.size
    for layer, head, value in tips:
        assert float(value) == pytest.approx(values[int(layer), int(head)], abs=6e-4)
    assert svg.count("--figure-outline") == 1
    assert re.search(rf"<text[^>]*>{top[0][0]}\.{top[0][1]}</text>", svg)
    width, height = picture.get_size_inches() * 72
    assert width <= 900
    assert height <= 800


def test_map_draws_layer_0_at_the_bottom_head_0_at_the_left_and_more_as_darker():
    svg = to_svg(head_map(np.array([[0.0, 0.5], [1.0, np.nan]]), label="score"))
    cells = {}
    for place, style, tip in re.findall(r'<path d="M ([\d. ]+?) L[^>]*?style="([^"]*)"><title>([\d.]+):', svg):
        cells[tip] = (*map(float, place.split()), style)
    assert cells["0.0"][1] > cells["1.0"][1]
    assert cells["0.0"][0] < cells["0.1"][0]
    for name, level in (("0.0", 0), ("0.1", 16), ("1.0", 32)):
        assert f"--heat-{level}, {ramp()[level]}" in cells[name][2]
    assert "fill: none" in cells["1.1"][2]
    assert "1.1: not measured" in svg


def test_heads_of_one_layer_share_a_label_and_labels_of_close_layers_do_not_overlap():
    values = np.zeros((80, 64))
    svg = to_svg(head_map(values, label="score", top=[(10, 3), (10, 60), (11, 0), (12, 0)]))
    assert "10.3 · 10.60" in svg
    heights = [float(y) for y in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>1[012]\.', svg)]
    assert len(heights) == 3
    assert min(abs(one - other) for one in heights for other in heights if one != other) > 12


def test_scale_says_where_values_go_beyond_its_ends():
    assert ">0<" in (svg := to_svg(head_map(np.array([[0.0, 1.0]]), label="score")))
    assert ">1<" in svg
    svg = to_svg(head_map(np.array([[-0.5, np.nan, 3.0]]), label="score"))
    assert ">≤0<" in svg
    assert ">≥1<" in svg


def place_of(svg: str, text: str) -> tuple[float, float, bool]:
    """Where a label is anchored, and whether it is upright."""
    found = re.search(rf"<text([^>]*)>{re.escape(text)}</text>", svg)
    assert found, text
    x, y = (float(re.search(rf'\b{axis}="([\d.]+)"', found[1])[1]) for axis in "xy")
    return x, y, "rotate" not in found[1]


def test_map_writes_each_role_with_its_token_under_it():
    svg = to_svg(
        head_map(
            np.array([[0.1, 0.9, 0.2]]),
            label="recovery",
            columns="position",
            top=[(0, 1)],
            column_names=["IO", "S1", "last"],
            column_labels=[" Mary", " John", "\n"],
        )
    )
    for role, token in (("IO", "Mary"), ("S1", "John"), ("last", "⏎")):
        (x, y, upright), (x_below, y_below, upright_below) = place_of(svg, role), place_of(svg, token)
        assert upright
        assert upright_below
        assert x == pytest.approx(x_below, abs=0.1)
        assert y_below > y + 10
    assert place_of(svg, "position")[1] > place_of(svg, "Mary")[1] + 10
    assert ">0 S1</text>" in svg
    assert "<title>0 S1 ' John': 0.900</title>" in svg
    assert ">2</text>" not in svg  # names stand in place of numbers


@pytest.mark.parametrize("n", [8, 14, 64])
def test_labels_below_columns_do_not_overlap(n: int):
    tokens = [f" word{i}" for i in range(n)]
    svg = to_svg(head_map(np.zeros((30, n)), label="recovery", columns="position", column_labels=tokens))
    places = [place_of(svg, token.strip()) for token in tokens]
    gaps = np.diff([x for x, _, _ in places])
    upright = places[0][2]
    assert (gaps >= (6.6 * len("word10") if upright else 13)).all()
    assert upright == (n == 8)
    lowest = place_of(svg, "position")[1]
    longest = 6.0 * len("word10") if not upright else 11
    assert all(y + longest <= lowest for _, y, _ in places)


def test_map_says_what_it_cannot_draw():
    with pytest.raises(InputError, match="2 column_labels for 3 columns"):
        head_map(np.zeros((1, 3)), label="score", column_labels=["a", "b"])
    with pytest.raises(InputError, match="1 column_names for 3 columns"):
        head_map(np.zeros((1, 3)), label="score", column_names=["a"])
    with pytest.raises(InputError, match=r"outline \[\(2, 0\)\].*2 layers of 2"):
        head_map(np.eye(2), label="score", top=[(0, 0), (2, 0)])
    with pytest.raises(InputError, match="at least one layer"):
        head_map(np.zeros((0, 4)), label="score")
    with pytest.raises(InputError, match=r"range 1.0 to 0.0"):
        head_map(np.eye(2), label="score", vmin=1.0, vmax=0.0)


def test_ranking_gives_each_number_with_its_interval_and_control():
    heads, values = [(18, 6), (17, 3)], np.array([0.934, 0.882])
    picture = head_ranking(
        heads, values, label="induction", low=values - 0.02, high=values + 0.02, control=np.array([0.01, 0.03])
    )
    svg = to_svg(picture)
    assert re.search(r">0\.93\s+\[0\.91, 0\.95\]<", svg)
    assert "the same head of an untrained model" in svg
    assert picture.alt == (
        "induction of 2 heads: 18.6 0.93, 17.3 0.88. Control, the same head of an untrained model: at most 0.03."
    )
    assert svg.index(">18.6<") < svg.index(">17.3<")
    with (
        as_without_type_checks(),
        pytest.raises(InputError, match=r"2 heads and values.*sizes \[3, None, None, None\]"),
    ):
        head_ranking(heads, np.zeros(3), label="induction")


def effect(**changes) -> Effect:
    given = {"name": "loss", "untouched": 0.1, "removed": 5.0, "random": np.linspace(0.1, 0.3, 20)}
    return Effect(**(given | changes))


def test_ablation_shows_every_draw_and_all_three_numbers():
    picture = ablation([effect(removed_interval=(4.5, 5.5), random_interval=(0.1, 0.3), unit="nats")])
    draws = [line for axes in picture.axes for line in axes.get_lines() if len(line.get_xdata()) == 20]
    np.testing.assert_allclose(draws[0].get_xdata(), np.linspace(0.1, 0.3, 20))
    svg = to_svg(picture)
    for text in ("loss (nats)", ">0.10<", "5.00  [4.50, 5.50]", "0.20  [0.10, 0.30]", ">20 draws<"):
        assert text in re.sub(r"\xa0", " ", svg), text


@pytest.mark.parametrize(
    "odd",
    [
        {"untouched": 0.0, "removed": 0.0, "random": np.zeros(2)},
        {"untouched": -1.0, "removed": -2.0, "random": np.array([-3.0])},
        {"untouched": 1.0, "removed": 0.0, "random": np.ones(3), "limits": (0.0, 1.0)},
    ],
)
def test_ablation_axis_holds_every_number(odd: dict):
    picture = ablation([effect(**odd)])
    low, high = picture.axes[0].get_xlim()
    numbers = [odd["untouched"], odd["removed"], *odd["random"]]
    assert low < high
    assert low <= min(numbers) <= max(numbers) <= high


def test_ablation_refuses_to_stand_without_its_control():
    for effects in ([], [effect(random=np.zeros(0))]):
        with pytest.raises(InputError, match="without its control a drop says nothing"):
            ablation(effects)


def curve(**changes) -> Curve:
    given = {"label": "two layers", "steps": np.array([0, 10, 1000]), "values": np.array([1.0, 0.9, 0.1])}
    return Curve(**(given | changes))


def test_curves_control_is_dashed_named_and_in_the_colour_of_its_pair():
    picture = learning_curves([curve(), curve(label="one layer", values=np.array([1.0, 1.0, 0.9]), control=True)])
    solid, dashed = picture.axes[0].get_lines()
    assert solid.get_linestyle() == "-"
    assert dashed.get_linestyle() == "--"
    assert solid.get_color() == dashed.get_color() == LIGHT["accent"]
    assert "one layer (control)" in to_svg(picture)


def test_curves_step_0_is_drawn_on_a_linear_axis_only():
    for step_axis, first in (("log", 10), ("linear", 0)):
        axes = learning_curves([curve()], step_axis=step_axis).axes[0]
        assert axes.get_lines()[0].get_xdata()[0] == first
        assert axes.get_xlim()[0] == first


def test_curves_second_panel_shares_the_steps_of_both():
    picture = learning_curves([curve()], attention=[curve(steps=np.array([5, 50, 5000]))], label="error")
    upper, lower = picture.axes
    assert upper.get_xlim() == lower.get_xlim() == (5, 5000)
    assert "error against training step" in picture.alt


def test_curves_say_what_they_cannot_draw():
    with as_without_type_checks(), pytest.raises(InputError, match="'two layers' has 3 steps and 2 values"):
        learning_curves([curve(values=np.zeros(2))])
    with pytest.raises(InputError, match="no curve"):
        learning_curves([])
    with pytest.raises(InputError, match="step_axis='linear'"):
        learning_curves([curve(steps=np.array([0]), values=np.array([1.0]))])
