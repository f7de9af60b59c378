"""The curves of single seeds, what depth does, and measures over training: all is drawn where it belongs."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.depth import DepthSeeds, depth_curve
from interp.figures.grokking import SeedCurve, grokking_panels
from interp.figures.measures import Measure, measure_rows

STEPS = np.array([0.0, 500, 1000, 10_000])


def make_curve(seed, **options):
    lines = {"validation": np.array([0.2, 1, 1, 1]), "generalisation": np.array([0.3, 0.0, 0.5, 0.9])}
    return SeedCurve(title=f"seed {seed}", note="mixed", steps=STEPS, lines=lines, **options)


def list_texts(picture):
    texts = [text.get_text() for text in picture.texts]
    return texts + [text.get_text() for axes in picture.axes for text in axes.texts]


def find_panels(picture):
    return [axes for axes in picture.axes if axes.axison]


def test_every_seed_has_a_panel_and_rows_wrap_after_five():
    picture = grokking_panels(
        {"2 layers": [make_curve(i) for i in range(7)], "6 layers": [make_curve(0)]}, label="accuracy"
    )
    panels = find_panels(picture)
    assert len(panels) == 8
    tops = sorted({round(axes.get_position().y0, 3) for axes in panels}, reverse=True)
    assert [sum(round(axes.get_position().y0, 3) == top for axes in panels) for top in tops] == [5, 2, 1]
    boxes = [axes.get_position() for axes in panels]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_a_panel_marks_saturation_and_the_first_high_evaluation_where_they_happened():
    (axes,) = find_panels(grokking_panels({"": [make_curve(0, saturated=500.0, rose=5500.0)]}, label="accuracy"))
    uprights = [line for line in axes.lines if list(line.get_xdata()) == [500.0, 500.0]]
    assert len(uprights) == 1
    (dot,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert list(dot.get_xdata()) == [5500.0]
    assert dot.get_ydata()[0] == pytest.approx(0.7)  # on the line, half way from 0.5 to 0.9
    (bare,) = find_panels(grokking_panels({"": [make_curve(0)]}, label="accuracy"))
    assert len(bare.lines) == 2


def test_a_level_is_named_once_a_row_and_drawn_in_every_panel():
    picture = grokking_panels({"": [make_curve(i) for i in range(3)]}, label="accuracy", level=("shortcut", 4 / 7))
    assert list_texts(picture).count("shortcut") == 1
    assert all(any(list(line.get_ydata()) == [4 / 7, 4 / 7] for line in axes.lines) for axes in find_panels(picture))


def test_long_names_of_marks_do_not_leave_the_picture():
    picture = grokking_panels({"": [make_curve(0)]}, label="accuracy", marks=("validation at 99 per cent", "x" * 40))
    width = picture.get_size_inches()[0] * 72
    picture.draw_without_rendering()
    assert all(text.get_window_extent().x1 / picture.dpi * 72 <= width for text in picture.texts)


def test_depth_shows_every_seed_their_mean_and_the_share():
    finals = np.array([0.1, 0.3, 0.8])
    picture = depth_curve([DepthSeeds(depth=4, finals=finals, share=(1 / 3, 0.06, 0.79))], label="end", bound=0.7)
    left, right = find_panels(picture)
    seeds, mean = (line for line in left.lines if line.get_marker() == "o")
    assert list(seeds.get_ydata()) == [0.1, 0.3, 0.8]
    assert mean.get_ydata()[0] == pytest.approx(0.4)
    assert max(seeds.get_xdata()) < min(mean.get_xdata())
    interval = next(line for line in right.lines if len(line.get_ydata()) == 2)
    assert list(interval.get_ydata()) == [0.06, 0.79]
    assert "4 layers 0.40 over 3 seeds, 33% above 0.7" in picture.alt


def test_measures_share_a_scale_within_a_row_and_name_their_controls():
    seeds = {
        "2 layers": np.array([[0.1, 0.2, 0.3, 0.4]]),
        "6 layers": np.array([[0.1, 0.5, 1.0, 2.0], [0.3, 0.5, 1.0, 4.0]]),
    }
    one = Measure(label="F1", steps=STEPS, seeds=seeds, controls={"right-branching": 1.5})
    other = Measure(label="t-score", steps=STEPS, seeds={"2 layers": np.array([[-0.2, 0.0, 0.1, 0.2]])})
    picture = measure_rows([one, other])
    first, second, third = find_panels(picture)  # the second measure has one setting
    assert first.get_ylim() == second.get_ylim()
    assert third.get_ylim()[0] < -0.2
    assert list_texts(picture).count("right-branching") == 1
    mean = next(line for line in second.lines if line.get_linewidth() == 2.2)
    assert list(mean.get_ydata()) == pytest.approx([0.2, 0.5, 1.0, 3.0])
    assert to_hex(mean.get_color()) == LIGHT["accent"]
    assert "F1 (right-branching 1.50): 2 layers 0.10 to 0.40; 6 layers 0.20 to 3.00" in picture.alt


def test_a_figure_of_nothing_is_a_mistake():
    with pytest.raises(InputError, match="give a panel or more, one to 3 names, and a value for each step"):
        grokking_panels({"2 layers": []}, label="accuracy")
    with pytest.raises(InputError, match="depth_curve was given 0 depths; give one or more, each with a model or more"):
        depth_curve([], label="end", bound=0.8)
    with pytest.raises(InputError, match=r"measure_rows was given 0 measures of settings \[\]"):
        measure_rows([])
