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
_DASHES = (0, (4, 2.5))
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


def seed_panels(
    panels: Sequence[SeedPanel],
    *,
    label: str,
    limits: tuple[float, float] = (0.0, 1.0),
    control: tuple[float, float, float] | None = None,
) -> Picture:
    """Panels side by side, at most three in a row; numbers are shares, from 0 to 1, unless `limits` say else.

    `control` is (low, mean, high) of what chance gives: a dashed line with its band in every panel.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    wrong = [p.title for p in panels if any(values.shape[1] != len(p.steps) for values in p.lines.values())]
    if not names or wrong or len(names) > len(_COLOURS):
        raise InputError(
            f"seed_panels was given lines {names}, with another number of values than of steps in {wrong}; "
            f"give one to {len(_COLOURS)} names, and one value for each step."
        )
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    keys = [*names, "random"] if control is not None else names
    width = max(_LEFT + columns * _WIDTH + (columns - 1) * _GAP_X + 22, sum(44 + 6.5 * len(name) for name in keys))
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
        if control is not None:
            dashes = picture.add_box(start, 2, 20, 14)
            dashes.set(xlim=(0, 1), ylim=(-1, 1))
            dashes.set_axis_off()
            dashes.axhline(0, color=LIGHT["control"], lw=1.4, ls=_DASHES)
            picture.add_text(start + 26, 2, "random", size=11, color=LIGHT["muted"])
        for i, panel in enumerate(panels):
            row, column = divmod(i, columns)
            left, top = _LEFT + column * (_WIDTH + _GAP_X), 46 + row * (_HEIGHT + _GAP_Y)
            picture.add_text(left, top - 18, panel.title, size=11, weight="bold")
            axes = picture.add_box(left, top, _WIDTH, _HEIGHT)
            _draw_panel(axes, panel, names, limits, control)
            if column == 0:
                axes.set_ylabel(label)
            axes.tick_params(axis="y", labelleft=column == 0)
            if i + columns >= len(panels):
                axes.set_xlabel("training step")
    return picture


def _draw_panel(
    axes: Axes,
    panel: SeedPanel,
    names: Sequence[str],
    limits: tuple[float, float],
    control: tuple[float, float, float] | None,
) -> None:
    axes.set(xlim=(float(panel.steps[0]), float(panel.steps[-1]) or 1.0), ylim=limits)
    if control is not None:
        axes.axhspan(control[0], control[2], color=LIGHT["grid"], lw=0, zorder=0)
        axes.axhline(control[1], color=LIGHT["control"], lw=1.4, ls=_DASHES, zorder=1)
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
