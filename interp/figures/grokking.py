"""How each seed learns, in a panel of its own: what it is trained for early, what it might come to later, or never.

A row of panels is a setting. The grey line is accuracy on what is trained, the blue one where rules differ, the orange one on a
part of that. A dashed upright marks where the grey line was saturated, a dot where the blue one first was high.

>>> steps = np.array([0.0, 500, 1000])
>>> panel = SeedCurve(title="seed 0", note="hierarchical", steps=steps, saturated=500.0, rose=1000.0,
...                   lines={"validation": np.array([0.2, 1, 1]), "generalisation": np.array([0.3, 0.1, 0.9])})
>>> grokking_panels({"6 layers": [panel]}, label="accuracy").alt
'accuracy against training step. 6 layers: seed 0, hierarchical: validation 1.00, generalisation 0.90 at the end.'
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context

_LOOKS = (("control", 1.8, 1), ("accent", 2.4, 3), ("second", 1.3, 2))
"""Colour, width and order of the first, second and third line."""
_DASHES = (0, (3, 2.5))
_LEFT, _WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _COLUMNS, _RIGHT = 40, 112, 92, 18, 50, 5, 74


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedCurve:
    """One model."""

    title: str
    """Over the panel."""
    note: str
    """Beside the title: how it ended."""
    steps: Int[np.ndarray, "point"] | Float[np.ndarray, "point"]
    """Training steps."""
    lines: Mapping[str, Float[np.ndarray, "point"]]
    """Up to three shares from 0 to 1 by name; a name has the same colour in every panel."""
    saturated: float = math.nan
    """Step at which the first line was saturated; NaN where it never was."""
    rose: float = math.nan
    """Step at which the second line first was high; NaN where it never was."""


def grokking_panels(
    rows: Mapping[str, Sequence[SeedCurve]],
    *,
    label: str,
    level: tuple[str, float] | None = None,
    marks: tuple[str, str] = ("first 99%", "first 80%"),
) -> Picture:
    """Panels of the settings, a row or more each, five panels wide at most; `level` is a named height, dotted in all of them.

    `marks` is what the upright and the dot are called. Raises `InputError` without a panel, and for a line of another length.
    """
    panels = [panel for row in rows.values() for panel in row]
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    if not names or len(names) > len(_LOOKS) or any(len(v) != len(p.steps) for p in panels for v in p.lines.values()):
        raise InputError(
            f"grokking_panels was given {len(panels)} panels with lines {names}; give a panel or more, one to {len(_LOOKS)} "
            "names, and a value for each step."
        )
    columns = min(_COLUMNS, max(len(row) for row in rows.values()))
    heights = [24 + -(-len(row) // columns) * (_HEIGHT + _GAP_Y) for row in rows.values()]
    right = _RIGHT if level is not None else 12
    width = max(_LEFT + columns * _WIDTH + (columns - 1) * _GAP_X + right, _measure_key(names, marks))
    with style_context():
        picture = Picture(width, 44 + sum(heights), alt=_describe(rows, label))
        _draw_key(picture, names, marks)
        top = 40.0
        for (setting, row), height in zip(rows.items(), heights, strict=True):
            picture.add_text(0, top, setting, size=12.5, weight="bold")
            for i, panel in enumerate(row):
                line, column = divmod(i, columns)
                left, upper = _LEFT + column * (_WIDTH + _GAP_X), top + 44 + line * (_HEIGHT + _GAP_Y)
                picture.add_text(left, upper - 18, panel.title, size=10.5, color=LIGHT["muted"])
                picture.add_text(left + _WIDTH, upper - 18, panel.note, size=10.5, ha="right")
                axes = picture.add_box(left, upper, _WIDTH, _HEIGHT)
                _draw_panel(axes, panel, names, level)
                axes.tick_params(axis="y", labelleft=column == 0)
                if level is not None and (column == columns - 1 or i == len(row) - 1):
                    axes.annotate(level[0], (1, level[1]), (5, 0), xycoords=("axes fraction", "data"), size=10,
                                  textcoords="offset points", va="center_baseline", color=LIGHT["muted"])  # fmt: skip
            top += height
    return picture


def _measure_key(names: Sequence[str], marks: tuple[str, str]) -> float:
    return sum(44 + 6.6 * len(name) for name in (*names, *marks))


def _draw_key(picture: Picture, names: Sequence[str], marks: tuple[str, str]) -> None:
    start = 0.0
    for name, (colour, thick, _) in zip(names, _LOOKS, strict=False):
        axes = _add_sample(picture, start)
        axes.axhline(0, color=LIGHT[colour], lw=thick)
        picture.add_text(start + 26, 2, name, size=11, color=LIGHT["muted"])
        start += 44 + 6.6 * len(name)
    axes = _add_sample(picture, start)
    axes.axvline(0.5, color=LIGHT["control"], lw=1.2, ls=_DASHES)
    picture.add_text(start + 20, 2, marks[0], size=11, color=LIGHT["muted"])
    start += 44 + 6.6 * len(marks[0])
    axes = _add_sample(picture, start)
    axes.plot([0.5], [0], "o", ms=6.5, color=LIGHT["accent"], mec=LIGHT["ink"], mew=1)
    picture.add_text(start + 20, 2, marks[1], size=11, color=LIGHT["muted"])


def _add_sample(picture: Picture, start: float) -> Axes:
    axes = picture.add_box(start, 2, 20, 14)
    axes.set(xlim=(0, 1), ylim=(-1, 1))
    axes.set_axis_off()
    return axes


def _draw_panel(axes: Axes, panel: SeedCurve, names: Sequence[str], level: tuple[str, float] | None) -> None:
    last = float(panel.steps[-1]) or 1.0
    axes.set(xlim=(0, last), ylim=(0, 1))
    axes.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    axes.set_xticks([0, last])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"))
    first, final = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    final.set_horizontalalignment("right")
    axes.grid(axis="y")
    if level is not None:
        axes.axhline(level[1], color=LIGHT["muted"], lw=1.1, ls=(0, (1, 2.2)), zorder=1)
    if math.isfinite(panel.saturated):
        axes.axvline(panel.saturated, color=LIGHT["control"], lw=1.2, ls=_DASHES, zorder=1)
    for name, (colour, thick, order) in zip(names, _LOOKS, strict=False):
        if name in panel.lines:
            axes.plot(panel.steps, panel.lines[name], color=LIGHT[colour], lw=thick, zorder=order, clip_on=False)
    if math.isfinite(panel.rose) and len(names) > 1:
        height = float(np.interp(panel.rose, panel.steps, panel.lines[names[1]]))
        axes.plot(
            [panel.rose], [height], "o", ms=6.5, color=LIGHT["accent"], mec=LIGHT["ink"], mew=1, zorder=4, clip_on=False
        )


def _describe(rows: Mapping[str, Sequence[SeedCurve]], label: str) -> str:
    told = [
        f"{setting}: "
        + "; ".join(
            f"{panel.title}, {panel.note}: {', '.join(f'{name} {values[-1]:.2f}' for name, values in panel.lines.items())}"
            for panel in row
        )
        for setting, row in rows.items()
    ]
    return f"{label} against training step. {'. '.join(told)} at the end."
