"""The flow of information: roles left to right, layers bottom to top, a line for every edge that carries something.

A line leaves the role that is read, below a layer, and arrives at the role that reads, above it; the faint upright lines
are the residual stream. Width is the weight, colour the role that is read, and dashes say that chance does as much.

>>> weights = np.zeros((2, 3, 3))
>>> weights[0, 1, 0], weights[1, 2, 1] = 2.0, 3.0
>>> picture = flow_picture(["key", "anchor", "last"], weights, label="KL", solid=weights > 2.5, n_draws=20)
>>> picture.alt
'Flow of information between key, anchor, last by KL. Layer 0: anchor from key 2.00 (dashed). Layer 1: last from anchor 3.00.'
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.path import Path

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context

_PALETTE = ("accent", "second", "fourth", "third", "fifth", "sixth")
_BACKGROUND = ("rest", "noise")
_LEFT, _ABOVE, _BELOW = 58, 92, 52
_WIDEST = 9.0
_FAINTEST = 0.01
"""Lines below this share of the widest one are left out, numbers below ten times as much."""
_MOST_NUMBERS = 8


def flow_picture(
    roles: Sequence[str],
    weights: Float[np.ndarray, "layer query_role key_role"],
    *,
    label: str,
    solid: Bool[np.ndarray, "layer query_role key_role"],
    n_draws: int,
    layers: Sequence[int] | None = None,
    title: str = "",
) -> Picture:
    """`weights` as lines; NaN and what isn't above 0 are not drawn. A role may have a second line of text after a break.

    `solid` marks the lines that are beyond each of `n_draws` control draws; the others are dashed and pale.
    """
    n_layers = len(weights)
    if weights.shape != (n_layers, len(roles), len(roles)) or weights.size == 0 or solid.shape != weights.shape:
        raise InputError(
            f"flow_picture was given {len(roles)} roles, weights of shape {weights.shape} and solid of {solid.shape}; "
            "both must be [layer, role, role], with at least one layer and one role."
        )
    numbers = list(range(n_layers)) if layers is None else list(layers)
    longest = max(len(line) for role in roles for line in role.split("\n"))
    column = int(max(7.6 * longest + 16, np.clip(560 / len(roles), 84, 140)))
    row = int(np.clip(760 / n_layers, 40, 104))
    key_texts = _explain(label, weights, n_draws)
    width = max(_LEFT + column * len(roles) + 34, 40 + int(6.4 * max(map(len, key_texts))))
    height = _ABOVE + row * n_layers + _BELOW
    x = _LEFT + column * (np.arange(len(roles)) + 0.5)
    y = _BELOW + row * np.arange(n_layers + 1.0)  # from the bottom
    colours = _choose_colours(roles)
    edges = _find_edges(weights)

    with style_context():
        picture = Picture(width, height, alt=_describe(roles, weights, solid, edges, label, numbers))
        axes = picture.add_box(0, 0, width, height)
        axes.set(xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        _draw_key(picture, axes, height, key_texts)
        axes.vlines(x, y[0], y[-1], color=LIGHT["grid"], lw=2, clip_on=False)
        for layer, number in enumerate(numbers):
            axes.text(0, (y[layer] + y[layer + 1]) / 2, f"layer {number}", color=LIGHT["muted"], size=11, va="center")
        _draw_lines(picture, axes, weights, solid, edges, x, y, colours, roles, numbers)
        for place, colour, role in zip(x, colours, roles, strict=True):
            axes.plot([place] * len(y), y, "o", ms=6.5, mfc=colour, mec="none", ls="none", zorder=4, clip_on=False)
            first, _, second = role.partition("\n")
            axes.text(place, y[0] - 13, first, color=colour, size=11.5, weight="bold", ha="center", va="top")
            axes.text(place, y[0] - 29, second, color=LIGHT["muted"], size=11, ha="center", va="top")
        _write_numbers(axes, weights, solid, edges, x, y, colours, row)
    return picture


def _find_edges(weights: Float[np.ndarray, "layer query_role key_role"]) -> list[tuple[int, int, int]]:
    """The edges to draw, weakest first, so that the strongest lie on top."""
    known = np.nan_to_num(weights, nan=0.0)
    order = np.argsort(known, axis=None, kind="stable")
    least = _FAINTEST * max(float(known.max()), 0.0)
    places = (np.unravel_index(int(flat), known.shape) for flat in order)
    edges = [(int(layer), int(query), int(key)) for layer, query, key in places]
    return [edge for edge in edges if known[edge] > least]


def _choose_colours(roles: Sequence[str]) -> list[str]:
    """A colour for each role in turn, and grey for the background."""
    named = [role for role in roles if role.partition("\n")[0] not in _BACKGROUND]
    return [LIGHT[_PALETTE[named.index(role) % len(_PALETTE)]] if role in named else LIGHT["control"] for role in roles]


def _draw_lines(
    picture: Picture,
    axes: Axes,
    weights: Float[np.ndarray, "layer query_role key_role"],
    solid: Bool[np.ndarray, "layer query_role key_role"],
    edges: Sequence[tuple[int, int, int]],
    x: Float[np.ndarray, "role"],
    y: Float[np.ndarray, "level"],
    colours: Sequence[str],
    roles: Sequence[str],
    numbers: Sequence[int],
) -> None:
    if not edges:
        return
    widest = max(weights[edge] for edge in edges)
    paths, widths, shades, dashes, tips = [], [], [], [], []
    for layer, query, key in edges:
        edge = (layer, query, key)
        paths.append(_bend(x[key], y[layer], x[query], y[layer + 1]))
        widths.append(max(1.2, _WIDEST * float(weights[edge] / widest)))
        shades.append(to_rgba(colours[key], 0.85 if solid[edge] else 0.35))
        dashes.append((0, None) if solid[edge] else (0, (4 / widths[-1], 3 / widths[-1])))
        names = [roles[role].partition("\n")[0] for role in (query, key)]
        doubt = "" if solid[edge] else ", no more than random edges of the same mass"
        tips.append(f"layer {numbers[layer]}, {names[0]} ← {names[1]}: {weights[edge]:.3g}{doubt}")
    lines = PathCollection(
        paths,
        facecolors="none",
        edgecolors=shades,
        linewidths=widths,
        linestyles=dashes,
        gid="flow",
        capstyle="butt",
        clip_on=False,
    )
    lines.set_zorder(3)
    axes.add_collection(lines, autolim=False)
    picture.tooltips["flow"] = tips


def _bend(x0: float, y0: float, x1: float, y1: float) -> Path:
    """From below a layer to above it, upright at both ends; an edge to itself bulges beside the residual stream."""
    rise = y1 - y0
    if x0 == x1:
        points = [(x0, y0), (x0 + 0.28 * rise, y0 + 0.42 * rise), (x0 + 0.28 * rise, y1 - 0.42 * rise), (x1, y1)]
    else:
        points = [(x0, y0), (x0, y0 + 0.55 * rise), (x1, y1 - 0.55 * rise), (x1, y1)]
    return Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])


def _write_numbers(
    axes: Axes,
    weights: Float[np.ndarray, "layer query_role key_role"],
    solid: Bool[np.ndarray, "layer query_role key_role"],
    edges: Sequence[tuple[int, int, int]],
    x: Float[np.ndarray, "role"],
    y: Float[np.ndarray, "level"],
    colours: Sequence[str],
    row: int,
) -> None:
    """Weights of the strongest lines, beside the nodes at which they arrive, in the colour of where they come from."""
    least = 10 * _FAINTEST * max((weights[edge] for edge in edges), default=0.0)
    strongest = [edge for edge in reversed(edges) if solid[edge] and weights[edge] >= least][:_MOST_NUMBERS]
    arrivals: dict[tuple[int, int], list[int]] = {}
    for layer, query, key in strongest:
        arrivals.setdefault((layer, query), []).append(key)
    for (layer, query), keys in arrivals.items():
        shown = keys[: max(1, row // 24)]
        for line, key in enumerate(shown):
            at = y[layer + 1] + 12 * ((len(shown) - 1) / 2 - line)
            axes.text(x[query] + 12, at, f"{weights[layer, query, key]:.2f}", color=colours[key], size=11, weight="bold",
                      va="center_baseline", zorder=5)  # fmt: skip


def _explain(label: str, weights: Float[np.ndarray, "layer query_role key_role"], n_draws: int) -> tuple[str, str]:
    """What a solid line says, and what a dashed one."""
    widest = float(np.nan_to_num(weights, nan=0.0).max())
    return (
        f"{label}: widest {widest:.2f}" if widest > 0 else f"{label}: nowhere above 0",
        f"when cut, no more than the strongest of {n_draws} random sets of edges of the same mass",
    )


def _draw_key(picture: Picture, axes: Axes, height: int, texts: tuple[str, str]) -> None:
    for top, width, dash, alpha, text in (
        (30, _WIDEST, (0, None), 0.85, texts[0]),
        (48, 3.0, (0, (4 / 3, 1)), 0.5, texts[1]),
    ):
        axes.plot([0, 26], [height - top - 7] * 2, color=to_rgba(LIGHT["ink"], alpha), lw=width, ls=dash,
                  solid_capstyle="butt", dash_capstyle="butt", clip_on=False)  # fmt: skip
        picture.add_text(34, top, text, size=11, color=LIGHT["muted"])


def _describe(
    roles: Sequence[str],
    weights: Float[np.ndarray, "layer query_role key_role"],
    solid: Bool[np.ndarray, "layer query_role key_role"],
    edges: Sequence[tuple[int, int, int]],
    label: str,
    numbers: Sequence[int],
) -> str:
    names = [role.partition("\n")[0] for role in roles]
    parts = []
    for layer, number in enumerate(numbers):
        here = [edge for edge in reversed(edges) if edge[0] == layer][:3]
        said = [
            f"{names[edge[1]]} from {names[edge[2]]} {weights[edge]:.2f}{'' if solid[edge] else ' (dashed)'}"
            for edge in here
        ]
        if said:
            parts.append(f"Layer {number}: {', '.join(said)}.")
    return f"Flow of information between {', '.join(names)} by {label}. " + (" ".join(parts) or "Nothing flows.")
