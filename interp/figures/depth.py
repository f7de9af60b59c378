"""What depth does, with the seeds visible: a dot a model, their mean with its interval, and the share that ends high.

>>> at = [DepthSeeds(depth=6, finals=np.array([0.9, 1.0]), share=(1.0, 0.34, 1.0))]
>>> depth_curve(at, label="final generalisation", bound=0.8).alt
'final generalisation against the number of layers: 6 layers 0.95 over 2 seeds, 100% above 0.8.'
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context
from interp.statistics import bootstrap_interval

_LEFT, _WIDTH, _HEIGHT, _GAP = 46, 250, 160, 66


@dataclass(frozen=True, kw_only=True, eq=False)
class DepthSeeds:
    """The models of one depth."""

    depth: int
    """Layers."""
    finals: Float[np.ndarray, "seed"]
    """Where each ended, from 0 to 1."""
    share: tuple[float, float, float]
    """The share that ended above the bound: (value, low, high)."""


def depth_curve(depths: Sequence[DepthSeeds], *, label: str, bound: float) -> Picture:
    """On the left every model, and the mean with a bootstrap interval over seeds; on the right the share above `bound`.

    Raises `InputError` for no depth, or a depth without a model.
    """
    if not depths or any(len(one.finals) == 0 for one in depths):
        raise InputError(f"depth_curve was given {len(depths)} depths; give one or more, each with a model or more.")
    told = "; ".join(
        f"{one.depth} layers {one.finals.mean():.2f} over {len(one.finals)} seeds, {one.share[0]:.0%} above {bound:g}"
        for one in depths
    )
    with style_context():
        picture = Picture(
            _LEFT + 2 * _WIDTH + _GAP + 14, _HEIGHT + 62, alt=f"{label} against the number of layers: {told}."
        )
        left = picture.add_box(_LEFT, 12, _WIDTH, _HEIGHT)
        right = picture.add_box(_LEFT + _WIDTH + _GAP, 12, _WIDTH, _HEIGHT)
        for axes, name in ((left, label), (right, f"share of seeds above {bound:g}")):
            axes.set(xlim=(-0.6, len(depths) - 0.4), ylim=(0, 1), xlabel="layers", ylabel=name)
            axes.set_xticks(range(len(depths)), [str(one.depth) for one in depths])
            axes.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
            axes.grid(axis="y")
        left.axhline(bound, color=LIGHT["muted"], lw=1.1, ls=(0, (1, 2.2)), zorder=1)
        for x, one in enumerate(depths):
            aside = (
                x - 0.16 + 0.06 * (np.arange(len(one.finals)) - (len(one.finals) - 1) / 2) * min(1, 5 / len(one.finals))
            )
            left.plot(
                aside, one.finals, "o", ls="none", ms=5.5, color=LIGHT["accent"], alpha=0.55, mew=0, clip_on=False
            )
            mean = float(one.finals.mean())
            low, high = (mean, mean) if len(one.finals) == 1 else map(float, bootstrap_interval(one.finals))
            _draw_interval(left, x + 0.22, mean, low, high)
            _draw_interval(right, x, *one.share)
    return picture


def _draw_interval(axes: Axes, x: float | int, value: float, low: float, high: float) -> None:
    axes.plot([x, x], [low, high], color=LIGHT["accent"], lw=2.2, solid_capstyle="round", clip_on=False, zorder=3)
    axes.plot([x], [value], "o", ms=8, color=LIGHT["accent"], mew=0, clip_on=False, zorder=4)
