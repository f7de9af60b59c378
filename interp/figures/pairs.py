"""Which layers compose: the largest score of each two layers, above the diagonal what can happen, below it the null.

A row is the layer that reads, the first at the bottom, a column the layer that writes. Above the diagonal the writer
comes first; below it are the same layers with the roles exchanged, which can't compose and show what a score is worth.

>>> largest = np.array([[np.nan, 0.2], [3.1, np.nan]])
>>> picture = pair_map(largest, layers=[0, 1], names=["1.0 ← 0.1"], cells=[(1, 0)], scores=np.array([3.1]),
...                    q_values=np.array([0.02]), label="largest Z", sign="Z")
>>> picture.alt.split(". ")[0]
'Map of largest Z over 2 reading and 2 writing layers: at most 3.10 with the writer first, 0.20 with roles exchanged'
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from interp.errors import InputError
from interp.figures.colour import LEVELS, LIGHT, choose_heat, ramp
from interp.figures.style import Picture, style_context

_SIDE, _ROW, _GAP = 300, 19, 34


def pair_map(
    largest: Float[np.ndarray, "layer layer"],
    *,
    layers: Sequence[int],
    names: Sequence[str],
    cells: Sequence[tuple[int, int]],
    scores: Float[np.ndarray, "pair"],
    q_values: Float[np.ndarray, "pair"],
    label: str,
    sign: str,
    title: str = "",
) -> Picture:
    """The map [reader layer, writer layer], NaN an empty cell; `cells` (row, column) of the listed pairs are outlined.

    `q_values` that are NaN are left out of the list.
    """
    n = len(layers)
    if largest.shape != (n, n) or not len(names) == len(cells) == len(scores) == len(q_values):
        raise InputError(
            f"pair_map was given a map of shape {largest.shape} for {n} layers, and {len(names)} names, {len(cells)} cells, "
            f"{len(scores)} scores and {len(q_values)} q-values; each pair needs one of each."
        )
    most = max(float(np.nanmax(largest)), float(np.finfo(np.float32).tiny))
    causal, mirrored = (_largest(largest[part]) for part in (np.tril_indices(n, -1), np.triu_indices(n, 1)))
    listed = ", ".join(f"{name} {score:.2f}" for name, score in zip(names, scores, strict=True))
    alt = (
        f"Map of {label} over {n} reading and {n} writing layers: at most {causal} with the writer first, "
        f"{mirrored} with roles exchanged. Strongest pairs: {listed}."
    )
    cell = max(6, min(60, _SIDE // n))
    side, above = cell * n, 52 + (26 if title else 0)
    known = bool(np.isfinite(q_values).any())
    left = 44 + side + _GAP
    score_width = 20 + max(36, int(6.6 * len(sign)))
    height = above + max(side + 46, _ROW * (len(names) + 1))
    with style_context():
        picture = Picture(max(left + 116 + score_width + 40 * known, 20 + 7.4 * len(title)), height, alt=alt)
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        _draw_scale(picture, above - 46, label, f"{most:.2g}")
        note = "above the diagonal the writer comes first" + (
            "; below: mirrors, the null" if mirrored != "nothing" else ""
        )
        picture.add_text(0, above - 22, note, size=11, color=LIGHT["muted"])
        axes = picture.add_box(44, above, side, side)
        places = _draw_cells(axes, largest, most, cell)
        picture.tooltips["pairs"] = [
            f"layer {layers[row]} reads layer {layers[column]}: {largest[row, column]:.3f}" for row, column in places
        ]
        step = next(step for step in (1, 2, 5, 10, 20, n) if step * cell >= 26 or step >= n)
        ticks = list(range(0, n, step))
        for set_ticks in (axes.set_xticks, axes.set_yticks):
            set_ticks(ticks, [str(layers[i]) for i in ticks])
        axes.set(xlabel="layer that writes", ylabel="layer that reads")
        for row, column in dict.fromkeys(cells):
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=LIGHT["outline"], lw=1.6, clip_on=False)
            )
        columns = [(0, "reader ← writer", list(names)), (116, sign, [f"{score:.2f}" for score in scores])]
        if known:
            columns.append((116 + score_width, "q", [_show(q) for q in q_values]))
        for offset, heading, texts in columns:
            picture.add_text(left + offset, above, heading, size=11, color=LIGHT["muted"])
            for i, text in enumerate(texts):
                picture.add_text(left + offset, above + _ROW * (i + 1), text, size=11.5)
    return picture


def _draw_cells(axes: Axes, largest: Float[np.ndarray, "layer layer"], most: float, cell: int) -> list[tuple[int, int]]:
    """Draws the cells that have a value, and says which."""
    n = len(largest)
    axes.set(xlim=(-0.5, n - 0.5), ylim=(-0.5, n - 0.5))
    axes.tick_params(length=0, pad=4)
    axes.spines[:].set_visible(False)
    gap = (2 if cell > 10 else 1) / cell
    places = [(row, column) for row in range(n) for column in range(n) if np.isfinite(largest[row, column])]
    squares = [Rectangle((column - 0.5 + gap / 2, row - 0.5 + gap / 2), 1 - gap, 1 - gap) for row, column in places]
    colours = choose_heat(np.array([largest[place] for place in places]), 0.0, most)
    axes.add_collection(PatchCollection(squares, facecolors=colours, edgecolors="none", gid="pairs", clip_on=False))
    axes.plot([-0.5, n - 0.5], [-0.5, n - 0.5], color=LIGHT["axis"], lw=1, clip_on=False)
    return places


def _draw_scale(picture: Picture, top: float | int, label: str, most: str) -> None:
    picture.add_text(0, top, "≤ 0", size=11, color=LIGHT["muted"])
    scale = picture.add_box(26, top + 2, 110, 9)
    scale.set(xlim=(0, LEVELS), ylim=(0, 1))
    scale.set_axis_off()
    strips = [Rectangle((level, 0), min(1.4, LEVELS - level), 1) for level in range(LEVELS)]
    scale.add_collection(PatchCollection(strips, facecolors=list(ramp()), edgecolors="none"))
    picture.add_text(142, top, most, size=11, color=LIGHT["muted"])
    picture.add_text(154 + 6.6 * len(most), top, label, size=11)


def _largest(values: Float[np.ndarray, "some"]) -> str:
    values = values[np.isfinite(values)]
    return f"{values.max():.2f}" if values.size else "nothing"


def _show(q_value: float) -> str:
    if np.isnan(q_value):
        return ""
    return f"{q_value:.2f}" if q_value >= 0.005 else f"{q_value:.0e}"
