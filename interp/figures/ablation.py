"""What removing chosen heads does, against removing others: the untouched model, the chosen heads, every random draw.

The control is the cloud: each dot is one draw of as many random heads from the same layers, the bar its interval.

>>> loss = Effect(name="loss on the second copy", unit="nats per token", untouched=0.03, removed=5.2,
...               removed_interval=(4.9, 5.5), random=np.array([0.03, 0.05, 0.04]), random_interval=(0.03, 0.05))
>>> ablation([loss], removed_label="chosen removed", random_label="random removed").alt
'loss on the second copy (nats per token): untouched 0.03, chosen removed 5.20, random removed 0.04 (3 draws).'
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, draw_marks, style_context

_ROW, _LEFT, _PLOT, _RIGHT = 34, 150, 280, 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """One metric under the three conditions."""

    name: str
    """What is measured, such as "loss on the second copy"."""
    untouched: float
    """Its value in the untouched model."""
    removed: float
    """Its value with the chosen heads removed."""
    random: Float[np.ndarray, "draw"]
    """Its value with random heads removed instead, one number a draw."""
    removed_interval: tuple[float, float] | None = None
    """95% interval of `removed`."""
    random_interval: tuple[float, float] | None = None
    """95% interval over the draws."""
    unit: str = ""
    """Unit of the metric; empty for a ratio."""
    limits: tuple[float, float] | None = None
    """Range of the axis; from 0 to a little above the largest value where not given."""


def ablation(
    effects: Sequence[Effect],
    *,
    removed_label: str = "chosen heads removed",
    random_label: str = "random heads removed",
    title: str = "",
) -> Picture:
    """A panel for each metric, with a row for each condition."""
    if not effects or any(effect.random.size == 0 for effect in effects):
        raise InputError(
            f"ablation was given {len(effects)} effects with {[effect.random.size for effect in effects]} draws; it "
            "needs at least one effect and at least one random draw in each: without its control a drop says nothing."
        )
    labels = ("untouched model", removed_label, random_label)
    left = max(_LEFT, 12 + 6.2 * max(map(len, labels)))
    above = 26 if title else 2
    panel = 24 + 3 * _ROW + 40
    with style_context():
        picture = Picture(left + _PLOT + _RIGHT, above + panel * len(effects), alt=_describe(effects, labels))
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        for index, effect in enumerate(effects):
            axes = picture.add_box(left, above + index * panel + 24, _PLOT, 3 * _ROW)
            _draw_effect(axes, effect, labels)
            heading = f"{effect.name} ({effect.unit})" if effect.unit else effect.name
            picture.add_text(left, above + index * panel + 3, heading, size=11)
    return picture


def _draw_effect(axes: Axes, effect: Effect, labels: tuple[str, str, str]) -> None:
    drawn = float(effect.random.mean())
    ends = [*(effect.removed_interval or ()), *(effect.random_interval or ()), effect.untouched, effect.removed]
    ends += [float(effect.random.min()), float(effect.random.max())]
    span = max(ends) - min(*ends, 0)
    axes.set_xlim(effect.limits or (min(*ends, 0), max(ends) + 0.04 * span if span else 1.0))
    axes.set_ylim(2.5, -0.5)
    axes.set_yticks([0, 1, 2], labels)
    axes.tick_params(axis="y", length=0, pad=10, labelcolor=LIGHT["ink"])
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.axvline(effect.untouched, color=LIGHT["axis"], lw=1, ls=(0, (2, 3)))

    draw_marks(axes, np.array([effect.untouched]), np.zeros(1), "control")
    if effect.removed_interval:
        axes.hlines(1, *effect.removed_interval, color=LIGHT["accent"], lw=2.2)
    draw_marks(axes, np.array([effect.removed]), np.ones(1), "measured")
    draw_marks(axes, effect.random, 1.96 + _scatter(effect.random.size), "draw")
    if effect.random_interval:
        axes.hlines(2.38, *effect.random_interval, color=LIGHT["control"], lw=2.2, clip_on=False)
    axes.plot([drawn], [2.38], "|", ms=8, mew=2.2, color=LIGHT["control"], clip_on=False)

    numbers = (
        (effect.untouched, None, ""),
        (effect.removed, effect.removed_interval, ""),
        (drawn, effect.random_interval, _count_draws(effect)),
    )
    for row, (value, interval, note) in enumerate(numbers):
        lines = f"{value:.2f}" + (f"  [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
        for line, text, colour in ((0, lines, "ink"), (1, note, "muted")):
            axes.annotate(text, (1, row), (14, -13 * line), xycoords=("axes fraction", "data"), size=11,
                          textcoords="offset points", va="center_baseline", color=LIGHT[colour])  # fmt: skip


def _count_draws(effect: Effect) -> str:
    return f"{effect.random.size} draw" + ("s" if effect.random.size > 1 else "")


def _scatter(n: int) -> Float[np.ndarray, "draw"]:
    """Small vertical offsets for dots that would hide each other: evenly spread, and the same every time."""
    return (np.arange(n) * 0.618034 % 1 - 0.5) * 0.36


def _describe(effects: Sequence[Effect], labels: tuple[str, str, str]) -> str:
    parts = []
    for effect in effects:
        unit = f" ({effect.unit})" if effect.unit else ""
        parts.append(
            f"{effect.name}{unit}: untouched {effect.untouched:.2f}, {labels[1]} {effect.removed:.2f}, "
            f"{labels[2]} {effect.random.mean():.2f} ({_count_draws(effect)})."
        )
    return " ".join(parts)
