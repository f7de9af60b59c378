"""Binary trees over the words of a sentence: spans, checks, and the reference trees that a found tree is compared with.

    tree = position | (left, right),      span = (start, end), the end not included

    P(split at k | n words) = 1 / (n - 1)                       "uniform_split"
                            = C_{k-1} C_{n-k-1} / C_{n-1}       "catalan": every tree equally likely; C_m is Catalan's number

`"uniform_split"` is the random baseline of Murty et al. (arXiv 2305.18741). A random tree of n words has every span of
two or more words with a probability known in closed form under both laws.

>>> tree = ((0, 1), (2, (3, 4)))
>>> list_spans(tree)
[(0, 2), (0, 5), (2, 5), (3, 5)]
>>> left_branching(3), right_branching(3)
(((0, 1), 2), (0, (1, 2)))
>>> draw_tree(5, random.Random(0))
(((0, 1), (2, 3)), 4)
"""

import random
from math import comb
from typing import TYPE_CHECKING, Literal, get_args

from tasks.task import TaskError

if TYPE_CHECKING:
    Tree = int | tuple["Tree", "Tree"]
else:
    # Checks of types at run time can't follow a type into itself.
    Tree = int | tuple
"""A leaf is the position of its word, a node the pair of its parts."""

Law = Literal["uniform_split", "catalan"]
"""How a random tree is drawn: every split equally likely, or every tree."""


def list_spans(tree: Tree) -> list[tuple[int, int]]:
    """(start, end) of every node with at least two leaves, the root included, sorted."""
    spans: list[tuple[int, int]] = []
    _collect_spans(tree, spans)
    return sorted(spans)


def count_leaves(tree: Tree) -> int:
    """How many words the tree covers."""
    return len(_list_leaves(tree))


def check_tree(tree: Tree, n_words: int) -> None:
    """The tree is binary and covers words 0 to `n_words` - 1, each once and in order.

    Raises:
        TaskError: a node that doesn't have two parts, or other leaves.
    """
    leaves = _list_leaves(tree)
    if leaves != list(range(n_words)):
        raise TaskError(
            f"the tree's leaves are {leaves}: for a sentence of {n_words} words give the positions "
            f"0 to {n_words - 1}, each once and in order"
        )


def left_branching(n: int) -> Tree:
    """(((0, 1), 2), ...): every constituent begins with the first word."""
    _check_length(n)
    tree: Tree = 0
    for position in range(1, n):
        tree = (tree, position)
    return tree


def right_branching(n: int) -> Tree:
    """(0, (1, (2, ...))): every constituent ends with the last word."""
    _check_length(n)
    tree: Tree = n - 1
    for position in range(n - 2, -1, -1):
        tree = (position, tree)
    return tree


def draw_tree(n: int, generator: random.Random, *, law: Law = "uniform_split") -> Tree:
    """A random binary tree over n words.

    Raises:
        TaskError: no word, or a law of another name.
    """
    _check_length(n)
    if law not in get_args(Law):
        raise TaskError(f"law={law!r} is unknown: give {' or '.join(map(repr, get_args(Law)))}")
    return _draw(0, n, generator, law)


def count_trees(n: int) -> int:
    """How many binary trees there are over n words: Catalan's number C_{n-1}."""
    _check_length(n)
    return comb(2 * n - 2, n - 1) // n


def _draw(start: int, end: int, generator: random.Random, law: Law) -> Tree:
    if end - start == 1:
        return start
    split = start + _draw_split(end - start, generator, law)
    return _draw(start, split, generator, law), _draw(split, end, generator, law)


def _draw_split(n: int, generator: random.Random, law: Law) -> int:
    """The number of words of the left part."""
    if law == "uniform_split":
        return generator.randrange(1, n)
    rank = generator.randrange(count_trees(n))
    for left in range(1, n):
        rank -= count_trees(left) * count_trees(n - left)
        if rank < 0:
            return left
    raise AssertionError("the products of the parts' numbers sum to the number of trees")


def _collect_spans(tree: Tree, spans: list[tuple[int, int]]) -> tuple[int, int]:
    if isinstance(tree, int):
        return tree, tree + 1
    start, _ = _collect_spans(tree[0], spans)
    _, end = _collect_spans(tree[1], spans)
    spans.append((start, end))
    return start, end


def _list_leaves(tree: Tree) -> list[int]:
    if isinstance(tree, int):
        return [tree]
    if not isinstance(tree, tuple) or len(tree) != 2:
        raise TaskError(f"{tree!r} is no node of a binary tree: give a position, or a tuple of two parts")
    return [*_list_leaves(tree[0]), *_list_leaves(tree[1])]


def _check_length(n: int) -> None:
    if n < 1:
        raise TaskError(f"there is no tree over {n} words: give at least 1")
