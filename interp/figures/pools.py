"""From memory to rule: errors on what is in the training pool and on what isn't, against the size of the pool.

>>> pools = [Pool(size=10, inside=0.1, outside=0.9), Pool(size=None, inside=0.05, outside=0.04)]
>>> pool_diagram(pools).alt
'Error by pool of segments. 10: in the pool 0.10, outside 0.90; no pool: in the pool 0.05, outside 0.04.'
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, spread, style_context

_LEFT, _STEP, _HEIGHT = 54, 62, 190
_LINES = {"inside": ("in the pool", "accent"), "outside": ("outside, longer", "second")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """One model."""

    size: int | None
    """Segments in its pool; None where each is new."""
    inside: float
    """Its error on segments like the training ones."""
    outside: float
    """Its error on others."""


def pool_diagram(pools: Sequence[Pool]) -> Picture:
    """A place for each size, smallest first and no pool last; dots are models, lines go through their means."""
    if not pools:
        raise InputError("pool_diagram was given no model; give at least one.")
    sizes = sorted({pool.size for pool in pools}, key=lambda size: np.inf if size is None else size)
    names = ["no pool" if size is None else f"{size:,}" for size in sizes]
    means = {
        line: [float(np.mean([getattr(pool, line) for pool in pools if pool.size == size])) for size in sizes]
        for line in _LINES
    }
    told = "; ".join(
        f"{name}: in the pool {means['inside'][i]:.2f}, outside {means['outside'][i]:.2f}"
        for i, name in enumerate(names)
    )
    plot = _STEP * len(sizes)
    with style_context():
        picture = Picture(_LEFT + plot + 122, _HEIGHT + 60, alt=f"Error by pool of segments. {told}.")
        axes = picture.add_box(_LEFT, 8, plot, _HEIGHT)
        axes.set(xlim=(-0.5, len(sizes) - 0.5), ylim=(0, 1), xticks=range(len(sizes)), yticks=(0, 0.5, 1))
        axes.set_xticklabels(names)
        axes.grid(axis="y")
        axes.set_ylabel("error")
        axes.set_xlabel("segments in the pool")
        for line, (_, colour) in _LINES.items():
            x = [sizes.index(pool.size) for pool in pools]
            axes.plot(range(len(sizes)), means[line], color=LIGHT[colour], lw=2, clip_on=False)
            axes.plot(x, [getattr(pool, line) for pool in pools], "o", ls="none", ms=5, mfc=LIGHT[colour], mec="none",
                      alpha=0.55, clip_on=False)  # fmt: skip
        ends = spread([means[line][-1] for line in _LINES], 15 / _HEIGHT, low=5 / _HEIGHT, high=1.0)
        for (name, colour), place in zip(_LINES.values(), ends, strict=True):
            axes.annotate(name, (1, place), (8, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                          va="center_baseline", size=11, color=LIGHT[colour], annotation_clip=False)  # fmt: skip
    return picture
