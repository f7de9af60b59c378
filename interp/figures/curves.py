"""How a model learns: error against training step, beside the same for its control, with the attention that goes along.

Solid lines are the model, dashed lines the control (a model of one layer, say, which cannot form an induction head).

>>> steps = np.array([100, 1000, 5000])
>>> curves = [Curve(label="two layers", steps=steps, values=np.array([1.0, 0.9, 0.02]), series=1),
...           Curve(label="one layer", steps=steps, values=np.array([1.0, 0.97, 0.95]), series=1, control=True)]
>>> learning_curves(curves, label="out-of-distribution error").alt
'out-of-distribution error against training step: two layers from 1.00 to 0.02; one layer (control) from 1.00 to 0.95.'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, spread, style_context

_SERIES = ("accent", "second", "third")
_LEFT, _PLOT, _UPPER, _LOWER = 54, 400, 210, 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A line: one number at each of some training steps."""

    label: str
    """Its name, written at its end."""
    steps: Int[np.ndarray, "point"] | Float[np.ndarray, "point"]
    """Training steps, in increasing order."""
    values: Float[np.ndarray, "point"]
    """The number at each step."""
    series: int = 0
    """Which colour: 0, 1 or 2. A curve and its control share one."""
    control: bool = False
    """Drawn dashed: the same measurement on the control."""


def learning_curves(
    curves: Sequence[Curve],
    *,
    label: str = "error",
    attention: Sequence[Curve] = (),
    attention_label: str = "attention score",
    marked_steps: tuple[int, int] | None = None,
    step_axis: Literal["log", "linear"] = "log",
    limits: tuple[float, float] = (0.0, 1.0),
    title: str = "",
) -> Picture:
    """Curves against training step, with a second panel for `attention` and a shaded span for the transition.

    On a log axis step 0 is left out.
    """
    for curve in (*curves, *attention):
        if len(curve.steps) != len(curve.values) or len(curve.steps) == 0:
            raise InputError(
                f"Curve {curve.label!r} has {len(curve.steps)} steps and {len(curve.values)} values; "
                "give one value for each step, and at least one."
            )
    if not curves:
        raise InputError("learning_curves was given no curve; give at least one.")
    above = 28 if title else 8
    lower = _LOWER + 26 if attention else 0
    margin = 20 + 6.4 * max(len(_name(curve)) for curve in (*curves, *attention))
    ends = "; ".join(
        f"{curve.label}{' (control)' if curve.control else ''} from {curve.values[0]:.2f} to {curve.values[-1]:.2f}"
        for curve in (*curves, *attention)
    )
    with style_context():
        picture = Picture(
            _LEFT + _PLOT + margin, above + _UPPER + lower + 46, alt=f"{label} against training step: {ends}."
        )
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        panels = [(picture.add_box(_LEFT, above, _PLOT, _UPPER), curves, label, limits)]
        if attention:
            box = picture.add_box(_LEFT, above + _UPPER + 26, _PLOT, _LOWER)
            panels.append((box, attention, attention_label, (0.0, 1.0)))
        steps = np.concatenate([curve.steps for curve in (*curves, *attention)])
        for axes, drawn, name, between in panels:
            _draw_panel(axes, drawn, name, between, step_axis, steps, marked_steps)
            axes.tick_params(axis="x", labelbottom=axes is panels[-1][0])
        panels[-1][0].set_xlabel("training step" + (" (log scale)" if step_axis == "log" else ""))
    return picture


def _draw_panel(
    axes: Axes,
    curves: Sequence[Curve],
    label: str,
    limits: tuple[float, float],
    step_axis: Literal["log", "linear"],
    steps: np.ndarray,
    marked_steps: tuple[int, int] | None,
) -> None:
    positive = steps[steps > 0] if step_axis == "log" else steps
    if positive.size == 0:
        raise InputError("Every curve has only step 0, which a log axis cannot show; use step_axis='linear'.")
    first, last = float(positive.min()), float(positive.max())
    axes.set_xscale(step_axis)
    axes.set_xlim((first, last) if first < last else (first * 0.9, first * 1.1 + 1))
    axes.set_ylim(limits)
    axes.set_ylabel(label)
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if step_axis == "log":
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if last / first < 200 else (1.0,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    if marked_steps:
        axes.axvspan(*marked_steps, color=LIGHT["grid"], lw=0, zorder=0)
    pixels = axes.bbox.height / axes.figure.dpi * 72 / (limits[1] - limits[0])
    ends = []
    for curve in curves:
        shown = curve.steps > 0 if step_axis == "log" else np.ones(len(curve.steps), dtype=bool)
        colour = LIGHT[_SERIES[curve.series % len(_SERIES)]]
        axes.plot(curve.steps[shown], curve.values[shown], color=colour, ls=(0, (4, 2.5)) if curve.control else "-",
                  lw=1.5 if curve.control else 2, clip_on=False)  # fmt: skip
        ends.append(float(np.clip(curve.values[-1], *limits)))
    for curve, place in zip(curves, spread(ends, 15 / pixels, low=limits[0] + 5 / pixels, high=limits[1]), strict=True):
        axes.annotate(_name(curve), (1, place), (8, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      va="center_baseline", size=11, color=LIGHT[_SERIES[curve.series % len(_SERIES)]],
                      annotation_clip=False)  # fmt: skip


def _name(curve: Curve) -> str:
    return f"{curve.label} (control)" if curve.control else curve.label
