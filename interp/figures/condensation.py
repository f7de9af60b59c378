"""Cosines between neurons, sorted by group, beside a random matrix's: condensed directions are dark blocks.

White is at right angles or beyond, dark is the same direction; the frames are the groups of at least two neurons.

>>> cosines = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.0], [0.1, 0.0, 1.0]])
>>> picture = condensation_map(cosines, np.eye(3), groups=[2, 1], control_groups=[1, 1, 1], note="random: 3 on average")
>>> picture.alt
'Cosines between 3 neurons: 2 directions, the largest of 2 neurons; a random matrix of the same shape has 3.'
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from interp.errors import InputError
from interp.figures.colour import LEVELS, LIGHT, choose_heat, ramp
from interp.figures.style import Picture, style_context

_SIDE, _GAP, _ABOVE = 250, 46, 66
_MOST_CELLS = 64


def condensation_map(
    cosines: Float[np.ndarray, "neuron neuron"],
    control: Float[np.ndarray, "control control"],
    *,
    groups: Sequence[int],
    control_groups: Sequence[int],
    note: str = "",
    sign: Literal["signed", "absolute"] = "signed",
    threshold: float = 0.7,
    title: str = "",
) -> Picture:
    """Two squares of cosines in sorted order, the first `sum(groups)` neurons framed by group.

    More than 64 neurons are drawn as cells of several neurons, each with the mean of its cosines.
    """
    if cosines.size == 0 or sum(groups) > len(cosines) or sum(control_groups) > len(control):
        raise InputError(
            f"condensation_map was given cosines of shapes {cosines.shape} and {control.shape} for groups of "
            f"{sum(groups)} and {sum(control_groups)} neurons; it needs at least one neuron, and no more in groups."
        )
    n = len(cosines)
    alt = (
        f"Cosines between {n} neurons: {len(groups)} directions, the largest of {max(groups, default=0)} neurons; "
        f"a random matrix of the same shape has {len(control_groups)}."
    )
    above = _ABOVE + (24 if title else 0)
    with style_context():
        picture = Picture(2 * _SIDE + _GAP + 6, above + _SIDE + 34, alt=alt)
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        likeness = "|cosine|" if sign == "absolute" else "cosine"
        _draw_scale(picture, above - 64, likeness)
        squares = (
            ("input weights", cosines, groups, f"framed: groups at {likeness} > {threshold:g}"),
            ("random matrix of the same shape", control, control_groups, note),
        )
        for i, (heading, values, sizes, below) in enumerate(squares):
            left = 1 + i * (_SIDE + _GAP)
            picture.add_text(left, above - 36, heading, size=11.5)
            count = f"{len(sizes)} direction{'' if len(sizes) == 1 else 's'} among {len(values)} neurons"
            picture.add_text(left, above - 19, count, size=11, color=LIGHT["muted"])
            axes = picture.add_box(left, above, _SIDE, _SIDE)
            _draw_square(axes, np.abs(values) if sign == "absolute" else values)
            _frame_groups(axes, sizes, len(values))
            picture.add_text(left, above + _SIDE + 8, below, size=11, color=LIGHT["muted"])
    return picture


def _draw_square(axes: Axes, values: Float[np.ndarray, "neuron neuron"]) -> None:
    n = len(values)
    axes.set(xlim=(0, n), ylim=(n, 0))
    axes.set_axis_off()
    bounds = np.unique(np.linspace(0, n, min(n, _MOST_CELLS) + 1).round().astype(int))
    sizes = np.diff(bounds)
    sums = np.add.reduceat(np.add.reduceat(values, bounds[:-1], axis=0), bounds[:-1], axis=1)
    means = sums / np.outer(sizes, sizes)
    # Neighbours overlap by a hair: a renderer would leave seams between cells that only touch.
    hair = 0.4 * n / _SIDE
    cells = [
        Rectangle((left, top), min(width + hair, n - left), min(height + hair, n - top))
        for top, height in zip(bounds[:-1], sizes, strict=True)
        for left, width in zip(bounds[:-1], sizes, strict=True)
    ]
    axes.add_collection(PatchCollection(cells, facecolors=choose_heat(means, 0.0, 1.0), edgecolors="none"))


def _frame_groups(axes: Axes, sizes: Sequence[int], n: int) -> None:
    start = 0
    for size in sizes:
        if size > 1:
            axes.add_patch(
                Rectangle((start, start), size, size, fill=False, ec=LIGHT["outline"], lw=1.4, clip_on=False, zorder=3)
            )
        start += size
    axes.add_patch(Rectangle((0, 0), n, n, fill=False, ec=LIGHT["axis"], lw=1, clip_on=False, zorder=2))


def _draw_scale(picture: Picture, top: float | int, label: str) -> None:
    picture.add_text(1, top, "≤ 0" if label == "cosine" else "0", size=11, color=LIGHT["muted"])
    start = 34 if label == "cosine" else 16
    scale = picture.add_box(start, top + 2, 110, 9)
    scale.set(xlim=(0, LEVELS), ylim=(0, 1))
    scale.set_axis_off()
    strips = [Rectangle((level, 0), min(1.4, LEVELS - level), 1) for level in range(LEVELS)]
    scale.add_collection(PatchCollection(strips, facecolors=list(ramp()), edgecolors="none"))
    picture.add_text(start + 116, top, "1", size=11, color=LIGHT["muted"])
    picture.add_text(start + 136, top, label, size=11)
