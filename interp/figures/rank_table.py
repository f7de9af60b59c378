"""Several orders of the same heads side by side: in each cell the rank, and as colour the share of the order's largest value.

>>> orders = [
...     Order(name="raw", group="attention", values=np.array([0.9, 0.1]), largest=0.9),
...     Order(name="diagonal", group="weights", values=np.array([0.2, 0.4]), largest=0.4),
... ]
>>> rank_table([(1, 0), (1, 1)], orders, ranks=np.array([[1, 2], [2, 1]]), n_ranked=8).alt
'Ranks of 2 heads among 8 by raw, diagonal. 1.0: 1, 2; 1.1: 2, 1.'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from interp.errors import InputError
from interp.figures.colour import LEVELS, LIGHT, choose_heat, ramp
from interp.figures.style import Picture, style_context

_ROW, _COLUMN, _LEFT, _GAP = 22, 104, 48, 12
_DARK = 0.55
"""Share of the ramp from which text in a cell has the colour of the ramp's other end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """One column: what orders the heads."""

    name: str
    """Its name, over the column."""
    group: str
    """What it belongs to; neighbours of one group stand close together."""
    values: Float[np.ndarray, "head"]
    """The value of each shown head; NaN where it has none."""
    largest: float
    """The largest value of any head, shown or not: the end of the colours."""


def rank_table(
    heads: Sequence[tuple[int, int]],
    orders: Sequence[Order],
    *,
    ranks: Int[np.ndarray, "head order"],
    n_ranked: int,
    n_bold: int = 5,
    title: str = "",
) -> Picture:
    """Heads as rows, orders as columns, the first `n_bold` of each order in bold; rank 0 stands for a head without a value.

    `n_ranked` is how many heads there are in all. Raises `InputError` where sizes don't fit.
    """
    if not heads or not orders or ranks.shape != (len(heads), len(orders)):
        raise InputError(
            f"rank_table was given {len(heads)} heads, {len(orders)} orders and ranks of shape {ranks.shape}; it needs at "
            "least one of both, and a rank for each head in each order."
        )
    names = [f"{layer}.{head}" for layer, head in heads]
    said = "; ".join(f"{name}: {', '.join(map(_say, row))}" for name, row in zip(names, ranks.tolist(), strict=True))
    alt = f"Ranks of {len(heads)} heads among {n_ranked} by {', '.join(order.name for order in orders)}. {said}."
    lefts = [0]
    for before, order in pairwise(orders):
        lefts.append(lefts[-1] + _COLUMN + (0 if before.group == order.group else _GAP))
    key = 28 + (24 if title else 0)
    above, width, height = key + 44, lefts[-1] + _COLUMN, _ROW * len(heads)
    with style_context():
        picture = Picture(max(_LEFT + width + 4, 460), above + height + 4, alt=alt)
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        _draw_key(picture, key - 26, n_ranked=n_ranked, n_bold=n_bold)
        axes = picture.add_box(_LEFT, above, width, height)
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        for row, name in enumerate(names):
            axes.text(-10, (row + 0.5) * _ROW, name, ha="right", va="center_baseline", size=11)
        for column, (order, left) in enumerate(zip(orders, lefts, strict=True)):
            if column == 0 or orders[column - 1].group != order.group:
                axes.text(left + 1, -25, order.group, size=11, color=LIGHT["muted"])
            axes.text(left + 1, -7, order.name, size=11)
            _draw_cells(axes, order, left=left, gid=f"order-{column}")
            _write_ranks(axes, order, ranks[:, column], left=left, n_bold=n_bold)
            picture.tooltips[f"order-{column}"] = [
                f"{name}, {order.name}: " + (f"{value:.3f}" if np.isfinite(value) else "not measured")
                for name, value in zip(names, order.values.tolist(), strict=True)
            ]
    return picture


def _shade(order: Order) -> Float[np.ndarray, "head"]:
    return np.where(np.isfinite(order.values), order.values, 0.0) / max(order.largest, np.finfo(float).tiny)


def _draw_cells(axes: Axes, order: Order, *, left: int, gid: str) -> None:
    cells = [Rectangle((left + 1, row * _ROW + 1), _COLUMN - 2, _ROW - 2) for row in range(len(order.values))]
    shades = choose_heat(_shade(order), 0.0, 1.0)
    known = np.isfinite(order.values).tolist()
    colours = [shade if there else "none" for shade, there in zip(shades, known, strict=True)]
    axes.add_collection(PatchCollection(cells, facecolors=colours, edgecolors="none", gid=gid))


def _write_ranks(axes: Axes, order: Order, ranks: Int[np.ndarray, "head"], *, left: int, n_bold: int) -> None:
    for row, (rank, shade) in enumerate(zip(ranks.tolist(), _shade(order).tolist(), strict=True)):
        # The ends of the ramp change places between the light and the dark theme, and so does the ink.
        colour = ramp()[0] if rank and shade > _DARK else LIGHT["ink" if rank else "muted"]
        axes.text(
            left + _COLUMN / 2,
            (row + 0.5) * _ROW,
            str(rank) if rank else "–",
            ha="center",
            va="center_baseline",
            size=11,
            color=colour,
            weight="bold" if 0 < rank <= n_bold else "normal",
        )


def _draw_key(picture: Picture, top: int, *, n_ranked: int, n_bold: int) -> None:
    picture.add_text(0, top, "0", size=11, color=LIGHT["muted"])
    scale = picture.add_box(14, top + 2, 90, 9)
    scale.set(xlim=(0, LEVELS), ylim=(0, 1))
    scale.set_axis_off()
    strips = [Rectangle((level, 0), min(1.4, LEVELS - level), 1) for level in range(LEVELS)]
    scale.add_collection(PatchCollection(strips, facecolors=list(ramp()), edgecolors="none"))
    text = f"largest of the column      number: rank among {n_ranked} heads, bold to {n_bold}"
    picture.add_text(110, top, text, size=11, color=LIGHT["muted"])


def _say(rank: int) -> str:
    return str(rank) if rank else "none"
