"""Which solution is found where: a cell for each setting, its colour the commonest one, its shade the share of seeds.

A ring stands for each seed, in the colour of what that seed found, and the letter in it says by which mechanism. Where
several solutions are equally common the cell is divided among them.

>>> found = {("0.01", "0.4"): [Seed(kind="symmetric", letter="S")], ("0.01", "0.8"): [Seed(kind="reasoning", letter="P")]}
>>> phase_diagram(found, kinds=("reasoning", "symmetric"), x_label="gamma", y_label="weight decay").alt
'By gamma and weight decay. 0.01: 0.4 symmetric 1 of 1; 0.8 reasoning 1 of 1.'
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Circle, Rectangle

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context

_COLOURS = ("accent", "second", "third", "control", "fourth", "fifth")
_WIDTH, _HEIGHT, _MOST_RINGS, _RING = 104, 64, 5, 8.5
_FAINT, _FULL = 0.10, 0.42
"""Opacity of a cell in which no seed, and in which every seed, found the solution."""
_TINT = 0.06
"""Opacity inside a ring."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seed:
    """What one seed found."""

    kind: str
    """The solution, one of the diagram's kinds."""
    letter: str = ""
    """Written into its ring."""
    name: str = ""
    """What the ring says under the pointer."""
    link: str = ""
    """Where the ring leads when it's pressed; empty for nowhere."""


def phase_diagram(
    found: Mapping[tuple[str, str], Sequence[Seed]],
    *,
    kinds: Sequence[str],
    x_label: str,
    y_label: str,
    letters: Mapping[str, str] | None = None,
    title: str = "",
) -> Picture:
    """`found[row, column]` has the seeds of a setting; rows are drawn from below in the order in which they come.

    `kinds` gives the colours in order, at most six; `letters` explains the letters in the rings below the diagram.
    """
    if not found or not any(found.values()):
        raise InputError("phase_diagram was given no seed; give at least one.")
    unknown = {seed.kind for seeds in found.values() for seed in seeds} - set(kinds)
    if unknown or len(kinds) > len(_COLOURS):
        raise InputError(
            f"phase_diagram was given kinds={list(kinds)} for seeds of the kinds {sorted(unknown) or 'among them'}; "
            f"name every kind, at most {len(_COLOURS)}."
        )
    rows, columns = (list(dict.fromkeys(place[axis] for place in found)) for axis in (0, 1))
    colours = dict(zip(kinds, _COLOURS, strict=False))
    left = 26 + max(48.0, 6.6 * max(len(part) for row in rows for part in row.split("\n")))
    above = 46 + (26 if title else 0)
    width, height = _WIDTH * len(columns), _HEIGHT * len(rows)
    legend = _join_letters(letters or {}, max(width + left, 430))
    below = 52 + 17 * len(legend)
    with style_context():
        picture = Picture(max(left + width + 8, 430), above + height + below, alt=_describe(found, x_label, y_label))
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        _draw_key(picture, above - 44, kinds, colours)
        axes = picture.add_box(left, above, width, height)
        axes.set(xlim=(0, width), ylim=(0, height))
        axes.spines[:].set_visible(False)
        axes.set_xticks([_WIDTH * (i + 0.5) for i in range(len(columns))], columns)
        axes.set_yticks([_HEIGHT * (i + 0.5) for i in range(len(rows))], rows)
        axes.tick_params(length=0, pad=6)
        axes.set_xlabel(x_label)
        if y_label:
            picture.text(
                9 / (picture.get_size_inches()[0] * 72), 1 - (above + height / 2) / (picture.get_size_inches()[1] * 72),
                y_label, rotation=90, ha="center", va="center", size=11.5, color=LIGHT["muted"],
            )  # fmt: skip
        n_rings = 0
        for (row, column), seeds in found.items():
            corner = (float(_WIDTH * columns.index(column)), float(_HEIGHT * rows.index(row)))
            _draw_cell(axes, corner, seeds, colours)
            for spot, seed in zip(_spots(len(seeds)), seeds, strict=False):
                ring = _draw_ring(axes, corner, spot, seed, colours)
                ring.set_gid(f"seed-{n_rings}")
                picture.tooltips[f"seed-{n_rings}"] = [seed.name or f"{row}, {column}: {seed.kind}"]
                n_rings += 1
        for i, line in enumerate(legend):
            picture.add_text(0, above + height + 50 + 17 * i, line, size=11, color=LIGHT["muted"])
    return picture


def _draw_cell(axes: Axes, corner: tuple[float, float], seeds: Sequence[Seed], colours: Mapping[str, str]) -> None:
    left, bottom = corner
    counts = Counter(seed.kind for seed in seeds)
    most = max(counts.values(), default=0)
    winners = [kind for kind in colours if counts[kind] == most and most]
    for i, kind in enumerate(winners):
        share = most / len(seeds)
        axes.add_patch(
            Rectangle(
                (left + 2 + i * (_WIDTH - 4) / len(winners), bottom + 2), (_WIDTH - 4) / len(winners), _HEIGHT - 4,
                fc=LIGHT[colours[kind]], alpha=_FAINT + (_FULL - _FAINT) * share, ec="none",
            )
        )  # fmt: skip
    if winners:
        axes.text(
            left + _WIDTH / 2, bottom + _HEIGHT - 18, f"{most} of {len(seeds)}" if len(winners) == 1 else
            " : ".join([str(most)] * len(winners)), ha="center", va="center_baseline", size=11, color=LIGHT["ink"],
        )  # fmt: skip


def _draw_ring(
    axes: Axes, corner: tuple[float, float], spot: tuple[float, float], seed: Seed, colours: Mapping[str, str]
) -> Circle:
    """A ring with its letter; the ring lies on top and is filled by a hint of its colour, so that all of it can be pressed."""
    x, y, colour = corner[0] + spot[0], corner[1] + spot[1], LIGHT[colours[seed.kind]]
    axes.text(x, y - 0.5, seed.letter, ha="center", va="center_baseline", size=9.5, color=colour, weight="bold",
              zorder=2.5)  # fmt: skip
    ring = Circle((x, y), _RING, fc=to_rgba(colour, _TINT), ec=colour, lw=1.6, zorder=3, url=seed.link or None)
    axes.add_patch(ring)
    return ring


def _spots(n: int) -> list[tuple[float, float]]:
    """Centres of the rings in a cell, in one row; those that have no room are left out."""
    shown = min(n, _MOST_RINGS)
    gap = 2 * _RING + 2.4
    return [(_WIDTH / 2 + (i - (shown - 1) / 2) * gap, 20.0) for i in range(shown)]


def _draw_key(picture: Picture, top: float | int, kinds: Sequence[str], colours: Mapping[str, str]) -> None:
    start = 0.0
    for kind in kinds:
        box = picture.add_box(start, top + 2, 12, 12)
        box.set(xlim=(0, 1), ylim=(0, 1))
        box.set_axis_off()
        box.add_patch(Rectangle((0, 0), 1, 1, fc=LIGHT[colours[kind]], ec="none"))
        picture.add_text(start + 18, top + 1, kind, size=11, color=LIGHT["muted"])
        start += 36 + 6.6 * len(kind)
    picture.add_text(
        0,
        top + 19,
        "darker: more of the seeds; a ring: one seed, its letter the mechanism",
        size=11,
        color=LIGHT["muted"],
    )


def _join_letters(letters: Mapping[str, str], width: float | int) -> list[str]:
    lines: list[str] = []
    for part in [f"{letter} {meaning}" for letter, meaning in letters.items()]:
        if lines and 6.3 * (len(lines[-1]) + len(part) + 3) < width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def _describe(found: Mapping[tuple[str, str], Sequence[Seed]], x_label: str, y_label: str) -> str:
    told: dict[str, list[str]] = {}
    for (row, column), seeds in found.items():
        if seeds:
            kind, count = Counter(seed.kind for seed in seeds).most_common(1)[0]
            told.setdefault(row.replace("\n", " "), []).append(f"{column} {kind} {count} of {len(seeds)}")
    cells = "; ".join(f"{row}: {'; '.join(parts)}" for row, parts in told.items())
    return f"By {x_label}{f' and {y_label}' if y_label else ''}. {cells}."
