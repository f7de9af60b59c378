"""How several seeds of several settings learn: a small panel a setting, every seed faint, their mean solid.

>>> steps = np.array([0, 500, 1000])
>>> panel = SeedPanel(title="small initialisation", steps=steps, lines={"reasoning": np.array([[0, 0.5, 1], [0, 0.7, 1]])})
>>> seed_panels([panel], label="accuracy").alt
'accuracy against training step, the mean of the seeds at the end. small initialisation: reasoning 1.00.'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context

_COLOURS = ("accent", "second", "third", "fourth")
_WIDTH, _HEIGHT, _LEFT, _GAP_X, _GAP_Y, _COLUMNS = 200, 108, 44, 34, 62, 3


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedPanel:
    """One setting: lines by name, a row a seed; NaN where a line has no number."""

    title: str
    """Over the panel."""
    steps: Int[np.ndarray, "point"] | Float[np.ndarray, "point"]
    """Training steps."""
    lines: Mapping[str, Float[np.ndarray, "seed point"]]
    """By name; a name has the same colour in every panel."""


def seed_panels(panels: Sequence[SeedPanel], *, label: str) -> Picture:
    """Panels side by side, at most three in a row; numbers are shares, from 0 to 1."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    wrong = [p.title for p in panels if any(values.shape[1] != len(p.steps) for values in p.lines.values())]
    if not names or wrong or len(names) > len(_COLOURS):
        raise InputError(
            f"seed_panels was given lines {names}, with another number of values than of steps in {wrong}; "
            f"give one to {len(_COLOURS)} names, and one value for each step."
        )
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width = max(_LEFT + columns * _WIDTH + (columns - 1) * _GAP_X + 22, 400)
    with style_context():
        picture = Picture(width, 52 + rows * (_HEIGHT + _GAP_Y), alt=_describe(panels, label))
        start = 0.0
        for name, colour in zip(names, _COLOURS, strict=False):
            line = picture.add_box(start, 2, 20, 14)
            line.set(xlim=(0, 1), ylim=(-1, 1))
            line.set_axis_off()
            line.axhline(0, color=LIGHT[colour], lw=2)
            picture.add_text(start + 26, 2, name, size=11, color=LIGHT["muted"])
            start += 44 + 6.5 * len(name)
        for i, panel in enumerate(panels):
            row, column = divmod(i, columns)
            left, top = _LEFT + column * (_WIDTH + _GAP_X), 46 + row * (_HEIGHT + _GAP_Y)
            picture.add_text(left, top - 18, panel.title, size=11, weight="bold")
            axes = picture.add_box(left, top, _WIDTH, _HEIGHT)
            _draw_panel(axes, panel, names)
            if column == 0:
                axes.set_ylabel(label)
            axes.tick_params(axis="y", labelleft=column == 0)
            if i + columns >= len(panels):
                axes.set_xlabel("training step")
    return picture


def _draw_panel(axes: Axes, panel: SeedPanel, names: Sequence[str]) -> None:
    axes.set(xlim=(float(panel.steps[0]), float(panel.steps[-1]) or 1.0), ylim=(0, 1))
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(2))
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    for name, colour in zip(names, _COLOURS, strict=False):
        if name not in panel.lines:
            continue
        values = panel.lines[name]
        for seed in values:
            axes.plot(panel.steps, seed, color=LIGHT[colour], lw=1, alpha=0.3, clip_on=False)
        axes.plot(panel.steps, values.mean(axis=0), color=LIGHT[colour], lw=2.2, clip_on=False)


def _describe(panels: Sequence[SeedPanel], label: str) -> str:
    told = [
        f"{panel.title}: {', '.join(f'{name} {values[:, -1].mean():.2f}' for name, values in panel.lines.items())}"
        for panel in panels
    ]
    return f"{label} against training step, the mean of the seeds at the end. {'; '.join(told)}."
