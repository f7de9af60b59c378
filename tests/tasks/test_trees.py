"""Trees: spans and checks on hand-made ones, and both laws of random trees against all trees there are."""

import random
from collections import Counter

import pytest

from tasks.task import TaskError
from tasks.trees import check_tree, count_leaves, count_trees, draw_tree, left_branching, list_spans, right_branching
from tests.untyped import as_without_type_checks


def list_trees(start, end):
    """(tree, probability under uniform splits) for every tree, by trying all splits."""
    if end - start == 1:
        return [(start, 1.0)]
    return [
        ((left, right), p * q / (end - start - 1))
        for split in range(start + 1, end)
        for left, p in list_trees(start, split)
        for right, q in list_trees(split, end)
    ]


def test_the_spans_are_all_nodes_with_two_leaves_or_more():
    assert list_spans(0) == []
    assert list_spans(((0, 1), (2, (3, 4)))) == [(0, 2), (0, 5), (2, 5), (3, 5)]
    assert count_leaves(((0, 1), (2, (3, 4)))) == 5


def test_left_and_right_branching():
    assert left_branching(1) == right_branching(1) == 0
    assert left_branching(4) == (((0, 1), 2), 3)
    assert right_branching(4) == (0, (1, (2, 3)))
    assert list_spans(left_branching(9)) == [(0, end) for end in range(2, 10)]
    assert list_spans(right_branching(9)) == [(start, 9) for start in range(8)]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_number_of_trees(n):
    assert count_trees(n) == len({tree for tree, _ in list_trees(0, n)})


@pytest.mark.parametrize("law", ["uniform_split", "catalan"])
def test_a_random_tree_is_as_likely_as_the_law_says(law):
    generator = random.Random(0)
    n, draws = 5, 4_000
    drawn = Counter(draw_tree(n, generator, law=law) for _ in range(draws))
    expected = dict(list_trees(0, n))
    assert set(drawn) == set(expected)
    for tree, probability in expected.items():
        check_tree(tree, n)
        share = probability if law == "uniform_split" else 1 / 14
        assert abs(drawn[tree] / draws - share) < 4 * (share / draws) ** 0.5


def test_the_same_seed_draws_the_same_tree():
    assert draw_tree(30, random.Random(7)) == draw_tree(30, random.Random(7))
    assert draw_tree(30, random.Random(7)) != draw_tree(30, random.Random(8))


def test_bad_trees_are_named():
    check_tree(((0, 1), 2), 3)
    message = r"the tree's leaves are \[0, 2, 1\]: for a sentence of 3 words give the positions 0 to 2, each once"
    with pytest.raises(TaskError, match=message):
        check_tree(((0, 2), 1), 3)
    with pytest.raises(TaskError, match="for a sentence of 4 words"):
        check_tree(((0, 1), 2), 4)
    with as_without_type_checks(), pytest.raises(TaskError, match=r"\(1, 2, 3\) is no node of a binary tree"):
        check_tree((0, (1, 2, 3)), 4)
    with pytest.raises(TaskError, match="no tree over 0 words: give at least 1"):
        draw_tree(0, random.Random(0))
    with as_without_type_checks(), pytest.raises(TaskError, match="law='uniform' is unknown: give 'uniform_split' or"):
        draw_tree(3, random.Random(0), law="uniform")
