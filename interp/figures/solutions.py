"""Which solution a model found: accuracy after each cut, and what it answers on pairs that it was never trained on.

>>> frame = pd.DataFrame({"intervention": ["uncut", "cut"], "edges": ["", "serial"], "verdict": ["", "needed"],
...                       "accuracy": [1.0, 0.2], "low": [1.0, 0.1], "high": [1.0, 0.3], "n": [50, 50]})
>>> mechanism_picture(frame, {"serial": np.array([0.8, 0.9])}, {}).alt
'Accuracy after interventions. uncut 1.00; cut serial 0.20 (needed; random edges 0.85).'
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, draw_marks, style_context
from interp.statistics import bootstrap_interval

_ROW, _HEADING, _PLOT, _RIGHT = 22, 34, 260, 176
_HEADINGS: Mapping[str, str] = {
    "uncut": "",
    "cut": "cut",
    "kept alone": "kept alone",
    "other anchors": "state of other anchors: the answer follows them",
}
_MOST_DEVIATIONS = 6


def mechanism_picture(
    frame: pd.DataFrame,
    cut_control: Mapping[str, Float[np.ndarray, "draw"]],
    kept_control: Mapping[str, Float[np.ndarray, "draw"]],
    *,
    title: str = "",
) -> Picture:
    """A row for each of `Mechanism.to_frame()`: its accuracy with interval, its control draws, and the verdict."""
    controls = {"cut": cut_control, "kept alone": kept_control}
    rows = [(row, controls.get(str(row.intervention), {}).get(str(row.edges))) for row in frame.itertuples()]
    labels = [_label(row) for row, _ in rows]
    places, headings, bottom = _place(frame["intervention"].tolist())
    left, above = 16 + 6.4 * max(map(len, labels)), 48 + (26 if title else 0)
    with style_context():
        picture = Picture(left + _PLOT + _RIGHT, above + bottom + 44, alt=_describe(rows))
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        _draw_key(
            picture, above - 46, int(frame["n"].max()), max((len(c) for _, c in rows if c is not None), default=0)
        )
        axes = picture.add_box(left, above, _PLOT, bottom)
        axes.set(xlim=(0, 1), ylim=(bottom, 0), xlabel="accuracy", xticks=[0, 0.25, 0.5, 0.75, 1])
        axes.set_yticks(places, labels)
        axes.tick_params(axis="y", length=0, pad=10, labelcolor=LIGHT["ink"])
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        for top, heading in headings:
            picture.add_text(0, above + top, heading, size=11.5, weight="bold", color=LIGHT["muted"])
        for (row, control), place in zip(rows, places, strict=True):
            _draw_row(axes, row, control, place)
    return picture


def deviations_picture(histogram: Any, *, title: str = "", seed: int = 0) -> Picture:
    """The commonest answers of a `DeviationHistogram`, as bars with their 95% intervals and what each one means."""
    frame = histogram.to_frame().head(_MOST_DEVIATIONS).rename(columns={"count": "number"})
    if not len(frame):
        raise InputError("A histogram without any answer can't be drawn; give at least one sequence.")
    n_others = len(histogram.deviations) - len(frame)
    above, height = 52 + (26 if title else 0), 26 * len(frame)
    names = [name or "no pair's" for name in frame["name"]]
    alt = "Answers on held-out pairs, prediction minus key: " + ", ".join(
        f"{row.deviation:+d} {row.share:.2f} ({name})" for row, name in zip(frame.itertuples(), names, strict=True)
    )
    with style_context():
        picture = Picture(48 + 280 + 134 + 7 * max(map(len, names)), above + height + 44, alt=f"{alt}.")
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        picture.add_text(0, above - 46, f"prediction − key on held-out pairs, n = {histogram.n} sequences", size=11.5)
        more = f"and {n_others} rarer ones, {1 - frame['share'].sum():.2f} together" if n_others else "no others"
        picture.add_text(0, above - 28, f"bars: share, with its 95% interval; {more}", size=11, color=LIGHT["muted"])
        axes = picture.add_box(48, above, 280, height)
        axes.set(xlim=(0, 1), ylim=(len(frame) - 0.5, -0.5), xlabel="share of answers", xticks=[0, 0.25, 0.5, 0.75, 1])
        axes.set_yticks(range(len(frame)), [f"{deviation:+d}".replace("-", "−") for deviation in frame["deviation"]])
        axes.tick_params(axis="y", length=0, pad=8, labelcolor=LIGHT["ink"])
        axes.grid(axis="x")
        asked = [LIGHT["accent" if name.startswith("answers") else "control"] for name in names]
        axes.barh(range(len(frame)), frame["share"], height=0.56, color=asked, zorder=2)
        for place, (row, name) in enumerate(zip(frame.itertuples(), names, strict=True)):
            each = np.repeat([1.0, 0.0], [row.number, histogram.n - row.number])
            low, high = bootstrap_interval(each, seed=seed)
            axes.hlines(place, low, high, color=LIGHT["ink"], lw=1.6, zorder=3)
            _write(axes, place, f"{row.share:.2f}", f"[{low:.2f}, {high:.2f}]", name)
    return picture


def _place(kinds: Sequence[str]) -> tuple[list[float], list[tuple[float, str]], float]:
    """(the middle of each row, the top of each heading with its text, the height), in pixels from the top."""
    places, headings, at, last = [], [], 0.0, ""
    for kind in kinds:
        if kind != last and _HEADINGS.get(kind):
            headings.append((at + 12, _HEADINGS[kind]))
            at += _HEADING
        last = kind
        places.append(at + _ROW / 2)
        at += _ROW
    return places, headings, at


def _label(row: Any) -> str:
    if not row.edges:
        return "uncut"
    return f"{row.edges} circuit" if "→" not in row.edges and row.intervention == "cut" else row.edges


def _draw_row(axes: Axes, row: Any, control: Float[np.ndarray, "draw"] | None, place: float | int) -> None:
    if control is not None:
        scattered = place + 0.55 * _ROW * (np.arange(len(control)) * 0.618034 % 1 - 0.5)
        draw_marks(axes, control, scattered, "draw")
    axes.hlines(place, row.low, row.high, color=LIGHT["accent"], lw=2.2, zorder=2, clip_on=False)
    draw_marks(axes, np.array([row.accuracy]), np.array([place]), "measured")
    _write(axes, place, f"{row.accuracy:.2f}", f"[{row.low:.2f}, {row.high:.2f}]", row.verdict)


def _write(axes: Axes, place: float | int, number: str, interval: str, word: str) -> None:
    """Number, interval and a word, in columns right of the axes."""
    for across, text, colour, weight in (
        (12, number, "ink", "normal"),
        (44, interval, "muted", "normal"),
        (126, word, "accent" if word in ("needed", "sufficient") or word.startswith("answers") else "muted", "normal"),
    ):
        axes.annotate(text, (1, place), (across, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      size=11, va="center_baseline", color=LIGHT[colour], weight=weight)  # fmt: skip


def _draw_key(picture: Picture, top: float | int, n: int, n_draws: int) -> None:
    width, height = picture.get_size_inches() * 72
    axes = picture.add_box(0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.hlines(top + 8, 0, 16, color=LIGHT["accent"], lw=2.2)
    draw_marks(axes, np.array([8.0]), np.array([top + 8.0]), "measured")
    picture.add_text(24, top, f"measured on {n} sequences, with its 95% interval", size=11, color=LIGHT["muted"])
    draw_marks(axes, np.array([4.0, 12.0]), np.array([top + 23.0, top + 27.0]), "draw")
    told = f"one of {n_draws} draws of random edges: cut, they carry as much attention or all there is; kept, they are as many"
    picture.add_text(24, top + 17, told, size=11, color=LIGHT["muted"])


def _describe(rows: Sequence[tuple[Any, Float[np.ndarray, "draw"] | None]]) -> str:
    parts = []
    for row, control in rows:
        notes = [row.verdict] if row.verdict else []
        notes += [f"random edges {control.mean():.2f}"] if control is not None else []
        about = f" ({'; '.join(notes)})" if notes else ""
        parts.append(" ".join(f"{row.intervention} {row.edges}".split()) + f" {row.accuracy:.2f}{about}")
    return f"Accuracy after interventions. {'; '.join(parts)}."
