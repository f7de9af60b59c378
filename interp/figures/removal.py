"""Accuracy as more and more heads are removed: a small panel a task, beside the band of random heads and chance.

The solid line is the chosen heads, with its interval; the band spans the draws of as many random heads, its thin line
is their mean; the dashed line is chance.

>>> panel = RemovalPanel(title="names", counts=np.array([0, 10]), values=np.array([1.0, 0.4]), low=np.array([1.0, 0.3]),
...                      high=np.array([1.0, 0.5]), draws=(np.array([0.9, 1.0]),), control=np.array([0.95]), chance=0.5)
>>> removal_panels([panel], label="accuracy").alt
'accuracy as heads are removed. names: 1.00, with 10 removed 0.40, with 10 random ones 0.95; chance 0.50.'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, draw_marks, style_context

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP_X, _GAP_Y, _COLUMNS = 196, 132, 46, 64, 34, 66, 3


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RemovalPanel:
    """One task."""

    title: str
    """Over the panel."""
    counts: Int[np.ndarray, "point"]
    """Heads removed, from 0 on."""
    values: Float[np.ndarray, "point"]
    """Accuracy at each count."""
    low: Float[np.ndarray, "point"]
    """Lower ends of its intervals."""
    high: Float[np.ndarray, "point"]
    """Upper ends."""
    draws: tuple[Float[np.ndarray, "_draw"], ...]
    """Accuracy under each draw of random heads, for each count but the first; none where the task isn't done above chance."""
    control: Float[np.ndarray, "later"]
    """Their mean, for each count but the first."""
    chance: float
    """How often a guess is right."""


def removal_panels(panels: Sequence[RemovalPanel], *, label: str, columns: int = _COLUMNS) -> Picture:
    """Panels side by side, `columns` in a row; accuracies are shares, from 0 to 1."""
    wrong = [panel.title for panel in panels if not len(panel.draws) == len(panel.control) == len(panel.counts) - 1]
    if not panels or wrong:
        raise InputError(
            f"removal_panels was given {len(panels)} panels, with another number of controls than of counts above 0 in "
            f"{wrong}; give at least one panel, and one control for each count."
        )
    columns = min(columns, len(panels))
    ticks = max((panel.counts for panel in panels), key=len)
    rows = -(-len(panels) // columns)
    width = max(_LEFT + columns * _WIDTH + (columns - 1) * _GAP_X + 14, 470)
    with style_context():
        picture = Picture(width, _TOP + rows * _HEIGHT + (rows - 1) * _GAP_Y + 46, alt=_describe(panels, label))
        _draw_key(picture)
        for i, panel in enumerate(panels):
            row, column = divmod(i, columns)
            left, top = _LEFT + column * (_WIDTH + _GAP_X), _TOP + row * (_HEIGHT + _GAP_Y)
            picture.add_text(left, top - 22, panel.title, size=11, weight="bold")
            axes = picture.add_box(left, top, _WIDTH, _HEIGHT)
            _draw_panel(axes, panel, ticks)
            if column == 0:
                axes.set_ylabel(label)
            axes.tick_params(axis="y", labelleft=column == 0)
            if i + columns >= len(panels):
                axes.set_xlabel("heads removed")
    return picture


def _draw_panel(axes: Axes, panel: RemovalPanel, ticks: Int[np.ndarray, "tick"]) -> None:
    last = float(ticks[-1]) or 1.0
    axes.set(xlim=(-0.05 * last, last), ylim=(0, 1))
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(2))
    axes.set_xticks(ticks)
    axes.axhline(panel.chance, color=LIGHT["muted"], lw=1.2, ls=(0, (4, 3)))
    start = panel.values[:1]
    if panel.draws:
        lowest = np.concatenate([start, [draws.min() for draws in panel.draws]]).clip(0, 1)
        highest = np.concatenate([start, [draws.max() for draws in panel.draws]]).clip(0, 1)
        axes.fill_between(panel.counts, lowest, highest, color=LIGHT["control"], alpha=0.22, lw=0)
        axes.plot(panel.counts, np.concatenate([start, panel.control]), color=LIGHT["control"], lw=1.4)
    else:
        axes.text(last / 2, 0.78, "not above chance,\nso no head was removed", size=11, color=LIGHT["muted"], ha="center",
                  va="center")  # fmt: skip
    axes.vlines(panel.counts, panel.low, panel.high, color=LIGHT["accent"], lw=2, clip_on=False)
    axes.plot(panel.counts, panel.values, color=LIGHT["accent"], lw=2, clip_on=False)
    draw_marks(axes, panel.counts.astype(float), panel.values, "measured")


def _draw_key(picture: Picture) -> None:
    start = 0.0
    looks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("chosen heads", {"color": LIGHT["accent"], "lw": 2}),
        ("random heads of the same layers", {"color": LIGHT["control"], "lw": 1.4}),
        ("chance", {"color": LIGHT["muted"], "lw": 1.2, "ls": (0, (4, 3))}),
    )
    for name, look in looks:
        box = picture.add_box(start, 2, 20, 14)
        box.set(xlim=(0, 1), ylim=(-1, 1))
        box.set_axis_off()
        if name.startswith("random"):
            box.axhspan(-1, 1, color=LIGHT["control"], alpha=0.22, lw=0)
        box.axhline(0, **look)
        picture.add_text(start + 26, 2, name, size=11, color=LIGHT["muted"])
        start += 46 + 6.1 * len(name)


def _describe(panels: Sequence[RemovalPanel], label: str) -> str:
    told = []
    for panel in panels:
        without = [
            f"with {count} removed {value:.2f}, with {count} random ones {control:.2f}"
            for count, value, control in zip(panel.counts[1:], panel.values[1:], panel.control, strict=True)
        ]
        told.append(f"{panel.title}: {', '.join([f'{panel.values[0]:.2f}', *without])}; chance {panel.chance:.2f}")
    return f"{label} as heads are removed. {'. '.join(told)}."
