import re

import numpy as np
import pytest

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.phase import Seed, phase_diagram
from interp.figures.seeds import SeedPanel, seed_panels
from interp.figures.svg import to_svg
from interp.figures.transition import Transition, transition
from tests.untyped import as_without_type_checks

KINDS = ("reasoning", "symmetric", "memorising", "none")


def draw(found, **options):
    return phase_diagram(found, kinds=KINDS, x_label="gamma", y_label="decay", **options)


def seeds(*kinds):
    return [Seed(kind=kind, letter=kind[0].upper(), name=f"seed {i}: {kind}") for i, kind in enumerate(kinds)]


def cells(svg):
    """(colour, opacity, width) of each filled rectangle that is a share of seeds."""
    found = re.findall(
        r'<path d="M ([\d.]+) [\d.]+ L ([\d.]+)[^"]*"[^>]*style="fill: [^"]*(#\w+)\); opacity: ([\d.]+)', svg
    )
    return [(colour, float(opacity), float(right) - float(left)) for left, right, colour, opacity in found]


def test_the_commonest_solution_gives_the_colour_and_its_share_the_shade():
    svg = to_svg(draw({("1", "0.4"): seeds("none", "symmetric", "symmetric"), ("1", "0.8"): seeds(*["reasoning"] * 3)}))
    (first, faint, _), (second, full, _) = cells(svg)
    assert (first, second) == (LIGHT["second"], LIGHT["accent"])
    assert full > faint
    assert "2 of 3" in svg
    assert "3 of 3" in svg


def test_a_tie_divides_the_cell():
    (one, share, width), (other, same, half) = cells(to_svg(draw({("1", "0.4"): seeds("reasoning", "none")})))
    assert {one, other} == {LIGHT["accent"], LIGHT["control"]}
    assert share == same
    assert width == pytest.approx(half, abs=0.1)


def test_every_seed_has_a_ring_that_names_itself_and_a_letter():
    svg = to_svg(
        draw({("1", "0.4"): seeds("reasoning", "none"), ("2", "0.4"): seeds("symmetric")}, letters={"R": "rule"})
    )
    assert re.findall(r"<title>(seed \d: \w+)</title>", svg) == [
        "seed 0: reasoning",
        "seed 1: none",
        "seed 0: symmetric",
    ]
    assert [letter for letter in "RNS" if re.search(rf"<text[^>]*>{letter}</text>", svg)] == ["R", "N", "S"]
    assert "R rule" in svg


def test_a_place_without_a_seed_stays_empty_and_rows_go_upwards():
    picture = draw({("low", "0.4"): seeds("none"), ("low", "0.8"): [], ("high", "0.4"): seeds("none")})
    assert len(cells(to_svg(picture))) == 2
    places = {
        text: float(y) for y, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(low|high)</text>', to_svg(picture))
    }
    assert places["low"] > places["high"]
    assert picture.alt == "By gamma and decay. low: 0.4 none 1 of 1; high: 0.4 none 1 of 1."


def test_more_seeds_than_have_room_are_counted_all_the_same():
    svg = to_svg(draw({("1", "0.4"): seeds(*["none"] * 30)}))
    assert "30 of 30" in svg
    assert svg.count("<title>seed") == 5


@pytest.mark.parametrize("found", [{}, {("1", "0.4"): []}])
def test_a_diagram_of_nothing(found):
    with pytest.raises(InputError, match="no seed; give at least one"):
        draw(found)


def test_a_kind_without_a_colour():
    with pytest.raises(InputError, match=r"'odd'.*name every kind"):
        draw({("1", "0.4"): [Seed(kind="odd")]})


def test_seed_panels_draw_every_seed_and_the_mean():
    lines = {"reasoning": np.array([[0.0, 0.4], [0.0, 0.8]]), "symmetric": np.array([[0.0, 0.1], [0.0, 0.3]])}
    picture = seed_panels([SeedPanel(title="one", steps=np.array([0, 10]), lines=lines)], label="share")
    assert picture.alt.endswith("one: reasoning 0.60, symmetric 0.20.")
    assert len(picture.axes[-1].lines) == 6


def test_a_ring_with_a_link_leads_there_from_all_of_its_surface():
    found = {("1", "0.4"): [Seed(kind="none", letter="P", name="seed 0", link="section:a&b"), Seed(kind="none")]}
    svg = to_svg(draw(found))
    links = re.findall(r'<a href="([^"]*)"[^>]*>(<path[^>]*>)(.*?)</a>', svg)
    assert [link for link, *_ in links] == ["section:a&amp;b"]
    assert "fill-opacity: 0.06" in links[0][1]
    assert "<title>seed 0</title>" in links[0][2]
    assert svg.index(">P<") < svg.index("<a ")  # the letter lies below, where it catches no pointer


def test_seed_panels_of_a_number_that_is_no_share_have_its_limits_and_its_control():
    panel = SeedPanel(title="one", steps=np.array([0, 10]), lines={"rank": np.array([[16.0, 4.0]])})
    picture = seed_panels([panel], label="rank", limits=(0.0, 20.0), control=(15.0, 17.0, 19.0))
    axes = picture.axes[-1]
    assert axes.get_ylim() == (0, 20)
    assert list(axes.lines[0].get_ydata()) == [17, 17]
    assert "random" in to_svg(picture)
    assert "random" not in to_svg(seed_panels([panel], label="rank", limits=(0.0, 20.0)))


def test_seed_panels_of_another_length():
    with as_without_type_checks(), pytest.raises(InputError, match="another number of values than of steps"):
        seed_panels([SeedPanel(title="one", steps=np.arange(3), lines={"a": np.zeros((1, 2))})], label="share")


def test_the_transition_says_means_and_draws_each_model():
    line = Transition(label="decay 1", x=np.array([0.4, 0.4, 0.8]), values=np.array([10.0, 14.0, 2.0]))
    picture = transition([line], label="rank", x_label="gamma", control=17.0, control_interval=(15.0, 19.0))
    assert picture.alt == "rank against gamma (random 17.0). decay 1: 12.0 at 0.4, 2.0 at 0.8."
    assert len(picture.axes[0].lines[-1].get_xdata()) == 3
    assert picture.axes[0].get_ylim()[1] > 19


def test_a_transition_without_lines():
    with pytest.raises(InputError, match="give one to 6, each with a place for each value"):
        transition([], label="rank", x_label="gamma", control=1.0, control_interval=(0.0, 2.0))
