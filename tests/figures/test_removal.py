"""Accuracy as heads are removed: every panel has its band, its chance and its points where the numbers are."""

import re

import numpy as np
import pytest

from interp.errors import InputError
from interp.figures.removal import RemovalPanel, removal_panels
from interp.figures.svg import to_svg


def make_panel(
    *, title="names", counts=(0, 10, 20), values=(0.9, 0.5, 0.4), draws=((0.7, 0.9), (0.6, 0.8)), chance=0.5
):
    values = np.array(values)
    return RemovalPanel(
        title=title,
        counts=np.array(counts),
        values=values,
        low=values - 0.1,
        high=values + 0.1,
        draws=tuple(np.array(draw) for draw in draws),
        control=np.array([np.mean(draw) for draw in draws]),
        chance=chance,
    )


def test_a_panel_shows_what_it_was_given():
    panel = make_panel()
    picture = removal_panels([panel], label="accuracy")
    assert picture.alt == (
        "accuracy as heads are removed. names: 0.90, with 10 removed 0.50, with 10 random ones 0.80, with 20 removed 0.40, "
        "with 20 random ones 0.70; chance 0.50."
    )
    axes = picture.axes[-1]
    band = axes.collections[0].get_paths()[0].vertices
    assert {(0.0, 0.9), (10.0, 0.7), (10.0, 0.9), (20.0, 0.6), (20.0, 0.8)} <= {(x, round(y, 6)) for x, y in band}
    lines = [line.get_ydata() for line in axes.lines]
    assert any(np.allclose(line, 0.5) and len(line) == 2 for line in lines)
    assert any(np.array_equal(line, panel.values) for line in lines)
    assert any(np.allclose(line, [0.9, 0.8, 0.7]) for line in lines if len(line) == 3)
    assert axes.get_xlim()[1] == 20
    assert axes.get_ylim() == (0, 1)


def test_panels_stand_in_rows_under_one_key_and_a_task_at_chance_has_one_point():
    panels = [make_panel(title=f"task {i}") for i in range(5)]
    panels.append(make_panel(title="task 5", counts=(0,), values=(0.2,), draws=()))
    picture = removal_panels(panels, label="accuracy")
    svg = to_svg(picture)
    heights = [float(re.search(rf'y="([\d.]+)"[^>]*>task {i}', svg)[1]) for i in range(6)]
    assert len({round(height) for height in heights}) == 2
    assert heights[:3] == sorted(heights[:3])
    for name in ("chosen heads", "random heads of the same layers", "chance"):
        assert svg.count(f">{name}<") == 1
    assert svg.count("so no head was removed") == 1
    assert picture.get_size_inches()[0] * 72 <= 800
    assert picture.alt.endswith("task 5: 0.20; chance 0.50.")


def test_panels_without_a_control_for_each_count_are_refused():
    with pytest.raises(InputError, match="was given 0 panels"):
        removal_panels([], label="accuracy")
    with pytest.raises(InputError, match=r"another number of controls than of counts above 0 in \['names'\]"):
        removal_panels([make_panel(draws=((0.7,),))], label="accuracy")
