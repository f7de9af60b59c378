"""The rank of each weight matrix by layer, a panel for each part, beside random matrices of the same shape.

>>> ranks = Ranks(part="W_Q", layers=(0, 1), values=np.array([2.0, 15.0]), control=16.8, control_interval=(16.1, 17.4))
>>> rank_panels([ranks], label="stable rank").alt
'stable rank by layer. W_Q: 2.0, 15.0 (random 16.8).'
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, draw_marks, style_context

_WIDTH, _HEIGHT, _LEFT, _GAP_X, _GAP_Y, _COLUMNS = 132, 104, 36, 46, 70, 4
_MOST_LISTED = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
    """One part of the model: a number for each matrix, and its control."""

    part: str
    """Its name, over the panel."""
    layers: tuple[int | None, ...]
    """The layer of each matrix; None for a matrix of no layer."""
    values: Float[np.ndarray, "matrix"]
    """The rank of each."""
    control: float
    """Mean over random matrices of the same shape."""
    control_interval: tuple[float, float]
    """What encloses the central 95% of them."""


def rank_panels(panels: Sequence[Ranks], *, label: str, title: str = "") -> Picture:
    """Filled dots are the model's matrices, the dashed line is the mean of random ones, the band their spread."""
    if not panels or any(len(panel.layers) != len(panel.values) or len(panel.values) == 0 for panel in panels):
        sizes = [(len(panel.layers), len(panel.values)) for panel in panels]
        raise InputError(
            f"rank_panels was given panels with (layers, values) of sizes {sizes}; it needs at least one panel, and in "
            "each one value for each layer."
        )
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    above = 62 + (24 if title else 0)
    described = "; ".join(_describe(panel) for panel in panels)
    width = max(_LEFT + columns * _WIDTH + (columns - 1) * _GAP_X + 10, 360)
    with style_context():
        picture = Picture(width, above + rows * (_HEIGHT + _GAP_Y) - 22, alt=f"{label} by layer. {described}.")
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        _draw_key(picture, above - 60, label)
        for i, panel in enumerate(panels):
            row, column = divmod(i, columns)
            left, top = _LEFT + column * (_WIDTH + _GAP_X), above + row * (_HEIGHT + _GAP_Y)
            picture.add_text(left, top - 20, panel.part, size=11.5, weight="bold")
            _draw_panel(picture.add_box(left, top, _WIDTH, _HEIGHT), panel)
    return picture


def _describe(panel: Ranks) -> str:
    values = panel.values
    listed = ", ".join(f"{value:.1f}" for value in values)
    if len(values) > _MOST_LISTED:
        listed = f"{values.min():.1f} to {values.max():.1f} over {len(values)} matrices"
    return f"{panel.part}: {listed} (random {panel.control:.1f})"


def _draw_panel(axes: Axes, panel: Ranks) -> None:
    numbered = all(layer is not None for layer in panel.layers)
    x = np.array(panel.layers, dtype=float) if numbered else np.arange(float(len(panel.values)))
    first, last = float(x.min()), float(x.max())
    margin = 0.5 if last - first < 8 else 0.05 * (last - first)
    low, high = panel.control_interval
    axes.set_xlim(first - margin, last + margin)
    axes.set_ylim(0, 1.12 * max(high, float(panel.values.max())))
    axes.axhspan(low, high, color=LIGHT["grid"], lw=0, zorder=0)
    axes.axhline(panel.control, color=LIGHT["control"], lw=1.4, ls=(0, (4, 2.5)), zorder=1)
    if len(x) > _MOST_LISTED and len(set(panel.layers)) == len(x):
        axes.plot(x, panel.values, color=LIGHT["accent"], lw=1.2, zorder=2)
        axes.plot(x, panel.values, "o", ls="none", ms=3.5, color=LIGHT["accent"], clip_on=False, zorder=3)
    else:
        draw_marks(axes, x, panel.values, "measured")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    if not numbered:
        axes.set_xticks([])
        return
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlabel("layer")


def _draw_key(picture: Picture, top: float | int, label: str) -> None:
    key = picture.add_box(0, top + 1, 14, 14)
    key.set(xlim=(-1, 1), ylim=(-1, 1))
    key.set_axis_off()
    draw_marks(key, np.zeros(1), np.zeros(1), "measured")
    picture.add_text(20, top + 1, label, size=11, color=LIGHT["muted"])
    start = 40 + 6.4 * len(label)
    line = picture.add_box(start, top + 1, 22, 14)
    line.set(xlim=(0, 1), ylim=(-1, 1))
    line.set_axis_off()
    line.axhspan(-0.6, 0.6, color=LIGHT["grid"], lw=0)
    line.axhline(0, color=LIGHT["control"], lw=1.4, ls=(0, (4, 2.5)))
    picture.add_text(start + 28, top + 1, "random matrices of the same shape", size=11, color=LIGHT["muted"])
