"""One look for every figure, without touching pyplot or the caller's rcParams.

A figure is laid out in CSS pixels by hand, so that text keeps its size whatever is drawn, and knows what a screen
reader says in its stead. In a notebook it shows itself.

>>> picture = Picture(300, 120, alt="A line")
>>> with style_context():
...     line, = picture.add_box(40, 10, 240, 80).plot([0, 1], [0, 1], color=LIGHT["accent"])
>>> tuple(float(x) for x in picture.get_size_inches() * 72)
(300.0, 120.0)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.figures.colour import LIGHT

_STYLE: Mapping[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 11.5,
    "text.color": LIGHT["ink"],
    "text.parse_math": False,
    "axes.edgecolor": LIGHT["axis"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.labelsize": 11.5,
    "axes.labelpad": 6,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": LIGHT["axis"],
    "ytick.color": LIGHT["axis"],
    "xtick.labelcolor": LIGHT["muted"],
    "ytick.labelcolor": LIGHT["muted"],
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 1,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "interp",
}


_LOOKS = {
    *("axes", "figure", "font", "grid", "hatch", "lines", "markers", "patch", "path", "savefig", "svg", "text"),
    *("xaxis", "xtick", "yaxis", "ytick"),
}


def style_context() -> Any:
    """matplotlib's own defaults with this style on top, whatever the caller has set; undone on exit."""
    base: dict[Any, Any] = {
        name: value for name, value in matplotlib.rcParamsDefault.items() if name.split(".")[0] in _LOOKS
    }
    return matplotlib.rc_context({**base, **_STYLE})


class Picture(Figure):
    """A figure laid out in CSS pixels (one pixel is 1/72 inch), with what a screen reader says in its stead."""

    def __init__(self, width: float | int, height: float | int, *, alt: str) -> None:
        with style_context():
            super().__init__(figsize=(width / 72, height / 72), dpi=144, facecolor="white")
        self.alt = alt
        self.tooltips: dict[str, Sequence[str]] = {}
        """For the artist whose gid is the key: what each of its marks says under the pointer."""

    def add_box(self, left: float | int, top: float | int, width: float | int, height: float | int) -> Axes:
        """Axes at a place given in pixels from the upper left corner."""
        full_width, full_height = self.get_size_inches() * 72
        bottom = full_height - top - height
        return self.add_axes(
            (left / full_width, bottom / full_height, width / full_width, height / full_height), facecolor="none"
        )

    def add_text(self, left: float | int, top: float | int, text: str, **options: Any) -> None:
        """Text whose upper left corner is at a place given in pixels from the upper left corner."""
        full_width, full_height = self.get_size_inches() * 72
        self.text(left / full_width, 1 - top / full_height, text, **{"ha": "left", "va": "top", **options})

    def _repr_html_(self) -> str:
        from interp.figures.svg import to_svg

        return f'<div style="background:#fff;display:inline-block;padding:8px">{to_svg(self)}</div>'


def spread(positions: Sequence[float], gap: float, *, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """The nearest positions in the same order that are `gap` apart and within bounds, for labels that would overlap.

    >>> spread([0.0, 1.0, 10.0], 4.0)
    [-1.5, 2.5, 10.0]
    >>> spread([0.0, 1.0, 10.0], 4.0, low=0.0)
    [0.0, 4.0, 10.0]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[tuple[float, int]] = []
    for index in order:
        centre, size = min(max(positions[index], low), high), 1
        while groups and centre - (size - 1) * gap / 2 < groups[-1][0] + (groups[-1][1] + 1) * gap / 2:
            other, other_size = groups.pop()
            centre, size = (centre * size + other * other_size) / (size + other_size), size + other_size
            half = (size - 1) * gap / 2
            centre = max(min(centre, high - half), low + half)
        groups.append((centre, size))
    placed = [centre + (i - (size - 1) / 2) * gap for centre, size in groups for i in range(size)]
    return [place for _, place in sorted(zip(order, placed, strict=True))]


def draw_marks(
    axes: Axes, x: Float[np.ndarray, "mark"], y: Float[np.ndarray, "mark"], kind: Literal["measured", "control", "draw"]
) -> None:
    """Dots with one meaning in every figure: filled is the thing measured, open is its control, small is one draw."""
    options: Mapping[str, Any] = {
        "measured": {"ms": 7, "mfc": LIGHT["accent"], "mec": LIGHT["accent"]},
        "control": {"ms": 6.5, "mfc": "none", "mec": LIGHT["control"], "mew": 1.6},
        "draw": {"ms": 4, "mfc": LIGHT["control"], "mec": LIGHT["control"], "mew": 0, "alpha": 0.55},
    }[kind]
    axes.plot(x, y, "o", ls="none", clip_on=False, zorder=3, **options)
