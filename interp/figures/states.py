"""States in the plane, a panel for each place in the model: colour is the first anchor of a sequence, shape the second.

>>> plane = np.array([[0.0, 0.0], [1.0, 1.0]])
>>> states_picture({"after layer 0": plane}, np.array([[1, 2], [2, 1]]), notes={"after layer 0": "2 components"}).alt
'States of 2 sequences in the plane, after layer 0: colour is the first anchor (1, 2), shape the second.'
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context

_COLOURS = ("accent", "second", "fourth", "third", "fifth", "sixth")
_SHAPES = ("o", "^", "s", "D", "v", "P")
_SIDE, _GAP, _ABOVE = 216, 26, 92


def states_picture(
    planes: Mapping[str, Float[np.ndarray, "state 2"]],
    pairs: Int[np.ndarray, "state 2"],
    *,
    notes: Mapping[str, str],
    title: str = "",
) -> Picture:
    """A square for each entry of `planes`, with its note below; each is scaled by itself, both axes alike."""
    anchors = [int(anchor) for anchor in np.unique(pairs)]
    if not planes or any(len(plane) != len(pairs) for plane in planes.values()) or len(anchors) > len(_SHAPES):
        raise InputError(
            f"states_picture was given {[len(plane) for plane in planes.values()]} states with {len(pairs)} pairs of "
            f"{len(anchors)} anchors; give a pair for each state, and at most {len(_SHAPES)} anchors."
        )
    colours = dict(zip(anchors, _COLOURS, strict=False))
    shapes = dict(zip(anchors, _SHAPES, strict=False))
    alt = (
        f"States of {len(pairs)} sequences in the plane, {', '.join(planes)}: colour is the first anchor "
        f"({', '.join(map(str, anchors))}), shape the second."
    )
    above = _ABOVE - (0 if title else 26)
    with style_context():
        width = max(len(planes) * _SIDE + (len(planes) - 1) * _GAP, 380)
        picture = Picture(width + 2, above + _SIDE + 30, alt=alt)
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        _draw_key(picture, above - 62, colours, shapes, len(pairs))
        for i, (where, plane) in enumerate(planes.items()):
            left = 1 + i * (_SIDE + _GAP)
            picture.add_text(left, above - 20, where, size=11.5, weight="bold")
            axes = picture.add_box(left, above, _SIDE, _SIDE)
            _draw_plane(axes, plane, pairs, colours, shapes)
            picture.add_text(left, above + _SIDE + 8, notes.get(where, ""), size=11, color=LIGHT["muted"])
    return picture


def _draw_plane(
    axes: Axes,
    plane: Float[np.ndarray, "state 2"],
    pairs: Int[np.ndarray, "state 2"],
    colours: Mapping[int, str],
    shapes: Mapping[int, str],
) -> None:
    middle = (plane.min(axis=0) + plane.max(axis=0)) / 2
    reach = max(float(np.ptp(plane, axis=0).max()) / 2, np.finfo(float).tiny) * 1.06
    axes.set(xlim=(middle[0] - reach, middle[0] + reach), ylim=(middle[1] - reach, middle[1] + reach))
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color=LIGHT["grid"])
    for first, colour in colours.items():
        for second, shape in shapes.items():
            here = (pairs == (first, second)).all(axis=1)
            _mark(axes, plane[here, 0], plane[here, 1], colour, shape)


def _mark(
    axes: Axes, x: Float[np.ndarray, "mark"], y: Float[np.ndarray, "mark"], colour: str, shape: str, size: float = 4.6
) -> None:
    axes.plot(x, y, shape, ls="none", ms=size, mfc=LIGHT[colour], mec="none", alpha=0.6)


def _draw_key(
    picture: Picture, top: float | int, colours: Mapping[int, str], shapes: Mapping[int, str], n: int
) -> None:
    width, height = picture.get_size_inches() * 72
    axes = picture.add_box(0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    at = 0.0
    for word, marks in (
        ("first anchor", [(anchor, colour, "o") for anchor, colour in colours.items()]),
        ("second", [(anchor, "muted", shape) for anchor, shape in shapes.items()]),
    ):
        picture.add_text(at, top, word, size=11, color=LIGHT["muted"])
        at += 6.8 * len(word) + 10
        for anchor, colour, shape in marks:
            axes.plot([at], [top + 6.5], shape, ls="none", ms=6.5, mfc=LIGHT[colour], mec="none")
            picture.add_text(at + 7, top, str(anchor), size=11)
            at += 18 + 7 * len(str(anchor))
        at += 12
    picture.add_text(at, top, f"n = {n}", size=11, color=LIGHT["muted"])
