"""Several measures over training, side by side for several settings: a row a measure, every seed faint, their mean solid.

>>> measure = Measure(label="bracket F1", steps=np.array([0.0, 500]), seeds={"6 layers": np.array([[0.3, 0.6], [0.3, 0.8]])},
...                   controls={"right-branching": 0.5})
>>> measure_rows([measure]).alt
'Measures against training step, the mean of the seeds first and last. bracket F1 (right-branching 0.50): 6 layers 0.30 to 0.70.'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, spread, style_context

_LEFT, _WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 48, 180, 86, 24, 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Measure:
    """One measure in every setting."""

    label: str
    """Over its row."""
    steps: Int[np.ndarray, "point"] | Float[np.ndarray, "point"]
    """Training steps."""
    seeds: Mapping[str, Float[np.ndarray, "seed point"]]
    """By setting, a row a seed."""
    controls: Mapping[str, float] = field(default_factory=dict)
    """Heights by name that are the same in all settings, dashed."""


def measure_rows(measures: Sequence[Measure]) -> Picture:
    """A row a measure and a column a setting; each row has a scale of its own, which its settings share.

    Raises `InputError` without a measure or a setting, and for values of another number than steps.
    """
    settings = list(dict.fromkeys(name for one in measures for name in one.seeds))
    if not settings or any(v.shape[1] != len(one.steps) for one in measures for v in one.seeds.values()):
        raise InputError(
            f"measure_rows was given {len(measures)} measures of settings {settings}; give one or more of each, with a value "
            "for each step."
        )
    right = 16 + 6.4 * max((len(name) for one in measures for name in one.controls), default=0)
    width = _LEFT + len(settings) * _WIDTH + (len(settings) - 1) * _GAP_X + right
    with style_context():
        picture = Picture(max(width, 420), 30 + len(measures) * (_HEIGHT + _GAP_Y) + 22, alt=_describe(measures))
        for column, setting in enumerate(settings):
            picture.add_text(_LEFT + column * (_WIDTH + _GAP_X), 0, setting, size=12, weight="bold")
        for row, measure in enumerate(measures):
            top = 46 + row * (_HEIGHT + _GAP_Y)
            picture.add_text(_LEFT, top - 20, measure.label, size=11, color=LIGHT["muted"])
            limits = _choose_limits(measure)
            for column, setting in enumerate(settings):
                axes = picture.add_box(_LEFT + column * (_WIDTH + _GAP_X), top, _WIDTH, _HEIGHT)
                if setting not in measure.seeds:
                    axes.set_axis_off()
                    continue
                _draw_panel(axes, measure, setting, limits)
                axes.tick_params(axis="y", labelleft=column == 0)
                axes.tick_params(axis="x", labelbottom=row == len(measures) - 1)
                if column == len(settings) - 1:
                    _name_controls(axes, measure, limits)
                if row == len(measures) - 1:
                    axes.set_xlabel("training step")
    return picture


def _choose_limits(measure: Measure) -> tuple[float, float]:
    values = np.concatenate([*(v.ravel() for v in measure.seeds.values()), np.array([*measure.controls.values(), 0.0])])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = 0.06 * (high - low or 1.0)
    return low - (pad if low < 0 else 0.0), high + pad


def _draw_panel(axes: Axes, measure: Measure, setting: str, limits: tuple[float, float]) -> None:
    axes.set(xlim=(float(measure.steps[0]), float(measure.steps[-1]) or 1.0), ylim=limits)
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"))
    for height in measure.controls.values():
        axes.axhline(height, color=LIGHT["control"], lw=1.3, ls=(0, (4, 2.5)), zorder=1)
    for seed in measure.seeds[setting]:
        axes.plot(measure.steps, seed, color=LIGHT["accent"], lw=1, alpha=0.35, clip_on=False)
    axes.plot(measure.steps, measure.seeds[setting].mean(axis=0), color=LIGHT["accent"], lw=2.2, clip_on=False)


def _name_controls(axes: Axes, measure: Measure, limits: tuple[float, float]) -> None:
    pixel = (limits[1] - limits[0]) / _HEIGHT
    for (name, _), place in zip(
        measure.controls.items(),
        spread(list(measure.controls.values()), 13 * pixel, low=limits[0], high=limits[1]),
        strict=True,
    ):
        axes.annotate(name, (1, place), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", size=10,
                      va="center_baseline", color=LIGHT["muted"], annotation_clip=False)  # fmt: skip


def _describe(measures: Sequence[Measure]) -> str:
    told = []
    for one in measures:
        controls = ", ".join(f"{name} {height:.2f}" for name, height in one.controls.items())
        ends = "; ".join(
            f"{setting} {values[:, 0].mean():.2f} to {values[:, -1].mean():.2f}"
            for setting, values in one.seeds.items()
        )
        told.append(f"{one.label}{controls and f' ({controls})'}: {ends}")
    return f"Measures against training step, the mean of the seeds first and last. {'. '.join(told)}."
