from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import interp
from interp.figures import to_svg
from interp.figures.solutions import deviations_picture
from interp.solutions.classify import classify_solution
from tasks.anchor import DeviationHistogram, altered_pair


@pytest.fixture(scope="module")
def solution():
    model = interp.build(n_layers=3, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True, device="cpu")
    return classify_solution(model, altered_pair(), n=30, n_controls=4)


def list_texts(picture):
    canvas = FigureCanvasAgg(picture).get_renderer()
    picture.draw(canvas)
    found = []
    for axes in picture.axes:
        labels = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label] if axes.axison else []
        found += [text for text in [*axes.texts, *labels] if text.get_text()]
    found += [text for text in picture.texts if text.get_text()]
    return [(text.get_text(), text.get_window_extent(canvas)) for text in found]


@pytest.mark.parametrize("which", ["behaviour", "mechanism"])
def test_labels_do_not_overlap_and_lie_within_the_picture(solution, which):
    picture = getattr(solution, which).figure()
    texts = list_texts(picture)
    for (one, box), (other, other_box) in combinations(texts, 2):
        assert not box.overlaps(other_box), (one, other)
    for text, box in texts:
        assert picture.bbox.contains(box.x0, box.y0), text
        assert picture.bbox.contains(box.x1, box.y1), text


def test_every_row_has_its_number_and_the_verdict(solution):
    texts = [text for text, _ in list_texts(solution.mechanism.figure())]
    frame = solution.mechanism.to_frame()
    assert len(frame) == 1 + 9 + 4 + 3
    for edges in ("anchor 1 → anchor 2, before the last layer", "serial circuit", "serial", "last token after layer 2"):
        assert texts.count(edges) == 1
    assert sum(text.startswith("[") for text in texts) == len(frame)
    assert {"cut", "kept alone"} <= set(texts)
    alt = solution.mechanism.figure().alt
    assert alt.startswith("Accuracy after interventions. uncut 0.")
    assert "kept alone serial 0." in alt


def test_every_draw_of_the_control_is_a_dot(solution):
    axes = solution.mechanism.figure().axes[1]
    small = [line for line in axes.lines if line.get_markersize() == 4]
    assert len(small) == 9 + 4
    assert all(len(line.get_xdata()) == 4 for line in small)


def test_the_commonest_answers_are_named():
    import torch

    histogram = DeviationHistogram(
        deviations=torch.tensor([-10, -7, 3, 4, 5, 6, 8, 9]),
        counts=torch.tensor([50, 30, 5, 5, 4, 3, 2, 1]),
        copied=((), ((2, 4), (4, 2)), (), (), (), (), (), ()),
        asked=(((4, 3),), (), (), (), (), (), (), ()),
    )
    picture = deviations_picture(histogram, title="Behaviour: none")
    texts = [text for text, _ in list_texts(picture)]
    assert {"−10", "answers (4, 3)", "copies (2, 4)/(4, 2)", "0.50", "−7"} <= set(texts)
    assert "bars: share, with its 95% interval; and 2 rarer ones, 0.03 together" in texts
    assert picture.alt.startswith("Answers on held-out pairs, prediction minus key: -10 0.50 (answers (4, 3)), -7 0.30")
    widths = [bar.get_width() for bar in picture.axes[0].patches]
    assert np.allclose(widths, [0.5, 0.3, 0.05, 0.05, 0.04, 0.03])


def test_a_solution_shows_behaviour_and_both_kinds_of_cut(solution):
    html = solution._repr_html_()
    assert html.count("<svg") == 3
    assert "edges cut before the softmax" in html
    assert "edges cut after the softmax" in html
    assert "--figure-accent" in to_svg(solution.figure())
