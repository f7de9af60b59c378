"""Numbers by layer: every panel has the lines, bands and levels it was given, and no label lies on another."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from interp.errors import InputError
from interp.figures.layers import LayerLine, LayerPanel, layer_panels
from interp.figures.svg import to_svg


def make_panel(*, title="F1", n_layers=12, levels=(), marked=None):
    values = np.linspace(0.1, 0.6, n_layers)
    return LayerPanel(
        title=title,
        lines=(
            LayerLine(name="this model", values=values, low=values - 0.05, high=values + 0.05),
            LayerLine(name="the same words in random order", values=values / 2),
            LayerLine(
                name="untrained", values=np.zeros(n_layers), low=np.full(n_layers, -0.1), high=np.full(n_layers, 0.1)
            ),
        ),
        levels=dict(levels),
        marked=marked,
    )


def test_a_panel_shows_what_it_was_given():
    picture = layer_panels([make_panel(levels={"right-branching": 0.4}, marked=3)], layers=range(12))
    assert picture.alt == (
        "By layer, 0 to 11. F1: this model 0.10 to 0.60, most at layer 11; the same words in random order 0.05 to 0.30, most at "
        "layer 11; untrained 0.00 to 0.00, most at layer 0; right-branching 0.40."
    )
    axes = picture.axes[-1]
    lines = [np.asarray(line.get_ydata()) for line in axes.lines]
    assert any(np.allclose(line, np.linspace(0.1, 0.6, 12)) for line in lines if len(line) == 12)
    assert any(np.allclose(line, 0.4) for line in lines if len(line) == 2)
    assert any(np.array_equal(line.get_xdata(), [3, 3]) for line in axes.lines)
    assert len(axes.collections) == 2  # a band for the model's interval and one for the draws
    low, high = axes.get_ylim()
    assert low < -0.1
    assert high > 0.65


@pytest.mark.parametrize("n_layers", [1, 2, 30])
@pytest.mark.parametrize("n_panels", [1, 3, 6])
def test_labels_do_not_overlap(n_panels, n_layers):
    levels = {"right-branching": 0.31, "left-branching": 0.30, "random trees": 0.305}
    panels = [
        make_panel(title=f"number {i} of its own trees", n_layers=n_layers, levels=levels if i % 2 else {})
        for i in range(n_panels)
    ]
    picture = layer_panels(panels, layers=range(n_layers))
    canvas = FigureCanvasAgg(picture).get_renderer()
    texts = [
        text for text in [*picture.texts, *(text for axes in picture.axes for text in axes.texts)] if text.get_text()
    ]
    boxes = [text.get_window_extent(canvas) for text in texts]
    assert len(boxes) == 3 + n_panels + 3 * (n_panels // 2)
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert picture.bbox.contains(box.x0, box.y0)
        assert picture.bbox.contains(box.x1, box.y1)
    assert to_svg(picture).count(">number 0 of its own trees<") == 1


def test_panels_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="was given 0 panels"):
        layer_panels([], layers=[0])
    with pytest.raises(InputError, match=r"another number of values than of layers in \['F1'\]"):
        layer_panels([make_panel()], layers=[0, 1])
