"""The bridge against the rank: the error of copying and the loss on text, with the bridge removed and with nothing else kept.

Lines are the bridge with its interval over sequences; bars are controls, from the least to the largest draw, with their mean;
the dashed line is the untouched model.

>>> import interp
>>> from interp.bridge.sweep import sweep_bridge
>>> model = interp.build(n_layers=3, d_model=16, n_heads=4, d_vocab=40, n_ctx=32, attn_only=True)
>>> heads = [(1, 0), (2, 3)]
>>> sweep = sweep_bridge(model, induction_heads=heads, n_sequences=4, segment=8, n_draws=2, n_control_sequences=2)
>>> rank_sweep(sweep).alt.split(";")[0]
'Error of copying by rank, untouched 0.96'
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context
from interp.statistics import bootstrap_interval

if TYPE_CHECKING:
    from interp.bridge.result import BridgeRun, BridgeSweep
    from interp.interventions.project import Part

_LEFT, _WIDTH, _GAP, _UPPER, _LOWER, _BETWEEN, _KEY = 70, 280, 34, 210, 96, 22, 264
_TITLES = {"remove": "The bridge removed", "keep": "Only the bridge kept"}
_LINES = {"cross_fitted": "accent", "own": "second"}
_BARS = {
    "random": "control",
    "equal_energy_weights": "third",
    "equal_energy_stack": "fifth",
    "other_heads": "fourth",
}
_NEAREST_TICKS = 1.35


def rank_sweep(sweep: "BridgeSweep") -> Picture:
    """A column for each part: above the error, below the rise of the loss on text where it was measured."""
    parts: list[Part] = list(dict.fromkeys(run.part for run in sweep.runs))
    has_text = sweep.text_loss.size > 0
    width = _LEFT + len(parts) * _WIDTH + (len(parts) - 1) * _GAP
    height = 26 + _UPPER + (_BETWEEN + _LOWER if has_text else 0) + 46
    with style_context():
        picture = Picture(width + _KEY, height, alt=_describe(sweep, parts))
        for column, part in enumerate(parts):
            left = _LEFT + column * (_WIDTH + _GAP)
            picture.add_text(left, 3, _TITLES[part], size=12, weight="bold")
            upper = picture.add_box(left, 26, _WIDTH, _UPPER)
            _draw_error(upper, sweep, part)
            lowest = upper
            if has_text:
                lowest = picture.add_box(left, 26 + _UPPER + _BETWEEN, _WIDTH, _LOWER)
                _draw_text_loss(lowest, sweep, part)
            for axes in {upper, lowest}:
                _draw_ranks(axes, sweep, named=axes is lowest)
            if column == 0:
                upper.set_ylabel("error of copying")
                if has_text:
                    lowest.set_ylabel("rise of loss\non text (nats)")
        _draw_key(picture, width + 26, sweep)
    return picture


def _draw_error(axes: Axes, sweep: "BridgeSweep", part: "Part") -> None:
    axes.set_ylim(0, 1)
    axes.axhline(float(sweep.error.mean()), color=LIGHT["axis"], lw=1.2, ls=(0, (4, 2.5)))
    fits = [fit for fit in _BARS if _runs(sweep, fit, part)]
    for index, fit in enumerate(fits):
        colour = LIGHT[_BARS[fit]]
        for rank in sweep.control_ranks:
            errors = np.array([run.error.mean() for run in _runs(sweep, fit, part) if run.rank == rank])
            x = rank * 1.09 ** (index - (len(fits) - 1) / 2)  # side by side
            axes.vlines(x, errors.min(), errors.max(), color=colour, lw=2.4, alpha=0.55, clip_on=False)
            axes.plot([x], [errors.mean()], "o", ms=4.5, mfc="white", mec=colour, mew=1.5, clip_on=False, zorder=4)
    for fit in reversed(_LINES):
        runs = _runs(sweep, fit, part)
        if runs:
            _draw_line(axes, runs, np.stack([run.error for run in runs]), sweep)


def _draw_text_loss(axes: Axes, sweep: "BridgeSweep", part: "Part") -> None:
    axes.axhline(0, color=LIGHT["axis"], lw=1.2, ls=(0, (4, 2.5)))
    rises = {run: run.text_loss - sweep.text_loss for run in sweep.runs if run.text_loss.size}
    runs = _runs(sweep, sweep.headline, part)
    _draw_line(axes, runs, np.stack([rises[run] for run in runs]), sweep)
    room = max(0.2, *(float(rise.mean()) for rise in rises.values()))
    axes.set_ylim(-0.15 * room, 1.2 * room)  # the same for both parts
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _draw_line(
    axes: Axes, runs: "list[BridgeRun]", values: Float[np.ndarray, "rank sample"], sweep: "BridgeSweep"
) -> None:
    ranks, fit = [run.rank for run in runs], runs[0].fit
    colour = LIGHT[_LINES[fit]]
    if fit == sweep.headline:
        low, high = bootstrap_interval(values.T, seed=sweep.seed)
        axes.fill_between(ranks, low, high, color=colour, alpha=0.16, lw=0)
    axes.plot(ranks, values.mean(1), color=colour, lw=2 if fit == sweep.headline else 1.4, zorder=3)
    axes.plot(ranks, values.mean(1), "o", ls="none", ms=4.5, color=colour, clip_on=False, zorder=5)


def _draw_ranks(axes: Axes, sweep: "BridgeSweep", *, named: bool) -> None:
    axes.set_xscale("log")
    axes.set_xlim(sweep.ranks[0] * 0.8, sweep.ranks[-1] * 1.15)
    axes.grid(axis="y")
    shown: list[int] = []
    for rank in reversed(sweep.ranks):  # the largest is the cap, and must be named
        if not shown or shown[-1] / rank > _NEAREST_TICKS:
            shown.append(rank)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rank, _: f"{rank:.0f}"))
    axes.tick_params(axis="x", labelbottom=named)
    if named:
        axes.set_xlabel("rank (log scale)")


def _draw_key(picture: Picture, left: float | int, sweep: "BridgeSweep") -> None:
    from interp.bridge.contrast import NAMES

    present = dict.fromkeys(run.fit for run in sweep.runs)
    for row, fit in enumerate([fit for fit in (*_LINES, *_BARS) if fit in present]):
        top = 32 + 24 * row
        mark = picture.add_box(left, top, 26, 14)
        mark.set(xlim=(0, 1), ylim=(-1, 1))
        mark.set_axis_off()
        if fit in _LINES:
            mark.axhline(0, color=LIGHT[_LINES[fit]], lw=2)
            mark.plot([0.5], [0], "o", ms=4.5, color=LIGHT[_LINES[fit]])
        else:
            mark.vlines(0.5, -1, 1, color=LIGHT[_BARS[fit]], lw=2.4, alpha=0.55)
            mark.plot([0.5], [0], "o", ms=4.5, mfc="white", mec=LIGHT[_BARS[fit]], mew=1.5)
        picture.add_text(left + 34, top, NAMES[fit], size=11, color=LIGHT["ink"])
    top = 32 + 24 * len(present)
    mark = picture.add_box(left, top, 26, 14)
    mark.set(xlim=(0, 1), ylim=(-1, 1))
    mark.set_axis_off()
    mark.axhline(0, color=LIGHT["axis"], lw=1.2, ls=(0, (4, 2.5)))
    picture.add_text(left + 34, top, "untouched model", size=11, color=LIGHT["ink"])
    n_draws = max(run.draw for run in sweep.runs) + 1
    spread_over = "one draw" if n_draws == 1 else f"least to largest of {n_draws} draws"
    picture.add_text(left, top + 30, f"bars: {spread_over}", size=10.5, color=LIGHT["muted"])


def _runs(sweep: "BridgeSweep", fit: str, part: "Part") -> "list[BridgeRun]":
    return [run for run in sweep.runs if run.fit == fit and run.part == part]


def _describe(sweep: "BridgeSweep", parts: "list[Part]") -> str:
    from interp.bridge.contrast import NAMES

    said = [f"Error of copying by rank, untouched {sweep.error.mean():.2f}"]
    for part in parts:
        for fit in (*_LINES, *_BARS):
            runs = _runs(sweep, fit, part)
            by_rank = dict.fromkeys(run.rank for run in runs)
            values = [
                f"{np.mean([run.error.mean() for run in runs if run.rank == rank]):.2f} at {rank}" for rank in by_rank
            ]
            if values:
                said.append(f"{_TITLES[part].lower()}, {NAMES[runs[0].fit]}: {', '.join(values)}")
    return f"{'; '.join(said)}."
