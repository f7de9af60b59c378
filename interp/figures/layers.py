"""Numbers by layer: a small panel a number, in each the model as a line with its interval beside its controls.

The model is the solid line in its band; a control is a dashed line, or a band from the least to the largest draw where it was
drawn several times; what has no layer is a level across the panel, named at its end.

>>> panel = LayerPanel(title="F1", lines=(LayerLine(name="model", values=np.array([0.2, 0.4])),), levels={"right-branching": 0.3})
>>> layer_panels([panel], layers=(0, 1)).alt
'By layer, 0 to 1. F1: model 0.20 to 0.40, most at layer 1; right-branching 0.30.'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, spread, style_context

_LOOKS = ("accent", "second", "control")
_LEVELS = ("third", "fourth", "muted")
_DASHES = (0, (4, 2.5))
_WIDTH, _HEIGHT, _LEFT, _GAP_X, _GAP_Y, _COLUMNS, _KEY = 284, 150, 46, 56, 66, 2, 30
_MOST_MARKED = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerLine:
    """A number at every layer."""

    name: str
    """What it is the number of; a name looks the same in every panel."""
    values: Float[np.ndarray, "layer"]
    """The number."""
    low: Float[np.ndarray, "layer"] | None = None
    """Lower ends of its interval, or the least of its draws."""
    high: Float[np.ndarray, "layer"] | None = None
    """Upper ends, or the largest."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerPanel:
    """One number, of the model and of its controls."""

    title: str
    """Over the panel."""
    lines: tuple[LayerLine, ...]
    """The model first, then at most two controls."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """What is the same at every layer, at most three."""
    marked: int | None = None
    """A layer that the text speaks of."""


def layer_panels(panels: Sequence[LayerPanel], *, layers: Sequence[int]) -> Picture:
    """The panels, two in a row, under one key. Raises `InputError` for none, or other than one value a layer."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    wrong = [panel.title for panel in panels if any(len(line.values) != len(layers) for line in panel.lines)]
    most = max((len(panel.levels) for panel in panels), default=0)
    if not panels or wrong or len(names) > len(_LOOKS) or most > len(_LEVELS):
        raise InputError(
            f"layer_panels was given {len(panels)} panels with lines {names}, {most} levels at most, and another number of "
            f"values than of layers in {wrong}; give a panel or more, three names, three levels, and one value a layer."
        )
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    margin = 26 + 6.6 * max((len(name) for panel in panels for name in panel.levels), default=0)
    key = sum(46 + 6.4 * len(name) for name in names)
    width = max(_LEFT + columns * _WIDTH + (columns - 1) * _GAP_X + margin, key)
    with style_context():
        picture = Picture(width, _KEY + 22 + rows * (_HEIGHT + _GAP_Y) - 20, alt=_describe(panels, layers))
        _draw_key(picture, names, banded={line.name for p in panels for line in p.lines if line.low is not None})
        for i, panel in enumerate(panels):
            row, column = divmod(i, columns)
            left, top = _LEFT + column * (_WIDTH + _GAP_X), _KEY + 22 + row * (_HEIGHT + _GAP_Y)
            picture.add_text(left, top - 22, panel.title, size=11.5, weight="bold")
            axes = picture.add_box(left, top, _WIDTH, _HEIGHT)
            _draw_panel(axes, panel, names, layers)
            if i + columns >= len(panels):
                axes.set_xlabel("layer")
    return picture


def _draw_panel(axes: Axes, panel: LayerPanel, names: Sequence[str], layers: Sequence[int]) -> None:
    first, last = layers[0], layers[-1]
    room = 0.5 if len(layers) <= _MOST_MARKED else 0.02 * (last - first)
    axes.set_xlim(first - room, last + room)
    low, high = _find_limits(panel)
    axes.set_ylim(low, high)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if panel.marked is not None:
        axes.axvline(panel.marked, color=LIGHT["axis"], lw=1, ls=(0, (2, 2)), zorder=1)
    if low < 0 < high:
        axes.axhline(0, color=LIGHT["axis"], lw=1, zorder=1)
    marker = "o" if len(layers) <= _MOST_MARKED else None
    for line in reversed(panel.lines):
        look = names.index(line.name)
        colour = LIGHT[_LOOKS[look]]
        if line.low is not None and line.high is not None and np.isfinite(line.low).all():
            axes.fill_between(layers, line.low, line.high, color=colour, alpha=0.2, lw=0)
        axes.plot(layers, line.values, color=colour, lw=2 if look == 0 else 1.5, ls="-" if look == 0 else _DASHES,
                  marker=marker, ms=4, clip_on=False, zorder=3 + (look == 0))  # fmt: skip
    pixels = axes.bbox.height / axes.figure.dpi * 72 / (high - low)
    places = spread(list(panel.levels.values()), 14 / pixels, low=low, high=high)
    for (name, value), place, colour in zip(panel.levels.items(), places, _LEVELS, strict=False):
        axes.axhline(value, color=LIGHT[colour], lw=1.4, ls=(0, (1.5, 1.5)), zorder=2)
        axes.annotate(name, (1, place), (8, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      va="center_baseline", size=11, color=LIGHT[colour], annotation_clip=False)  # fmt: skip


def _find_limits(panel: LayerPanel) -> tuple[float, float]:
    bounds = [one for line in panel.lines for one in (line.values, line.low, line.high) if one is not None]
    numbers = np.concatenate([*bounds, list(panel.levels.values())])
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    room = 0.08 * (high - low) or 0.1
    return low - room, high + room


def _draw_key(picture: Picture, names: Sequence[str], *, banded: set[str]) -> None:
    start = 0.0
    for look, name in enumerate(names):
        box = picture.add_box(start, 2, 22, 14)
        box.set(xlim=(0, 1), ylim=(-1, 1))
        box.set_axis_off()
        colour = LIGHT[_LOOKS[look]]
        if name in banded:
            box.axhspan(-0.8, 0.8, color=colour, alpha=0.2, lw=0)
        box.axhline(0, color=colour, lw=2 if look == 0 else 1.5, ls="-" if look == 0 else _DASHES)
        picture.add_text(start + 28, 2, name, size=11, color=LIGHT["muted"])
        start += 46 + 6.4 * len(name)


def _describe(panels: Sequence[LayerPanel], layers: Sequence[int]) -> str:
    told = []
    for panel in panels:
        lines = [
            f"{line.name} {line.values.min():.2f} to {line.values.max():.2f}, most at layer {layers[int(line.values.argmax())]}"
            for line in panel.lines
        ]
        levels = [f"{name} {value:.2f}" for name, value in panel.levels.items()]
        told.append(f"{panel.title}: {'; '.join([*lines, *levels])}")
    return f"By layer, {layers[0]} to {layers[-1]}. {'. '.join(told)}."
