"""A number of the weights against the scale of initialisation, a line a setting, beside random matrices.

>>> line = Transition(label="decay 0.01", x=np.array([0.4, 0.4, 0.8]), values=np.array([16.0, 17.0, 3.0]))
>>> transition([line], label="stable rank of W_Q", x_label="gamma", control=17.0, control_interval=(15.3, 18.7)).alt
'stable rank of W_Q against gamma (random 17.0). decay 0.01: 16.5 at 0.4, 3.0 at 0.8.'
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, spread, style_context

_COLOURS = ("accent", "second", "third", "fourth", "fifth", "sixth")
_LEFT, _PLOT, _HEIGHT = 54, 360, 190


@dataclass(frozen=True, kw_only=True, eq=False)
class Transition:
    """One line: a number for each model, models at the same place being seeds."""

    label: str
    """Its name, written at its end."""
    x: Float[np.ndarray, "model"]
    """Where each model stands."""
    values: Float[np.ndarray, "model"]
    """Its number."""


def transition(
    lines: Sequence[Transition], *, label: str, x_label: str, control: float, control_interval: tuple[float, float]
) -> Picture:
    """Dots are models, lines go through the mean of the seeds; dashed and shaded are random matrices of the same shape."""
    if (
        not lines
        or len(lines) > len(_COLOURS)
        or any(len(line.x) != len(line.values) or not len(line.x) for line in lines)
    ):
        raise InputError(
            f"transition was given {len(lines)} lines with sizes {[(len(line.x), len(line.values)) for line in lines]}; "
            f"give one to {len(_COLOURS)}, each with a place for each value."
        )
    means = [[(x, float(line.values[line.x == x].mean())) for x in np.unique(line.x)] for line in lines]
    told = "; ".join(
        f"{line.label}: {', '.join(f'{y:.1f} at {x:g}' for x, y in mean)}"
        for line, mean in zip(lines, means, strict=True)
    )
    margin = 24 + 6.6 * max(len("random"), *(len(line.label) for line in lines))
    top = 1.08 * max(control_interval[1], *(float(line.values.max()) for line in lines))
    every = np.unique(np.concatenate([line.x for line in lines]))
    with style_context():
        picture = Picture(
            _LEFT + _PLOT + margin, _HEIGHT + 58, alt=f"{label} against {x_label} (random {control:.1f}). {told}."
        )
        axes = picture.add_box(_LEFT, 8, _PLOT, _HEIGHT)
        pad = 0.04 * (every[-1] - every[0]) or 0.05
        axes.set(xlim=(every[0] - pad, every[-1] + pad), ylim=(0, top), xlabel=x_label, ylabel=label)
        axes.set_xticks(every, [f"{x:g}" for x in every])
        axes.grid(axis="y")
        axes.axhspan(*control_interval, color=LIGHT["grid"], lw=0, zorder=0)
        axes.axhline(control, color=LIGHT["control"], lw=1.4, ls=(0, (4, 2.5)), zorder=1)
        for line, mean, colour in zip(lines, means, _COLOURS, strict=False):
            axes.plot(*zip(*mean, strict=True), color=LIGHT[colour], lw=2, zorder=2)
            axes.plot(line.x, line.values, "o", ls="none", ms=4.5, color=LIGHT[colour], mew=0, alpha=0.75, zorder=3)
        ends = [(line.label, mean[-1][1], colour) for line, mean, colour in zip(lines, means, _COLOURS, strict=False)]
        ends.append(("random", control, "control"))
        places = spread([y for _, y, _ in ends], 15 * top / _HEIGHT, low=0.0, high=top)
        for (name, _, colour), place in zip(ends, places, strict=True):
            axes.annotate(
                name, (1, place), (8, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                va="center_baseline", size=11, color=LIGHT[colour], annotation_clip=False,
            )  # fmt: skip
    return picture
