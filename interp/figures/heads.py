"""Heads at a glance: a map of every head, and the strongest ones with their intervals beside a control.

In the map a row is a layer, the first at the bottom as in drawings of the residual stream; a column is a head.

>>> scores = np.array([[0.02, 0.91], [0.10, 0.05], [0.88, 0.03]])
>>> picture = head_map(scores, label="induction score", top=[(0, 1), (2, 0)])
>>> picture.alt
'Map of induction score over 3 layers and 2 heads. Outlined: 0.1 (0.91), 2.0 (0.88).'
>>> _ = head_ranking([(0, 1), (2, 0)], np.array([0.91, 0.88]), label="induction score", control=np.array([0.01, 0.02]))
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from interp.errors import InputError
from interp.figures.colour import LEVELS, LIGHT, choose_heat, ramp
from interp.figures.style import Picture, draw_marks, spread, style_context

_LONGEST_SIDE = 620
_LONGEST_LABEL = 16
_LETTER = 6.6
"""Width of a letter in a label."""


def head_map(
    values: Float[np.ndarray, "layer head"],
    *,
    label: str,
    top: Sequence[tuple[int, int]] = (),
    title: str = "",
    columns: str = "head",
    column_names: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    vmin: float = 0.0,
    vmax: float = 1.0,
) -> Picture:
    """A cell for every head, the `top` heads outlined and named as layer.head; a value that is NaN is an empty cell.

    `columns` names what the second axis is where it isn't heads, such as `position`. `column_names` stand in place of its
    numbers, such as roles; `column_labels` stand below them, such as the token at each position.
    """
    n_layers, n_heads = values.shape
    if values.size == 0:
        raise InputError(
            f"head_map was given values of shape {values.shape}; it needs at least one layer and one head."
        )
    outside = [head for head in top if not (0 <= head[0] < n_layers and 0 <= head[1] < n_heads)]
    if outside:
        raise InputError(f"head_map was asked to outline {outside}, but the heads are {n_layers} layers of {n_heads}.")
    if not vmin < vmax:
        raise InputError(f"head_map was given the range {vmin} to {vmax}; vmin must be below vmax.")
    for kind, texts in (("names", column_names), ("labels", column_labels)):
        if texts is not None and len(texts) != n_heads:
            raise InputError(f"head_map was given {len(texts)} column_{kind} for {n_heads} columns; give one for each.")

    def name_of(layer: int, head: int) -> str:
        return f"{layer}.{head}" if column_names is None else f"{layer} {column_names[head]}"

    named = ", ".join(f"{name_of(*place)} ({values[place]:.2f})" for place in top)
    kinds = f"{n_heads} {columns}s" + (f" ({', '.join(column_names)})" if column_names is not None else "")
    alt = f"Map of {label} over {n_layers} layers and {kinds}." + (f" Outlined: {named}." if named else "")
    cell = int(np.clip(_LONGEST_SIDE / max(n_layers, n_heads), 6, 24))
    below = [[_show(text) for text in texts] for texts in (column_names, column_labels) if texts is not None]
    cell_width, upright, heights = _fit_below(below, cell)
    by_layer: dict[int, list[int]] = {}
    for layer, head in sorted(top):
        by_layer.setdefault(layer, []).append(head)
    names = {layer: " · ".join(name_of(layer, head) for head in heads) for layer, heads in by_layer.items()}
    margin = 26 + 6.4 * max(map(len, names.values())) if names else 8
    map_width, map_height = cell_width * n_heads, cell * n_layers
    above = 34 + (24 if title else 0)
    width = max(44 + map_width + margin, 190 + 6 * len(label), 20 + 7.4 * len(title))

    with style_context():
        numbered = column_names is None
        picture = Picture(width, above + map_height + (42 if numbered else 27) + sum(heights), alt=alt)
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        beyond = 1e-6 * (vmax - vmin)
        least = f"{'≤' if (values < vmin - beyond).any() else ''}{vmin:g}"
        most = f"{'≥' if (values > vmax + beyond).any() else ''}{vmax:g}"
        _draw_scale(picture, above - 30, label, least, most)

        axes = picture.add_box(44, above, map_width, map_height)
        axes.set(xlim=(-0.5, n_heads - 0.5), ylim=(-0.5, n_layers - 0.5), ylabel="layer")
        axes.set_xlabel(columns, labelpad=6 + sum(heights))
        axes.set_xticks(_choose_ticks(n_heads, cell_width) if numbered else [])
        _write_below(axes, below, heights, upright=upright, start=20 if numbered else 5)
        axes.set_yticks(_choose_ticks(n_layers, cell))
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set_visible(False)
        gap = 2 if cell > 10 else 1
        across, up = gap / cell_width, gap / cell
        places = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
        cells = [
            Rectangle((head - 0.5 + across / 2, layer - 0.5 + up / 2), 1 - across, 1 - up) for layer, head in places
        ]
        measured = np.isfinite(values).ravel()
        colours = choose_heat(np.where(np.isfinite(values), values, vmin), vmin, vmax)
        axes.add_collection(
            PatchCollection(
                cells,
                facecolors=[colour if known else "none" for colour, known in zip(colours, measured, strict=True)],
                edgecolors=["none" if known else LIGHT["axis"] for known in measured],
                gid="heads",
                clip_on=False,
            )
        )
        picture.tooltips["heads"] = [
            name_of(*place)
            + (f" {column_labels[place[1]]!r}" if column_labels is not None and column_labels[place[1]] else "")
            + (f": {value:.3f}" if known else ": not measured")
            for place, value, known in zip(places, values.ravel().tolist(), measured, strict=True)
        ]
        for layer, head in top:
            axes.add_patch(
                Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, ec=LIGHT["outline"], lw=1.8, clip_on=False)
            )
        rows = sorted(names)
        for row, place in zip(rows, spread([float(row) for row in rows], 14 / cell), strict=True):
            axes.annotate(
                names[row],
                (n_heads - 0.5, row),
                (n_heads - 0.5 + 14 / cell_width, place),
                va="center_baseline",
                size=11,
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": LIGHT["axis"], "lw": 1, "shrinkA": 1, "shrinkB": 3},
            )
    return picture


def head_ranking(
    heads: Sequence[tuple[int, int]],
    values: Float[np.ndarray, "rank"],
    *,
    label: str,
    low: Float[np.ndarray, "rank"] | None = None,
    high: Float[np.ndarray, "rank"] | None = None,
    control: Float[np.ndarray, "rank"] | None = None,
    control_label: str = "the same head of an untrained model",
    title: str = "",
    limits: tuple[float, float] = (0.0, 1.0),
) -> Picture:
    """Heads in the order given, each with its interval and, as an open mark, its control."""
    if not heads or any(array is not None and len(array) != len(heads) for array in (values, low, high, control)):
        sizes = [None if array is None else len(array) for array in (values, low, high, control)]
        raise InputError(
            f"head_ranking was given {len(heads)} heads and values, low, high, control of sizes {sizes}; "
            "each array needs one number per head, and at least one head."
        )
    row_height, above = 21, 54 + (24 if title else 0)
    height = row_height * len(heads)
    described = ", ".join(f"{layer}.{head} {value:.2f}" for (layer, head), value in zip(heads, values, strict=True))
    against = "" if control is None else f" Control, {control_label}: at most {np.nanmax(control):.2f}."
    with style_context():
        picture = Picture(470, above + height + 42, alt=f"{label} of {len(heads)} heads: {described}.{against}")
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        axes = picture.add_box(44, above, 310, height)
        axes.set(xlim=limits, ylim=(len(heads) - 0.5, -0.5), xlabel=label)
        rows = np.arange(float(len(heads)))
        axes.set_yticks(rows, [f"{layer}.{head}" for layer, head in heads])
        axes.tick_params(axis="y", length=0, pad=8, labelcolor=LIGHT["ink"])
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        marks: list[tuple[str, Literal["measured", "control"]]] = [
            (label + (" with its 95% interval" if low is not None else ""), "measured")
        ]
        if control is not None:
            draw_marks(axes, control, rows, "control")
            marks.append((control_label, "control"))
        if low is not None and high is not None:
            axes.hlines(rows, low, high, color=LIGHT["accent"], lw=2.2)
        draw_marks(axes, values, rows, "measured")
        for row in range(len(heads)):
            text = f"{values[row]:.2f}"
            if low is not None and high is not None:
                text += f"  [{low[row]:.2f}, {high[row]:.2f}]"
            axes.annotate(text, (1, row), (12, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                          va="center_baseline", size=11)  # fmt: skip
        for index, (text, kind) in enumerate(marks):
            key = picture.add_box(0, above - 46 + 17 * index, 14, 14)
            key.set(xlim=(-1, 1), ylim=(-1, 1))
            key.set_axis_off()
            draw_marks(key, np.zeros(1), np.zeros(1), kind)
            picture.add_text(18, above - 45 + 17 * index, text, size=11, color=LIGHT["muted"])
    return picture


def _draw_scale(picture: Picture, top: float | int, label: str, least: str, most: str) -> None:
    picture.add_text(0, top, least, size=11, color=LIGHT["muted"])
    start = 8 + 6.6 * len(least)
    scale = picture.add_box(start, top + 2, 110, 9)
    scale.set(xlim=(0, LEVELS), ylim=(0, 1))
    scale.set_axis_off()
    strips = [Rectangle((level, 0), min(1.4, LEVELS - level), 1) for level in range(LEVELS)]
    scale.add_collection(PatchCollection(strips, facecolors=list(ramp()), edgecolors="none"))
    picture.add_text(start + 116, top, most, size=11, color=LIGHT["muted"])
    picture.add_text(start + 128 + 6.6 * len(most), top, label, size=11)


def _show(text: str) -> str:
    """A token as a label: no longer than a word, and visible where it is nothing but white space."""
    text = text.strip(" ").replace("\n", "⏎").replace("\t", "⇥") or "␣" * bool(text)
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _fit_below(below: list[list[str]], cell: int) -> tuple[int, bool, list[int]]:
    """Width of a column, whether texts below it read from left to right, and the height of each row of them."""
    if not below:
        return cell, True, []
    widest = [max(len(text) for text in row) for row in below]
    level = int(max(cell, 10 + _LETTER * max(widest)))
    if level * len(below[0]) <= _LONGEST_SIDE:
        return level, True, [16] * len(below)
    return max(cell, 14), False, [int(8 + _LETTER * length) for length in widest]


def _write_below(axes: Axes, below: list[list[str]], heights: list[int], *, upright: bool, start: int) -> None:
    """Rows of texts below the columns; where they don't fit side by side they read upwards, and end at the map."""
    for number, row in enumerate(below):
        options: dict[str, Any] = {"ha": "center", "va": "top"}
        if not upright:
            options = {"ha": "right", "va": "center_baseline", "rotation": 90, "rotation_mode": "anchor"}
        colour = LIGHT["ink"] if number == 0 else LIGHT["muted"]
        for column, text in enumerate(row):
            axes.annotate(text, (column, 0), (0, -start - sum(heights[:number])), xycoords=("data", "axes fraction"),
                          textcoords="offset points", size=11, color=colour, annotation_clip=False, **options)  # fmt: skip


def _choose_ticks(n: int, cell: int) -> list[int]:
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, n) if step * cell >= 30 or step >= n or n * cell < 270)
    return list(range(0, n, step))
