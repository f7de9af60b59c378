"""A tree drawn over its sentence, and another one hanging below it: found above, gold below.

Every node is a bar over its words. Where two trees are given, brackets that both have are coloured and the others grey, so
that what they share is seen at a glance. `tree_text` draws one with characters, for a terminal.

>>> print(tree_text(["the", "cat", "sleeps"], ((0, 1), 2)))
   ┌────────┐
 ┌─┴──┐     │
the  cat  sleeps
>>> tree_picture(["the", "cat", "sleeps"], ((0, 1), 2), below=(0, (1, 2))).alt
'Tree over the sentence: ((the cat) sleeps). Below it: (the (cat sleeps)). 1 of 2 brackets are in both.'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.path import Path

from interp.errors import InputError
from interp.figures.colour import LIGHT
from interp.figures.style import Picture, style_context
from tasks.task import TaskError
from tasks.trees import Tree, check_tree, list_spans

Span = tuple[int, int]
_LETTER, _WIDE_LETTER, _GAP, _NARROWEST = 7.7, 12.5, 16, 34
_STEP, _ROUND, _WORDS = 26, 6, 30
"""Height of a level, radius of its corners, and height of the line of words, in pixels."""


@dataclass(frozen=True, kw_only=True)
class _Node:
    span: Span
    x: float
    height: int
    """0 for a word, otherwise one above the higher of its parts."""
    parts: tuple["_Node", ...] = ()


def tree_picture(
    words: Sequence[str],
    tree: Tree,
    *,
    below: Tree | None = None,
    names: tuple[str, str] = ("found", "gold"),
    scores: Mapping[Span, float] | None = None,
    title: str = "",
) -> Picture:
    """`tree` above the words and, where given, the tree `below` under them; `names` says which is which.

    Under the pointer a bar says its words and, where `scores` has its span (start, end), its score in the chart. Raises
    `InputError` for no word and for a tree of other words.
    """
    shown = [_show_word(word) for word in words]
    trees = [tree] if below is None else [tree, below]
    for one in trees:
        _check(one, words)
    left = 0.0 if below is None else 7.0 * max(map(len, names)) + 18
    columns = [max(_measure(word) + _GAP, _NARROWEST) for word in shown]
    places = [left + sum(columns[:i]) + columns[i] / 2 for i in range(len(columns))]
    nodes = [_place(one, places) for one in trees]
    shared = None if below is None else set(list_spans(tree)) & set(list_spans(below))

    key = "" if shared is None else f"in both: {len(shared)} of {len(words) - 1} brackets"
    top = (26 if title else 0) + (26 if key else 0) + 4
    width = max(left + sum(columns), 30 + 7 * len(key), 8.5 * len(title))
    middle = top + _STEP * nodes[0].height + 10 + _WORDS / 2
    height = middle + _WORDS / 2 + (_STEP * nodes[1].height + 10 if below is not None else 0)
    with style_context():
        picture = Picture(width, height, alt=_describe(shown, trees, shared))
        axes = picture.add_box(0, 0, width, height)
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        if title:
            picture.add_text(0, 2, title, size=13, weight="bold")
        if key:
            line = top - 19
            axes.plot([0, 22], [line, line], color=LIGHT["accent"], lw=2.4)
            axes.text(30, line, key, size=11, color=LIGHT["muted"], va="center_baseline")
        for place, word in zip(places, shown, strict=True):
            axes.text(place, middle, word, size=12.5, ha="center", va="center_baseline")
        for way, (root, name) in enumerate(zip(nodes, names, strict=False)):
            direction = -1 if way == 0 else 1
            base = middle + direction * _WORDS / 2
            _draw_tree(picture, axes, root, base, direction, shared, shown, scores if way == 0 else None)
            if below is not None:
                axes.text(0, base + direction * _STEP * root.height / 2, name, size=11.5, color=LIGHT["muted"],
                          va="center_baseline")  # fmt: skip
    return picture


def tree_text(words: Sequence[str], tree: Tree) -> str:
    """The tree over its sentence, in lines of characters. Raises as `tree_picture`."""
    _check(tree, words)
    shown = [_show_word(word) for word in words]
    starts = [sum(len(word) + 2 for word in shown[:i]) for i in range(len(shown))]
    root = _place(tree, [start + (len(word) - 1) / 2 for start, word in zip(starts, shown, strict=True)])
    width = starts[-1] + len(shown[-1])
    grid = [[" "] * width for _ in range(root.height)]
    _draw_text(grid, root, has_parent=False)
    return "\n".join(["".join(row).rstrip() for row in reversed(grid)] + ["  ".join(shown)])


def _place(tree: Tree, places: Sequence[float]) -> _Node:
    """Each node halfway between its parts."""
    if isinstance(tree, int):
        return _Node(span=(tree, tree + 1), x=places[tree], height=0)
    first, second = _place(tree[0], places), _place(tree[1], places)
    return _Node(
        span=(first.span[0], second.span[1]),
        x=(first.x + second.x) / 2,
        height=1 + max(first.height, second.height),
        parts=(first, second),
    )


def _list_nodes(root: _Node) -> list[_Node]:
    """The nodes above the words, parts first."""
    return [node for part in root.parts for node in _list_nodes(part)] + ([root] if root.parts else [])


def _draw_tree(
    picture: Picture,
    axes: Axes,
    root: _Node,
    base: float,
    direction: int,
    shared: set[Span] | None,
    words: Sequence[str],
    scores: Mapping[Span, float] | None,
) -> None:
    """Grey bars first, so that coloured ones lie on top where legs meet bars."""
    nodes = sorted(_list_nodes(root), key=lambda node: shared is None or node.span in shared)
    if not nodes:
        return
    known = [shared is None or node.span in shared for node in nodes]
    name = "above" if direction < 0 else "below"
    lines = PathCollection(
        [_bend(node, base, direction) for node in nodes],
        facecolors="none",
        edgecolors=[LIGHT["accent" if own else "axis"] for own in known],
        linewidths=[2.4 if own and shared is not None else 1.8 for own in known],
        capstyle="butt",
        clip_on=False,
        gid=name,
    )
    axes.add_collection(lines, autolim=False)
    picture.tooltips[name] = [_say(node.span, words, scores) for node in nodes]


def _bend(node: _Node, base: float, direction: int) -> Path:
    """From one part to the other by way of the bar, with round corners."""
    (x0, y0), (x1, y1) = ((part.x, base + direction * _STEP * part.height) for part in node.parts)
    bar = base + direction * _STEP * node.height
    turn = min(_ROUND, (x1 - x0) / 2)
    back = bar - direction * turn
    points = [(x0, y0), (x0, back), (x0, bar), (x0 + turn, bar), (x1 - turn, bar), (x1, bar), (x1, back), (x1, y1)]
    kinds = [Path.MOVETO, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO]
    return Path(points, kinds)


def _draw_text(grid: list[list[str]], node: _Node, *, has_parent: bool) -> None:
    if not node.parts:
        return
    row = grid[node.height - 1]
    ends = [int(part.x) for part in node.parts]
    row[ends[0] : ends[1] + 1] = "┌" + "─" * (ends[1] - ends[0] - 1) + "┐"
    if has_parent:
        row[int(node.x)] = "┴"
    for part, end in zip(node.parts, ends, strict=True):
        for level in range(part.height, node.height - 1):
            grid[level][end] = "│"
        _draw_text(grid, part, has_parent=True)


def _check(tree: Tree, words: Sequence[str]) -> None:
    if not len(words):
        raise InputError("A tree is drawn over its words, and none was given.")
    try:
        check_tree(tree, len(words))
    except TaskError as error:
        raise InputError(f"The tree doesn't fit its {len(words)} words: {error}.") from error


def _show_word(word: str) -> str:
    """On one line, without the blank that a tokenizer puts in front; a word of nothing but blanks stays visible."""
    return word.replace("\n", "↵").strip() or "␣"


def _measure(word: str) -> float:
    """About how wide a word is, in pixels; never much too little."""
    return sum(_WIDE_LETTER if letter in "mwMW@%" or east_asian_width(letter) in "WF" else _LETTER for letter in word)


def _say(span: Span, words: Sequence[str], scores: Mapping[Span, float] | None) -> str:
    text = " ".join(words[span[0] : span[1]])
    return text if scores is None or span not in scores else f"{text}: {scores[span]:.3f}"


def _write_brackets(tree: Tree, words: Sequence[str]) -> str:
    if isinstance(tree, int):
        return words[tree]
    return f"({_write_brackets(tree[0], words)} {_write_brackets(tree[1], words)})"


def _describe(words: Sequence[str], trees: Sequence[Tree], shared: set[Span] | None) -> str:
    said = f"Tree over the sentence: {_write_brackets(trees[0], words)}."
    if shared is None:
        return said
    return (
        f"{said} Below it: {_write_brackets(trees[1], words)}. {len(shared)} of {len(words) - 1} brackets are in both."
    )
