import random

import numpy as np
import pytest

from interp.errors import InputError
from interp.trees.brackets import compare_brackets
from tasks.trees import draw_tree, left_branching, list_spans, right_branching
from tests.trees.test_project import list_trees

GOLD = ((0, 1), (2, (3, (4, 5))))
FOUND = ((0, 1), ((2, 3), (4, 5)))  # shares (0, 2), (2, 6), (4, 6) and the root, misses (3, 6)
LABELS = {(0, 2): "NP", (2, 6): "VP", (4, 6): "NP", (0, 6): "S", (3, 6): "RC"}


def read(scores, group, parser="projected", column="found"):
    table = scores.to_frame().set_index(["group", "parser"])
    return table.loc[(group, parser), column]


def draw_trees(n_trees, n_words, seed):
    generator = random.Random(seed)
    return [draw_tree(n_words, generator) for _ in range(n_trees)]


def test_f1_with_and_without_the_root():
    scores = compare_brackets([FOUND], [GOLD])
    assert scores.f1 == pytest.approx(4 / 5)
    assert scores.f1_without_root == pytest.approx(3 / 4)
    assert read(scores, "with root", "right") == pytest.approx(4 / 5)  # all but (0, 2)
    assert read(scores, "without root", "right") == pytest.approx(3 / 4)
    assert read(scores, "with root", "left") == pytest.approx(2 / 5)  # (0, 2) and the root
    assert read(scores, "without root", "left") == pytest.approx(1 / 4)


def test_the_gold_tree_itself_finds_all():
    gold = draw_trees(20, 9, 0)
    scores = compare_brackets(gold, gold)
    assert scores.f1 == scores.f1_without_root == 1.0


def test_it_is_the_f1_of_all_brackets_at_once():
    """Long sentences count more, as in the published numbers; P, R and F1 by their definitions."""
    trees, gold = [*draw_trees(20, 5, 1), *draw_trees(20, 12, 2)], [*draw_trees(20, 5, 3), *draw_trees(20, 12, 4)]
    found = {(i, *span) for i, tree in enumerate(trees) for span in list_spans(tree)}
    right = {(i, *span) for i, tree in enumerate(gold) for span in list_spans(tree)}
    precision, recall = len(found & right) / len(found), len(found & right) / len(right)
    assert compare_brackets(trees, gold).f1 == pytest.approx(2 * precision * recall / (precision + recall))


@pytest.mark.parametrize("n_words", range(2, 9))
def test_what_random_trees_find_equals_the_enumeration_of_all_trees(n_words):
    (gold,) = draw_trees(1, n_words, n_words)
    trees = list_trees(0, n_words)
    each = compare_brackets(trees, [gold] * len(trees))
    assert read(each, "with root", "catalan") == pytest.approx(each.f1)
    if n_words > 2:
        assert read(each, "without root", "catalan") == pytest.approx(each.f1_without_root)
    weights = [weigh(tree, n_words) for tree in trees]
    assert sum(weights) == pytest.approx(1)
    shares = each.hits[0, 0] / each.totals[0]
    assert read(each, "with root", "uniform_split") == pytest.approx(np.dot(weights, shares))


def weigh(tree, n_words):
    """The probability of this tree when each span is split at a uniform point."""
    if n_words == 1:
        return 1.0
    left, right = (len(list_spans(part)) + 1 for part in tree)
    return weigh(tree[0], left) * weigh(tree[1], right) / (n_words - 1)


def test_each_constituent_type_has_its_own_row_and_roots_are_left_out():
    scores = compare_brackets([FOUND], [GOLD], labels=[LABELS])
    assert scores.groups == ("with root", "without root", "NP", "RC", "VP")
    assert read(scores, "NP") == 1.0
    assert read(scores, "NP", column="n_brackets") == 2
    assert read(scores, "RC") == 0.0
    assert read(scores, "NP", "left") == pytest.approx(1 / 2)
    assert read(scores, "NP", "uniform_split") == pytest.approx(1 / 2)  # two words at an edge, twice
    assert read(scores, "VP", "uniform_split") == pytest.approx(1 / 4)


def test_types_that_some_sentences_lack_are_counted_where_they_are():
    scores = compare_brackets([FOUND, FOUND, (0, 1)], [GOLD, GOLD, (0, 1)], labels=[{(2, 6): "VP"}, {(3, 6): "VP"}, {}])
    assert read(scores, "VP") == pytest.approx(1 / 2)
    assert scores.totals[2].tolist() == [1, 1, 0]
    low, high = read(scores, "VP", column="low"), read(scores, "VP", column="high")
    assert 0 <= low <= 0.5 <= high <= 1


def test_intervals_cover_and_are_the_same_each_time():
    trees, gold = draw_trees(60, 8, 1), draw_trees(60, 8, 2)
    table = compare_brackets(trees, gold).to_frame()
    assert (table.low <= table.found).all()
    assert (table.found <= table.high).all()
    assert table.equals(compare_brackets(trees, gold).to_frame())
    wide = compare_brackets(trees[:10], gold[:10]).to_frame()
    assert wide.high[5] - wide.low[5] > table.high[5] - table.low[5] > 0


def test_the_interval_is_that_of_the_mean_where_all_sentences_are_as_long():
    """With equal lengths the ratio of sums is a mean, whose interval is known: about 2 standard errors either way."""
    trees, gold = draw_trees(200, 8, 1), draw_trees(200, 8, 2)
    scores = compare_brackets(trees, gold)
    shares = scores.hits[1, 0] / scores.totals[1]
    error = shares.std() / np.sqrt(200)
    row = scores.to_frame().iloc[len(scores.parsers)]
    assert row.low == pytest.approx(shares.mean() - 1.96 * error, abs=0.3 * error)
    assert row.high == pytest.approx(shares.mean() + 1.96 * error, abs=0.3 * error)


def test_two_words_have_only_a_root():
    scores = compare_brackets([(0, 1)] * 2, [(0, 1)] * 2)
    assert scores.f1 == 1.0
    assert np.isnan(scores.f1_without_root)
    assert np.isnan(read(scores, "without root", column="low"))


def test_a_person_can_read_it():
    assert repr(compare_brackets([FOUND, FOUND], [GOLD, GOLD])) == (
        "BracketScores(F1 0.800 [0.800, 0.800] with the root, 0.750 [0.750, 0.750] without; without it left-branching "
        "0.250, right-branching 0.750, random by splits 0.396, random of all 0.286; n=2 sentences)"
    )
    assert "<table" in compare_brackets([left_branching(4)], [right_branching(4)])._repr_html_()


def test_it_says_what_it_cannot_compare():
    with pytest.raises(InputError, match="given no gold tree; give one for each sentence"):
        compare_brackets([], [])
    with pytest.raises(InputError, match="1 trees were given for 2 sentences; give each sentence its tree"):
        compare_brackets([FOUND], [GOLD, GOLD])
    with pytest.raises(InputError, match=r"Tree 0 doesn't fit its sentence: .*leaves are \[0, 1\].*6 words"):
        compare_brackets([(0, 1)], [GOLD])
    with pytest.raises(InputError, match=r"label 'NP' of sentence 0 is on \(1, 3\), which is no bracket of its gold"):
        compare_brackets([FOUND], [GOLD], labels=[{(1, 3): "NP"}])
    with pytest.raises(InputError, match="2 sets of labels were given for 1 gold trees"):
        compare_brackets([FOUND], [GOLD], labels=[{}, {}])
    with pytest.raises(InputError, match="'with root' of sentence 0 is the name of a group"):
        compare_brackets([FOUND], [GOLD], labels=[{(0, 2): "with root"}])
