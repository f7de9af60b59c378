import re

import numpy as np
import pytest
import torch

import interp
from interp.bridge.sweep import sweep_bridge
from interp.figures.bridge import rank_sweep
from interp.figures.colour import LIGHT
from interp.figures.svg import to_svg


@pytest.fixture(scope="module")
def sweep():
    model = interp.build(n_layers=3, d_model=16, n_heads=4, d_vocab=40, n_ctx=32, attn_only=True)
    return sweep_bridge(
        model,
        induction_heads=[(1, 0), (2, 3)],
        ranks=[1, 2, 4],
        control_ranks=[1, 4],
        n_sequences=4,
        n_control_sequences=2,
        n_draws=3,
        segment=8,
        text=torch.arange(40).view(4, 10),
    )


def find_line(axes, colour):
    return next(line for line in axes.lines if line.get_color() == LIGHT[colour] and line.get_linestyle() == "-")


def test_each_part_has_its_error_and_its_loss_on_text(sweep):
    picture = rank_sweep(sweep)
    upper, lower = picture.axes[:2]
    errors = [sweep.find("cross_fitted", rank)[0].error.mean() for rank in (1, 2, 4)]
    np.testing.assert_allclose(find_line(upper, "accent").get_xydata(), list(zip((1, 2, 4), errors, strict=True)))
    rises = [sweep.text_rise(rank)[0] for rank in (1, 2, 4)]
    np.testing.assert_allclose(find_line(lower, "accent").get_ydata(), rises, atol=1e-12)
    own = [sweep.find("own", rank, "keep")[0].error.mean() for rank in (1, 2, 4)]
    np.testing.assert_allclose(find_line(picture.axes[2], "second").get_ydata(), own)


def test_bars_go_from_the_least_to_the_largest_draw(sweep):
    upper = rank_sweep(sweep).axes[0]
    bars = [segments.get_segments()[0] for segments in upper.collections if hasattr(segments, "get_segments")]
    assert len(bars) == 2 * 4  # ranks and controls
    draws = [run.error.mean() for run in sweep.find("random", 1)]
    np.testing.assert_allclose(bars[0][:, 1], [min(draws), max(draws)])


def test_the_key_names_what_is_there_and_the_alternative_text_says_the_numbers(sweep):
    svg = to_svg(rank_sweep(sweep))
    shown = set(re.findall(r"<text[^>]*>([^<]+)</text>", svg))
    assert {"bridge, cross-fitted", "bridge, fitted on all heads", "random of equal rank", "untouched model"} <= shown
    assert "bars: least to largest of 3 draws" in shown
    assert {"1", "2", "4"} <= shown
    alt = rank_sweep(sweep).alt
    assert f"untouched {sweep.error.mean():.2f}" in alt
    assert f"{sweep.find('cross_fitted', 4)[0].error.mean():.2f} at 4" in alt
